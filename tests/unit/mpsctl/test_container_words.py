"""What `mpsctl env --format` prints for container engines is what they get, whoever quotes it and however."""

from __future__ import annotations

import configparser
import subprocess
from typing import Any, Optional

import pytest
import yaml

from fakes import Host, uuid
from mpsctl.model import container_words as words
from mpsctl.model.instance import Instance
from shell import Shell

PUBLIC = "/run/nvidia-mps/0"
ONE = Instance("0", ("0",), PUBLIC)
COMMAND_LINES = ["docker", "podman", "cdi"]


def way(instance: Instance = ONE, gpus: int = 1, driver: Optional[str] = "580.1", group: Optional[int] = None) -> Any:
    return words.Way(instance, tuple(uuid(index) for index in range(gpus)), group, driver)


def in_a_shell(text: str, quoted: str) -> list[str]:
    """The words that a command gets by an unquoted ``$(…)``, or where the text was pasted."""
    given = '$(printf "%s" "$1")' if quoted == "substituted" else text
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {given}", "sh", text], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("quoted", ["substituted", "pasted"])
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("kind", COMMAND_LINES)
def test_the_words_are_the_same_whether_a_shell_reads_or_substitutes_them(kind: str, gpus: int, quoted: str) -> None:
    text = words.FORMATS[kind](way(gpus=gpus, driver="550.1", group=7))
    assert in_a_shell(text, quoted) == text.split()
    assert not set(text) & set("\"'\\$`*?")


def test_docker_gets_one_gpu_by_its_own_option_and_several_by_nvidias_runtime() -> None:
    assert words.docker(way()).split() == [
        f"--gpus=device={uuid(0)}",
        f"--mount=type=bind,source={PUBLIC},target={PUBLIC},readonly",
        f"--env=CUDA_MPS_PIPE_DIRECTORY={PUBLIC}",
    ]
    assert words.docker(way(gpus=2)).split()[:2] == [
        "--runtime=nvidia",
        f"--env=NVIDIA_VISIBLE_DEVICES={uuid(0)},{uuid(1)}",
    ]


def test_both_kinds_of_cdi_device() -> None:
    assert words.with_cdi(way(gpus=2)).split() == [
        f"--device=nvidia.com/gpu={uuid(0)}",
        f"--device=nvidia.com/gpu={uuid(1)}",
        "--device=mps-fleet/instance=0",
    ]
    assert words.podman(way()).split()[0] == f"--device=nvidia.com/gpu={uuid(0)}"


@pytest.mark.parametrize("kind", sorted(words.FORMATS))
@pytest.mark.parametrize(("driver", "needed"), [("580.159.04", False), ("570.1", True), (None, True)])
def test_the_hosts_ipc_namespace_only_where_the_driver_may_need_it(
    kind: str, driver: Optional[str], needed: bool
) -> None:
    text = words.FORMATS[kind](way(driver=driver))
    assert ("ipc" in text) is needed
    assert "VISIBLE_DEVICES" not in text, "the host's indices mean nothing in a container"


def test_a_compose_file_to_extend() -> None:
    found = yaml.safe_load(words.compose(way(gpus=2, driver="550.1", group=7)))
    assert found == {
        "services": {
            "mps-0": {
                "environment": {"CUDA_MPS_PIPE_DIRECTORY": PUBLIC},
                "volumes": [
                    {
                        "type": "bind",
                        "source": PUBLIC,
                        "target": PUBLIC,
                        "read_only": True,
                        "bind": {"create_host_path": False},
                    }
                ],
                "deploy": {
                    "resources": {
                        "reservations": {
                            "devices": [{"driver": "nvidia", "device_ids": [uuid(0), uuid(1)], "capabilities": ["gpu"]}]
                        }
                    }
                },
                "group_add": ["7"],
                "ipc": "host",
            }
        }
    }


def test_a_quadlets_lines() -> None:
    text = words.quadlet(way(gpus=2, driver="550.1", group=7))
    parser = configparser.ConfigParser(strict=False, delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser.sections() == ["Container", "Service"]
    assert parser["Service"]["ExecStop"] == "-/usr/local/bin/mpsctl evict --unit %n"
    lines = [line for line in text.splitlines() if not line.startswith("[")]
    assert lines == [
        f"AddDevice=nvidia.com/gpu={uuid(0)}",
        f"AddDevice=nvidia.com/gpu={uuid(1)}",
        f"Volume={PUBLIC}:{PUBLIC}:ro",
        f"Environment=CUDA_MPS_PIPE_DIRECTORY={PUBLIC}",
        "PodmanArgs=--group-add=7",
        "PodmanArgs=--ipc=host",
        "ExecStop=-/usr/local/bin/mpsctl evict --unit %n",
    ]


@pytest.mark.parametrize("kind", ["docker", "podman", "compose", "quadlet"])
def test_without_the_front_door_the_directory_can_be_written_to(kind: str) -> None:
    open_ = Instance("0", ("0",), PUBLIC, front_door=False)
    read_only = [word for word in ("readonly", "read_only", ":ro") if word in words.FORMATS[kind](way(open_))]
    assert read_only == []


@pytest.mark.parametrize("kind", sorted(words.FORMATS))
def test_the_verb_prints_them_for_an_instance_of_the_host(mpsctl: Shell, host: Host, kind: str) -> None:
    public = host.desired("pair", GPUs="2 0")
    assert mpsctl("env", "pair", "--format", kind) == 0
    assert uuid(2) in mpsctl.out
    assert uuid(0) in mpsctl.out
    assert ("mps-fleet/instance=pair" if kind == "cdi" else str(public)) in mpsctl.out


def test_a_name_that_is_no_cdi_device_is_refused_on_one_line(mpsctl: Shell, host: Host) -> None:
    host.desired("train-", GPUs="0")
    assert mpsctl("env", "train-", "--format", "cdi") == 2
    assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl("env", "train-", "--format", "podman") == 0
