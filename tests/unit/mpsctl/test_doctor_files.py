"""Given a unit, a script, a container's configuration or an environment as text, what the doctor finds in it."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.causes import containers, environment, units
from mpsctl.causes.diagnosis import in_order
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance

CONTROL = "/usr/bin/nvidia-cuda-mps-control"
GOOD_UNIT = f"""\
[Unit]
After=nvidia-persistenced.service
Wants=nvidia-persistenced.service
[Service]
Type=exec
Environment=CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0
ExecStartPre=/usr/bin/nvidia-smi -i GPU-1 -c EXCLUSIVE_PROCESS
ExecStart={CONTROL} -f
ExecStop=/bin/sh -c 'echo "quit -t 20" | {CONTROL}'
Restart=always
[Install]
WantedBy=multi-user.target
"""


def in_unit(text: str) -> list[str]:
    return [one.name for one in in_order(units.lint(text))]


def test_a_good_unit_has_no_fault() -> None:
    assert in_unit(GOOD_UNIT) == []


OURS = sorted((Path(__file__).parents[3] / "roles/mps/templates").glob("*.service.j2"))


@pytest.mark.parametrize("template", OURS, ids=lambda path: path.name)
def test_our_own_units_have_no_fault(template: Path) -> None:
    assert in_unit(template.read_text()) == []


def test_there_are_units_of_ours_to_look_at() -> None:
    assert len(OURS) > 1


FAULTS = [
    (("ExecStop=", f"ExecStop={CONTROL} quit\n#"), "quit-as-argument"),
    (("ExecStop=", f"ExecStop={CONTROL} -q\n#"), "quit-as-argument"),
    (("ExecStop=", f"ExecStop=-{CONTROL} -quit\n#"), "quit-as-argument"),
    (("ExecStop=", f"ExecStop=/bin/echo quit | {CONTROL}\n#"), "pipeline-without-shell"),
    (("ExecStop=", f"ExecStop={CONTROL} < /etc/mps.commands\n#"), "pipeline-without-shell"),
    (("ExecStop=", "ExecStop=/usr/bin/pgrep mps > /tmp/out\n#"), "pipeline-without-shell"),
    (("Restart=always", f"Restart=always\nExecStartPost={CONTROL} get_server_list"), "command-as-argument"),
    (
        ("Restart=always", f"Restart=always\nExecStartPost=/bin/sh -c '{CONTROL} start_server -uid 0'"),
        "command-as-argument",
    ),
    (("Restart=always", "RemainAfterExit=yes\nRestart=always"), "active-without-daemon"),
    (("Restart=always", "RestartSec=1"), "no-restart"),
    (("Restart=always", "Restart=on-failure"), "no-restart"),
    (("After=", "After=graphical.target "), "ordering-cycle"),
    (("After=", "After=multi-user.target "), "ordering-cycle"),
    (("[Unit]", "[Unit]\nRequires=docker.service"), "depends-on-docker"),
    (("[Unit]", "[Unit]\nAfter=cron.service"), "compute-mode-by-cron"),
    (("/run/nvidia-mps/0", "/tmp/nvidia-mps-0"), "pipe-directory-under-tmp"),
    (("/run/nvidia-mps/0", "/dev/shm/nvidia-mps"), "pipe-directory-in-shm"),
    (("/run/nvidia-mps/0", "/tmp/nvidia-mps"), "default-pipe-directory"),
    (("/run/nvidia-mps/0", "/root/mps"), "pipe-directory-closed"),
    (("/run/nvidia-mps/0", "/run/" + "x" * 83), "pipe-directory-too-long"),
    (("Environment=", "#"), "default-pipe-directory"),
    (("-i GPU-1 -c", "-c"), "compute-mode-of-all-gpus"),
    (("Type=exec", "Environment=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G"), "daemon-environment-limit"),
    (("Type=exec", "Environment=CUDA_MPS_PIPE_DIR=/run/x"), "misspelt-variable"),
    (
        (
            "Restart=always",
            f"Restart=always\nExecStartPost=/bin/sh -c 'echo set_default_client_priority 1 | {CONTROL}'",
        ),
        "defaults-without-read-back",
    ),
    (("ExecStart=/", "ExecStart=-/"), "start-failure-hidden"),
]


@pytest.mark.parametrize(("change", "fault"), FAULTS, ids=[f"{fault}-{n}" for n, (_, fault) in enumerate(FAULTS)])
def test_each_fault_of_a_unit_is_found_and_no_other_is_surer(change: tuple[str, str], fault: str) -> None:
    assert change[0] in GOOD_UNIT
    assert in_unit(GOOD_UNIT.replace(change[0], change[1], 1))[0] == fault


def test_87_bytes_are_enough_for_a_pipe_directory() -> None:
    assert in_unit(GOOD_UNIT.replace("/run/nvidia-mps/0", "/run/" + "x" * 82)) == []


def test_limits_that_are_read_back_are_in_order() -> None:
    both = "echo set_default_client_priority 1; echo get_default_client_priority"
    text = GOOD_UNIT.replace("Restart=always", f"Restart=always\nExecStartPost=/bin/sh -c '({both}) | {CONTROL}'")
    assert in_unit(text) == []


def test_a_line_that_goes_on_is_one_line() -> None:
    assert in_unit(GOOD_UNIT.replace("ExecStop=", f"ExecStop=/bin/echo quit \\\n  | {CONTROL}\n#"))[0] == (
        "pipeline-without-shell"
    )


SCRIPTS = [
    ("@reboot root nvidia-smi --compute-mode=EXCLUSIVE_PROCESS", "compute-mode-by-cron"),
    ("nvidia-smi -c ${CUDA_VISIBLE_DEVICES}", "compute-mode-of-all-gpus"),
    ("nvidia-smi -c 0 ${ID}", "compute-mode-of-all-gpus"),
    ("if [[ $CUDA_VISIBLE_DEVICES == *${MPS_DEV_ID}* ]]; then", "substring-test"),
    ("nvidia-cuda-mps-control start_server -uid $UID && echo started", "command-as-argument"),
    ("nvidia-cuda-mps-control -quit || true", "quit-as-argument"),
    ("rm -rf /run/nvidia/mps", "pipe-directory-removed"),
    ("systemctl restart nvidia-mps.service", "restart-on-every-run"),
    ("systemctl start nvidia-mps 2>/dev/null || true", "start-failure-hidden"),
    ("export CUDA_MPS_DEVICE_MEM_LIMIT=0=1G", "misspelt-variable"),
    ("export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=8192MB", "limit-bypassed"),
    ("export CUDA_DEVICE_MAX_CONNECTIONS=8", "max-connections-raised"),
]


@pytest.mark.parametrize(("line", "fault"), SCRIPTS)
def test_each_fault_of_a_script_is_found(line: str, fault: str) -> None:
    assert in_unit(f"#!/bin/bash\n{line}\n")[0] == fault
    assert in_unit(f"#!/bin/bash\n# {line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "echo quit | nvidia-cuda-mps-control",
        "nvidia-cuda-mps-control -d",
        'echo "get_server_list" | nvidia-cuda-mps-control 2>/dev/null',
        "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS",
        "nvidia-smi -q -d COMPUTE",
        "rm -rf /tmp/build",
        "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G",
        "export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0",
        "export CUDA_DEVICE_MAX_CONNECTIONS=2",
    ],
)
def test_a_good_line_of_a_script_is_let_be(line: str) -> None:
    assert in_unit(line) == []


@given(st.text())
def test_no_unit_or_script_is_too_strange(text: str) -> None:
    units.lint(text)
    units.lint(f"[Service]\nExecStart={text}\nExecStop={CONTROL} {text}\n")


# -- environments


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, []),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "8192MB"}, ["limit-bypassed"]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=1G"}, ["limit-bypassed"]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "''0=1G,1=512MB''"}, ["quotes-in-value", "limit-bypassed"]),
        ({"CUDA_MPS_DEVICE_MEM_LIMIT": "0=1G"}, ["misspelt-variable"]),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/0"}, []),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, ["max-connections-raised"]),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "2"}, []),
        ({"PATH": "/usr/bin"}, []),
    ],
)
def test_the_environment_of_a_client_with_one_gpu(variables: dict[str, str], found: list[str]) -> None:
    assert [one.name for one in environment.lint(variables, ["GPU-1"])] == found


# -- containers

INSTANCE = Instance("0", ("0",), "/run/nvidia-mps/0")
SERVICE: dict[str, Any] = {
    "environment": {"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/0"},
    "volumes": [{"type": "bind", "source": "/run/nvidia-mps/0", "target": "/run/nvidia-mps/0"}],
    "ipc": "host",
    "gpus": [{"device_ids": ["0"]}],
}


def in_service(instances: Optional[list[Instance]] = None, driver: str = "580.159.04", **changes: Any) -> list[str]:
    service = {key: value for key, value in {**SERVICE, **changes}.items() if value is not None}
    (container,) = containers.read(json.dumps({"services": {"vllm": service}}))
    found = containers.lint(container, [INSTANCE] if instances is None else instances, driver)
    return [one.name for one in in_order(found)]


def test_a_good_service_has_no_fault() -> None:
    assert in_service() == []
    assert in_service(instances=[]) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"volumes": []}, "container-without-pipe-directory"),
        ({"volumes": ["/data:/data"]}, "container-without-pipe-directory"),
        ({"volumes": ["/run/nvidia-mps/0:/mps:rw"]}, "container-pipe-variable"),
        ({"environment": []}, "container-pipe-variable"),
        ({"volumes": ["/srv/other:/run/nvidia-mps/0"]}, "pipe-directory-wrong"),
        ({"ipc": "true"}, "container-ipc"),
        ({"ipc": True}, "container-ipc"),
        ({"ipc": None}, "container-ipc"),
        ({"ipc": "private"}, "container-ipc"),
        ({"gpus": None}, "container-no-gpu"),
        (
            {"environment": ["CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0", "CUDA_VISIBLE_DEVICES=3"]},
            "container-visible-devices",
        ),
        (
            {"environment": ["CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1G"]},
            "limit-bypassed",
        ),
    ],
)
def test_each_fault_of_a_service_is_found_first(changes: dict[str, Any], fault: str) -> None:
    assert in_service(**changes)[0] == fault


@pytest.mark.parametrize("ipc", ["host", "shareable", "container:mps", "service:mps"])
def test_a_shared_ipc_namespace_is_none(ipc: str) -> None:
    assert in_service(ipc=ipc) == []


def test_the_host_s_shared_memory_does_as_well() -> None:
    assert in_service(ipc=None, volumes=["/run/nvidia-mps/0:/run/nvidia-mps/0", "/dev/shm:/dev/shm"]) == []


@pytest.mark.parametrize(("driver", "sure"), [("535.161.08", "likely"), ("580.159.04", "possible")])
def test_newer_drivers_may_not_need_it(driver: str, sure: str) -> None:
    (container,) = containers.read(json.dumps({"services": {"a": {**SERVICE, "ipc": "private"}}}))
    (one,) = containers.lint(container, [INSTANCE], driver)
    assert (one.name, one.certainty) == ("container-ipc", sure)


@pytest.mark.parametrize(
    ("user", "server_user", "multi_user", "found"),
    [
        ("1000:1000", "1000", False, []),
        ("1000", "2000", False, ["container-user"]),
        (None, "root", False, []),
        (None, "1000", False, ["container-user"]),
        ("1000", "root", True, []),
        ("1000", None, False, []),
    ],
)
def test_the_container_s_user_beside_the_server_s(
    user: Optional[str], server_user: Optional[str], multi_user: bool, found: list[str]
) -> None:
    instance = replace(INSTANCE, server_user=server_user, multi_user=multi_user)
    assert in_service([instance], user=user) == found


def test_a_daemon_in_a_container_needs_the_host_s_process_ids() -> None:
    command = ["nvidia-cuda-mps-control", "-f"]
    assert in_service(command=command, instances=[]) == ["clients-hidden-by-pid-namespace"]
    assert in_service(command=command, instances=[], pid="host") == []
    assert in_service(command=command) == ["several-managers", "clients-hidden-by-pid-namespace"]


# -- services that are no clients


@pytest.mark.parametrize(
    ("service", "found"),
    [
        ({"command": "nvidia-smi -c EXCLUSIVE_PROCESS"}, ["several-managers", "compute-mode-of-all-gpus"]),
        ({"command": ["nvidia-smi", "-i", "0", "-c", "3"]}, ["several-managers"]),
        (
            {"entrypoint": ["/bin/sh", "-c"], "command": ["nvidia-smi --compute-mode=3 && sleep infinity"]},
            ["several-managers", "compute-mode-of-all-gpus"],
        ),
        ({"command": "nvidia-cuda-mps-control -f", "pid": "host"}, ["several-managers"]),
        (
            {"command": ["bash", "-c", "nvidia-cuda-mps-control -d && tail -f /dev/null"], "pid": "host"},
            ["several-managers"],
        ),
        ({"image": "nvidia/mps", "ipc": "shareable", "volumes": ["nvidia_mps:/tmp/nvidia-mps"]}, ["several-managers"]),
        ({"image": "redis:7", "command": "redis-server"}, []),
        ({"image": "postgres", "environment": {"POSTGRES_PASSWORD": "x"}, "ports": ["5432:5432"]}, []),
    ],
    ids=["modes", "the mode of one GPU", "modes in a shell", "daemon", "daemon in a shell", "image", "cache", "store"],
)
def test_a_service_that_manages_is_named_as_such_and_never_judged_as_a_client(
    service: dict[str, Any], found: list[str]
) -> None:
    for more in ({}, {"runtime": "nvidia"}) if found else ({},):  # with a GPU any other is a CUDA program
        (container,) = containers.read(json.dumps({"services": {"a": {**service, **more}}}))
        assert [one.name for one in in_order(containers.lint(container, [INSTANCE], "580.159.04"))] == found
        assert not container.is_client


def test_nvidia_s_sample_on_a_host_that_has_instances() -> None:
    """One service sets modes, one runs a daemon, and only the third is a client."""
    sample = {
        "exclusive": {"command": "nvidia-smi -c EXCLUSIVE_PROCESS", "runtime": "nvidia"},
        "mps-daemon": {"image": "nvidia/mps", "ipc": "shareable", "volumes": ["nvidia_mps:/tmp/nvidia-mps"]},
        "tts": {"ipc": "container:mps-daemon", "volumes": ["nvidia_mps:/tmp/nvidia-mps"], "runtime": "nvidia"},
    }
    modes, daemon, client = containers.read(json.dumps({"services": sample}))
    assert (containers.role(modes), containers.role(client)) == (" (sets compute modes)", "")
    assert containers.role(daemon) == " (starts a control daemon of its own)"
    assert [one.is_client for one in (modes, daemon, client)] == [False, False, True]
    managers = [one for each in (modes, daemon) for one in containers.lint(each, [INSTANCE], "580.159.04")]
    assert {one.name for one in managers} == {"several-managers", "compute-mode-of-all-gpus"}
    assert all("this host has the instance 0" in one.evidence for one in managers if one.name == "several-managers")


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'nvidia-smi -i 0 -c 3; python serve.py'",
        "sh -c 'until echo get_server_list | nvidia-cuda-mps-control; do sleep 1; done; python serve.py'",
        "python serve.py",
    ],
)
def test_a_service_that_runs_a_program_as_well_is_judged_as_a_client(command: str) -> None:
    (container,) = containers.read(json.dumps({"services": {"a": {**SERVICE, "volumes": [], "command": command}}}))
    assert container.is_client
    assert not container.runs_daemon
    assert "container-without-pipe-directory" in [one.name for one in containers.lint(container, [INSTANCE], "580.1")]


@pytest.mark.parametrize(
    "service",
    [
        {"environment": {"CUDA_VISIBLE_DEVICES": "0"}},
        {"environment": ["NVIDIA_VISIBLE_DEVICES=all"]},
        {"deploy": {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}}},
    ],
)
def test_whatever_asks_for_a_gpu_or_sets_a_variable_of_cuda_is_judged_as_a_client(service: dict[str, Any]) -> None:
    (container,) = containers.read(json.dumps({"services": {"a": service}}))
    assert container.is_client


def test_a_container_that_was_asked_about_is_judged_whatever_it_asks_for() -> None:
    row = {"Name": "/a", "Config": {"Env": [], "Cmd": ["serve"]}, "HostConfig": {}}
    (container,) = containers.read(json.dumps([row]))
    assert "container-no-gpu" in [one.name for one in containers.lint(container, [INSTANCE], "580.1")]


INSPECTED: dict[str, Any] = {
    "Name": "/vllm",
    "Config": {"Env": ["PATH=/usr/bin", "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0"], "User": "", "Cmd": ["serve"]},
    "HostConfig": {
        "IpcMode": "host",
        "PidMode": "",
        "Binds": ["/run/nvidia-mps/0:/run/nvidia-mps/0"],
        "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
    },
    "Mounts": [{"Type": "bind", "Source": "/run/nvidia-mps/0", "Destination": "/run/nvidia-mps/0"}],
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"IpcMode": "private"}, ["container-ipc"]),
        ({"DeviceRequests": None}, ["container-no-gpu"]),
    ],
)
def test_what_docker_inspect_prints(changes: dict[str, Any], found: list[str]) -> None:
    row = {**INSPECTED, "HostConfig": {**INSPECTED["HostConfig"], **changes}}
    (container,) = containers.read(json.dumps([row]))
    assert container.name == "vllm"
    assert [one.name for one in containers.lint(container, [INSTANCE], "580.159.04")] == found


def test_a_mount_that_is_missing_in_docker_inspect() -> None:
    row = {**INSPECTED, "Mounts": [], "HostConfig": {"IpcMode": "private"}}
    (container,) = containers.read(json.dumps([row]))
    names = [one.name for one in in_order(containers.lint(container, [INSTANCE], "535.1"))]
    assert names == ["container-without-pipe-directory", "container-ipc", "container-no-gpu"]


YAML = 'services:\n  vllm:\n    ipc: "true"\n    volumes: []\n'


def test_yaml_is_read_where_pyyaml_is() -> None:
    (container,) = containers.read(YAML)
    assert container.ipc == "true"


def test_without_pyyaml_one_line_says_how_to_get_json(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_yaml(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    with pytest.raises(BadValue, match="docker compose config --format json"):
        containers.read(YAML)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "null", '"text"', "[1, 2]", "a: [b", '{"services": 3}'])
def test_what_is_no_container_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadValue) as refused:
        containers.read(text)
    assert "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
KEYS = ["environment", "volumes", "ipc", "pid", "user", "gpus", "deploy", "command", "Config", "HostConfig", "Mounts"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from([*KEYS, "Env", "Binds"]), JSON))
def test_no_configuration_is_too_strange(service: dict[str, Any], inspected: dict[str, Any]) -> None:
    for data in ({"services": {"a": service}}, [{"Config": inspected, "HostConfig": inspected, **inspected}]):
        try:
            found = containers.read(json.dumps(data))
        except BadValue:
            continue
        for one in found:
            containers.lint(one, [INSTANCE], None)
