"""What docs/security.md says of local users, tried on every host; and how far the units are sandboxed."""

from __future__ import annotations

import json
from typing import Any, Callable

import pytest

testinfra_hosts = ["ansible://gpu-nodes"]

EXPOSURE = {"mps-control@0.service": 4.0, "mps-front-door@0.service": 2.8, "mps-health.service": 3.7}
"""The most that `systemd-analyze security` may find, of 10."""

PIPE = "/run/nvidia-mps/0"


@pytest.fixture
def somebody(host: Any) -> Callable[..., Any]:
    """Runs a command as a local user without any privilege, in one more group if that is named."""

    def run(command: str, group: str = "nogroup") -> Any:
        return host.run(f"setpriv --reuid=nobody --regid=nogroup --groups={group} sh -c %s", f"cd /; {command}")

    return run


@pytest.mark.parametrize("unit", EXPOSURE)
def test_a_unit_is_exposed_no_further_than_it_was(host: Any, unit: str) -> None:
    found = host.run(f"systemd-analyze security --no-pager --threshold={round(EXPOSURE[unit] * 10)} {unit}")
    assert found.rc == 0, found.stdout.splitlines()[-1]


def test_the_daemon_runs_without_what_it_never_needs(host: Any) -> None:
    pid = host.service("mps-control@0").systemd_properties["MainPID"]
    status = dict(line.split(":\t", 1) for line in host.file(f"/proc/{pid}/status").content_string.splitlines())
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    capabilities = int(status["CapBnd"], 16)
    net_admin, net_raw, sys_module, sys_rawio, sys_boot, mac_admin = 12, 13, 16, 17, 22, 33
    for number in (net_admin, net_raw, sys_module, sys_rawio, sys_boot, mac_admin):
        assert not capabilities >> number & 1, number


@pytest.mark.parametrize("path", [PIPE, "/run/nvidia-mps", "/etc/mps", "/etc/mps/0.conf", "/usr/local/bin/mpsctl"])
def test_a_local_user_cannot_put_anything_in_our_place(somebody: Callable[..., Any], path: str) -> None:
    assert somebody(f"test -w {path}").rc != 0
    assert somebody(f"mv {path} {path}.away").rc != 0
    assert somebody(f"ln -sfn /tmp/mine {PIPE}/control").rc != 0


@pytest.mark.parametrize("name", ["daemon.env", "session.lock", "admission.lock"])
def test_a_local_user_cannot_read_or_hold_what_is_ours_alone(
    host: Any, somebody: Callable[..., Any], name: str
) -> None:
    path = f"/run/mps-fleet/0/{name}"
    assert host.file(path).exists
    assert somebody(f"cat {path}").rc != 0
    assert somebody(f"flock --nonblock {path} true").rc != 0


def test_a_local_user_can_neither_end_nor_stop_the_daemon(
    host: Any, somebody: Callable[..., Any], ask: Callable[[str, str], str]
) -> None:
    pid = host.service("mps-control@0").systemd_properties["MainPID"]
    for signal in ("TERM", "STOP", "KILL"):
        assert somebody(f"kill -{signal} {pid}").rc != 0
    somebody(f"echo quit | CUDA_MPS_PIPE_DIRECTORY={PIPE} nvidia-cuda-mps-control")
    assert host.service("mps-control@0").systemd_properties["MainPID"] == pid
    assert ask("0", "get_default_active_thread_percentage") == "50.0"


def test_a_local_user_gets_no_command_to_the_daemon(
    host: Any, somebody: Callable[..., Any], ask: Callable[[str, str], str]
) -> None:
    """The front door passes no command on, and the daemon's own directory is closed: also before 550, whose daemons
    take any user's."""
    for directory in (PIPE, "/run/mps-fleet/0/pipe"):
        setter = "set_default_device_pinned_mem_limit 0 20M"
        said = somebody(f"echo {setter} | CUDA_MPS_PIPE_DIRECTORY={directory} timeout 30 nvidia-cuda-mps-control 2>&1")
        assert "20M" not in said.stdout
        assert ask("0", "get_default_device_pinned_mem_limit 0") == "4G"
    assert host.run("mpsctl status 0").rc == 0


def test_who_names_no_instance_gets_none(somebody: Callable[..., Any]) -> None:
    """The default directory of CUDA leads nowhere: nobody becomes a client without having asked for it."""
    said = somebody("echo get_default_active_thread_percentage | nvidia-cuda-mps-control 2>&1")
    assert "Cannot find MPS control daemon process" in said.stdout


def test_with_a_group_only_its_members_are_let_in(
    host: Any, somebody: Callable[..., Any], as_desired: Callable[..., bool], eventually: Callable[..., None]
) -> None:
    """Whoever is no member is told so (error 805); a member waits for its server, which no host without a GPU has."""
    client = f"CUDA_MPS_PIPE_DIRECTORY={PIPE} /usr/lib/mps-lab/simulated_client.py --timeout 5 </dev/null"
    conf = host.file("/etc/mps/0.conf").content_string
    assert host.run("sed -i '/^PipeDirectory/a Group=video' /etc/mps/0.conf").rc == 0
    try:
        assert host.run("systemctl reload mps-control@0").rc == 0
        assert json.loads(somebody(client).stdout)["outcome"] == "error-805"
        told = "journalctl -q -o cat MPS_INSTANCE=0 MPS_REASON=not-in-group"
        eventually("the journal says why", lambda: "refused" in host.run(told).stdout)
        assert json.loads(somebody(client, "video").stdout)["outcome"] == "hang"
    finally:
        host.run("sed -i '/^Group=video$/d' /etc/mps/0.conf; systemctl restart mps-control@0")
    assert host.file("/etc/mps/0.conf").content_string == conf
    assert as_desired("0")


OF_THE_MANAGER = {
    "CUDA_MPS_LOG_DIRECTORY": "/tmp/theirs",
    "CUDA_MPS_PIPE_DIRECTORY": "/tmp/theirs",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
    "CUDA_VISIBLE_DEVICES": "9",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
    "NVIDIA_VISIBLE_DEVICES": "none",
    "LD_PRELOAD": "/tmp/theirs.so",
    "LD_LIBRARY_PATH": "/tmp",
    "PYTHONPATH": "/tmp",
    "PATH": "/tmp",
    "MPS_CONTROL_FLAGS": "--nonsense",
}


def test_nothing_of_the_manager_s_environment_reaches_the_daemon(host: Any, as_desired: Callable[..., bool]) -> None:
    pid = host.service("mps-control@1").systemd_properties["MainPID"]
    names = {line.partition("=")[0] for line in host.file(f"/proc/{pid}/environ").content_string.split("\0") if line}
    assert names == {"PATH", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"}
    before = host.file(f"/proc/{pid}/environ").content_string
    path = next(line for line in host.run("systemctl show-environment").stdout.splitlines() if line.startswith("PATH="))
    given = " ".join(f"'{name}={value}'" for name, value in OF_THE_MANAGER.items())
    try:
        assert host.run(f"systemctl set-environment {given}").rc == 0
        assert host.run("systemctl restart mps-control@1").rc == 0
        pid = host.service("mps-control@1").systemd_properties["MainPID"]
        assert host.file(f"/proc/{pid}/environ").content_string == before
        assert as_desired("1")
        assert host.run("systemctl start mps-health.service").rc == 0
        said = host.run("journalctl -q -o cat -b -u mps-control@1 -u mps-health | grep -c /tmp/theirs").stdout.strip()
        assert said == "0"
    finally:
        host.run(f"systemctl unset-environment {' '.join(OF_THE_MANAGER)}; systemctl set-environment '{path}'")


@pytest.mark.parametrize(
    ("unit", "adjust", "most", "policy"),
    [
        ("mps-control@0.service", "-500", "infinity", "continue"),
        ("mps-front-door@0.service", "-900", str(512 << 20), "continue"),
        ("mps-health.service", "300", str(1 << 30), "stop"),
    ],
)
def test_who_goes_first_when_memory_is_short(host: Any, unit: str, adjust: str, most: str, policy: str) -> None:
    shown = host.run(f"systemctl show -p OOMScoreAdjust -p MemoryMax -p OOMPolicy {unit}").stdout.split()
    assert sorted(shown) == [f"MemoryMax={most}", f"OOMPolicy={policy}", f"OOMScoreAdjust={adjust}"]
