"""Field reports of containers, units and scripts: each row of docs/field-reports.md is a test of its kind."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from fakes import Host
from mpsctl.adapters import hardware, selinux
from mpsctl.causes import environment
from mpsctl.model import checked_values
from mpsctl.model.errors import BadValue
from reporting import CONTROL, begin, in_log, in_service, in_text, in_unit, named, on_host, report

pytestmark = pytest.mark.usefixtures("shown_processes")


# -- containers


@report("B29")
@pytest.mark.parametrize(("kind", "found"), [("var_run_t", {"selinux-label"}), ("container_file_t", set())])
def test_a_label_that_keeps_containers_out(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str, found: set[str]
) -> None:
    begin(host)
    (host.places.root / "sys/fs/selinux").mkdir(parents=True)
    (host.places.root / "sys/fs/selinux/enforce").write_text("1")
    monkeypatch.setattr(selinux, "label", lambda path: f"system_u:object_r:{kind}:s0")
    assert on_host(host) == found


@report("B29")
@pytest.mark.parametrize("why", ["permission denied", "invalid argument"])
def test_a_label_that_could_not_be_set(why: str) -> None:
    assert in_text(f"lsetxattr /mps/pipe: {why}") == ["selinux-label"]


@report("B31")
@pytest.mark.parametrize("ipc", ["true", "private", "", None])
def test_a_container_without_mount_and_ipc(ipc: Optional[str]) -> None:
    found = in_service({"ipc": ipc, "volumes": []})
    assert found == ["container-without-pipe-directory", "container-ipc"]


@report("B32")
def test_a_pipe_directory_in_shared_memory() -> None:
    assert named(environment.directory("/dev/shm/nvidia-mps")) == ["pipe-directory-in-shm"]


@report("B34")
@pytest.mark.parametrize("uid", [0, 1000])
def test_clients_that_a_pid_namespace_hides(uid: int) -> None:
    line = f"NEW CLIENT 0 from user {uid}: Server is not ready, push client to pending list"
    assert in_log(line) == ["clients-hidden-by-pid-namespace"]


@report("B35")
@pytest.mark.parametrize("shell", ["'sh'", "'/bin/bash'", "‘sh’"])
def test_a_driver_root_without_a_shell(shell: str) -> None:
    text = f"chroot: failed to run command {shell}: No such file or directory"
    assert in_text(text) == ["driver-root-without-shell"]
    assert {"/usr/sbin", "/usr/bin", "/opt/nvidia/bin"} <= set(hardware.SEARCH_PATH)


# -- units and scripts


@report("B37")
@pytest.mark.parametrize("rest", [f"| {CONTROL}", "> /run/pipe", "&& true", "2>&1", "$(cat /run/x)"])
def test_a_line_that_needs_a_shell_and_has_none(rest: str) -> None:
    assert in_unit("[Service]", f"ExecStop=/bin/echo quit {rest}") == ["pipeline-without-shell"]
    assert in_unit("[Service]", f"ExecStop=/bin/sh -c 'echo quit {rest}'") == []


@report("B38")
@pytest.mark.parametrize("word", ["quit", "-q", "-quit", "--quit"])
def test_quit_as_an_argument(word: str) -> None:
    assert in_unit("[Service]", f"ExecStop={CONTROL} {word}") == ["quit-as-argument"]


@report("B39")
@pytest.mark.parametrize("target", ["graphical.target", "multi-user.target"])
def test_a_unit_behind_its_own_target(target: str) -> None:
    assert in_unit("[Unit]", f"After={target}", "[Install]", "WantedBy=multi-user.target") == ["ordering-cycle"]
    assert in_text("multi-user.target: Found ordering cycle on nvidia-mps-gpu0.service/start") == ["ordering-cycle"]


@report("B40")
@pytest.mark.parametrize("mode", ["--compute-mode=EXCLUSIVE_PROCESS", "-c EXCLUSIVE_PROCESS", "-i 0 -c 3"])
def test_a_compute_mode_by_cron(mode: str) -> None:
    assert in_unit(f"@reboot root nvidia-smi {mode}")[0] == "compute-mode-by-cron"
    assert "compute-mode-by-cron" in in_unit("[Unit]", "After=cron.service", "[Service]", f"ExecStart={CONTROL} -f")


@report("B41")
def test_a_unit_that_hides_its_daemon_s_end() -> None:
    found = in_unit(
        *("[Unit]", "Requires=docker.service", "[Service]", "Type=forking", "RemainAfterExit=yes"),
        f"ExecStart=/bin/sh -c '{CONTROL} -d || true'",
    )
    assert {"depends-on-docker", "active-without-daemon", "start-failure-hidden"} <= set(found)


@report("B42")
@pytest.mark.parametrize("line", ["systemctl restart nvidia-mps.service", "systemctl --no-block restart nvidia-mps@0"])
def test_a_restart_at_every_run(line: str) -> None:
    assert in_unit(line) == ["restart-on-every-run"]


@report("B43")
@pytest.mark.parametrize("mode", [0, 1, 2, 3, "3", "EXCLUSIVE_PROCESS", "exclusive_thread", None, True])
def test_a_compute_mode_is_a_word(mode: object) -> None:
    with pytest.raises(BadValue):
        checked_values.check_compute_mode(mode)


@report("B43")
@pytest.mark.parametrize("line", ["nvidia-smi --compute-mode=3", "nvidia-smi -c 3", "nvidia-smi -pm 1 -c 3"])
def test_a_compute_mode_of_every_gpu(line: str) -> None:
    assert in_unit(line) == ["compute-mode-of-all-gpus"]


@report("B44")
def test_a_directory_of_tmp_in_a_container() -> None:
    service = {"volumes": ["/tmp/nvidia-mps-0:/mps"], "environment": ["CUDA_MPS_PIPE_DIRECTORY=/mps"], "ipc": "host"}
    assert "pipe-directory-under-tmp" in in_service(service)


@report("B44")
def test_a_change_that_never_reached_the_daemon(host: Host) -> None:
    begin(host)
    host.desired(DeviceMemoryLimit="6G")
    assert on_host(host) == {"not-as-desired"}


@report("B83")
@pytest.mark.parametrize(
    ("service", "manages"),
    [
        ({"command": "nvidia-smi -c EXCLUSIVE_PROCESS", "runtime": "nvidia"}, True),
        ({"image": "nvidia/mps", "ipc": "shareable", "volumes": ["nvidia_mps:/tmp/nvidia-mps"]}, True),
        ({"ipc": "container:mps-daemon", "volumes": ["nvidia_mps:/tmp/nvidia-mps"]}, False),
    ],
)
def test_a_compose_file_that_manages_mps_beside_an_instance(service: dict[str, Any], manages: bool) -> None:
    found = in_service(service)
    assert ("several-managers" in found) == manages
    assert ("container-without-pipe-directory" in found or "pipe-directory-wrong" in found) != manages
