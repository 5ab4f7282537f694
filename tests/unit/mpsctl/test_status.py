"""status: each thing that can be amiss is one finding, read back from the host."""

from __future__ import annotations

from typing import Optional

import pytest
from mpsctl.observe.status import Status

from fakes import FakeDaemon, Host, h200, uuid
from mpsctl.adapters import procfs
from mpsctl.observe import client_environment, gpus, status

MIB = 1 << 20


def look(host: Host, name: str = "0") -> Status:
    (found,) = status.status_of_all(host.world, [name])
    return found


@pytest.fixture
def running(host: Host) -> FakeDaemon:
    """Instance 0 runs with everything desired, and in the desired state."""
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    host.systemd.unit("mps-control@0.service").enabled = True
    return host.start()


def only_finding(host: Host) -> str:
    found = look(host)
    assert not found.as_desired
    assert len(found.findings) == 1, found.findings
    assert "\n" not in found.findings[0]
    return found.findings[0]


def test_an_instance_that_is_in_the_desired_state_has_no_finding(host: Host, running: FakeDaemon) -> None:
    running.start_server(9001, clients=[1, 2])
    found = look(host)
    assert found.findings == []
    assert found.as_desired
    assert found.active
    assert found.door_open
    assert found.daemon_answers
    assert found.clients == [1, 2]
    assert not found.reload_needed
    assert found.restart_needed is None


def test_every_value_stands_beside_the_desired_state(host: Host, running: FakeDaemon) -> None:
    running.start_server(9001)
    found = look(host)
    assert [(v.what, v.desired, v.shown, v.in_force) for v in found.values] == [
        ("memory limit of device 0", "4096 MiB", "4G", True),
        ("active thread percentage", "50 %", "50.0", True),
        ("client priority", "1", "1", True),
    ]
    (server,) = found.servers
    assert [(v.what, v.in_force) for v in server.values] == [
        ("memory limit of device 0", True),
        ("active thread percentage", True),
    ]
    assert server.state == "ACTIVE"


def test_the_gpu_is_shown_under_every_numbering(host: Host, running: FakeDaemon) -> None:
    (shown,) = look(host).gpus
    assert shown["ordinal"] == shown["index"] == 0
    assert shown["uuid"] == uuid(0)
    assert shown["compute_mode"] == shown["compute_mode_desired"] == "exclusive_process"


@pytest.mark.usefixtures("running")
def test_looking_changes_nothing(host: Host) -> None:
    before, setters = host.snapshot(), list(host.running().setters)
    look(host)
    assert host.running().setters == setters
    assert host.snapshot() == before
    assert host.systemd.acts == []


@pytest.mark.usefixtures("running")
def test_a_unit_that_is_not_enabled(host: Host) -> None:
    host.systemd.unit("mps-control@0.service").enabled = False
    assert "is not enabled: it will not start at boot" in only_finding(host)


@pytest.mark.parametrize(
    ("state", "result", "says"),
    [
        ("failed", "exit-code", "is failed (failed); see `journalctl -u mps-control@0.service`"),
        ("inactive", "exec-condition", "skipped on this host, the journal says why"),
    ],
)
def test_a_unit_that_does_not_run(host: Host, state: str, result: str, says: str) -> None:
    host.desired()
    unit = host.systemd.unit("mps-control@0.service")
    unit.enabled, unit.active_state, unit.sub_state, unit.result = True, state, state, result
    assert says in only_finding(host)


def test_a_unit_in_a_crash_loop(host: Host) -> None:
    host.desired()
    for _ in range(4):
        host.kill(host.start().pid)
    unit = host.systemd.unit("mps-control@0.service")
    unit.enabled, unit.active_state, unit.sub_state, unit.main_pid = True, "activating", "auto-restart", 0
    assert "3 starts in a row did not last" in only_finding(host)


def test_an_exclusive_gpu_without_its_daemon_is_useless_to_everybody(host: Host, running: FakeDaemon) -> None:
    host.kill(running.pid)
    unit = host.systemd.unit("mps-control@0.service")
    unit.active_state, unit.main_pid = "failed", 0
    assert any("no daemon serves it: nobody can use it" in finding for finding in look(host).findings)


@pytest.mark.usefixtures("running")
def test_another_compute_mode_than_desired(host: Host) -> None:
    host.nvml.all[0] = h200(0)
    assert "compute mode is default, desired exclusive_process" in only_finding(host)
    assert look(host).reload_needed


def test_a_limit_that_is_not_in_force(host: Host, running: FakeDaemon) -> None:
    running.limits["0"] = 0
    assert only_finding(host) == "memory limit of device 0 (default): the daemon shows nothing, desired 4096 MiB"
    assert look(host).reload_needed


def test_a_limit_that_a_server_does_not_have(host: Host, running: FakeDaemon) -> None:
    running.start_server(9001).limits["0"] = 8192 * MIB
    assert only_finding(host) == "memory limit of device 0 (server 9001): the daemon shows 8G, desired 4096 MiB"


def test_a_percentage_and_a_priority_that_are_not_in_force(host: Host, running: FakeDaemon) -> None:
    running.percentage, running.priority = 100.0, 0
    found = look(host)
    assert found.findings == [
        "active thread percentage (default): the daemon shows 100.0, desired 50 %",
        "client priority (default): the daemon shows 0, desired 1",
    ]


def test_a_daemon_that_was_restarted_behind_our_back(host: Host, running: FakeDaemon) -> None:
    running.limits.clear()
    running.percentage, running.priority = 100.0, 0
    assert len(look(host).findings) == 3


def test_a_server_in_fault(host: Host, running: FakeDaemon) -> None:
    running.start_server(9001).state = "FAULT"
    assert "server 9001 is in state FAULT" in only_finding(host)


def test_the_oldest_daemon_tells_no_state(host: Host, running: FakeDaemon) -> None:
    running.version = 535
    running.start_server(9001)
    found = look(host)
    assert found.as_desired
    assert found.servers[0].state is None


def test_a_daemon_whose_session_is_held(host: Host, running: FakeDaemon) -> None:
    running.not_served = True
    assert "may be held by pid 4711" in only_finding(host)
    assert not look(host).daemon_answers


@pytest.mark.usefixtures("running")
def test_a_door_closed_by_hand(host: Host) -> None:
    (host.pipe_root / "0" / "control").unlink()
    assert "the front door is closed: no client finds the daemon" in only_finding(host)
    assert look(host).reload_needed


@pytest.mark.usefixtures("running")
def test_other_gpus_than_desired_need_a_restart(host: Host) -> None:
    host.desired(GPUs="1", DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    assert f"a restart is needed: the daemon serves {uuid(0)}, desired {uuid(1)}" in only_finding(host)
    assert look(host).restart_needed


@pytest.mark.usefixtures("running")
def test_another_pipe_directory_than_desired_needs_a_restart(host: Host) -> None:
    host.desired(PipeDirectory=f"{host.pipe_root}/moved", ComputeMode="exclusive_process")
    assert "a restart is needed: the daemon serves" in look(host).findings[0]


@pytest.mark.usefixtures("running")
def test_a_gpu_that_is_gone(host: Host) -> None:
    host.nvml.lost = {0}
    findings = look(host).findings
    assert any("found GPU 0, expected one of this host's: 1 = " in finding for finding in findings)
    assert any(f"{uuid(0)}, which the daemon serves, is gone" in finding for finding in findings)


@pytest.mark.usefixtures("running")
def test_a_driver_that_does_not_answer(host: Host) -> None:
    host.nvml.driver_up = False
    assert "Driver Not Loaded" in look(host).findings[0]


def test_a_file_that_is_refused(host: Host) -> None:
    host.desired(DeviceMemoryLimit="20")
    found = look(host)
    assert not found.as_desired
    assert "'20'" in found.findings[0]


@pytest.mark.usefixtures("running")
def test_one_broken_instance_does_not_hide_the_others(host: Host) -> None:
    host.desired("1", DeviceMemoryLimit="20")
    found = status.status_of_all(host.world, ["1", "0"])
    assert [(one.instance, one.as_desired) for one in found] == [("1", False), ("0", True)]


@pytest.mark.usefixtures("running")
def test_another_user_than_root_sees_what_the_open_door_shows(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's environment is closed to others; the front door leads to it all the same."""
    monkeypatch.setattr(procfs, "environment", lambda pid: None)
    assert look(host).findings == []


def test_another_user_than_root_is_told_that_a_closed_door_hides_the_rest(
    host: Host, monkeypatch: pytest.MonkeyPatch, running: FakeDaemon
) -> None:
    (host.pipe_root / "0" / "control").unlink()
    monkeypatch.setattr(procfs, "environment", lambda pid: None)
    assert "ask as root" in look(host).findings[0]


@pytest.mark.parametrize("limit", [None, "4G"])
def test_status_is_plain_data(host: Host, limit: Optional[str]) -> None:
    host.desired(DeviceMemoryLimit=limit)
    host.start()
    data = look(host).as_json()
    assert data["instance"] == "0"
    assert data["unit"]["name"] == "mps-control@0.service"


# -- gpus and env


@pytest.mark.usefixtures("running")
def test_the_inventory_names_the_instance_of_each_gpu(host: Host) -> None:
    host.desired("broken", GPUs="1", DeviceMemoryLimit="20")
    assert [(row["index"], row["instance"]) for row in gpus.inventory(host.world)] == [
        (0, "0"),
        (1, None),
        (2, None),
        (3, None),
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("shell", "export CUDA_MPS_PIPE_DIRECTORY={dir}\nexport CUDA_VISIBLE_DEVICES={uuids}"),
        ("systemd", "CUDA_MPS_PIPE_DIRECTORY={dir}\nCUDA_VISIBLE_DEVICES={uuids}"),
        ("json", '{{"CUDA_MPS_PIPE_DIRECTORY": "{dir}", "CUDA_VISIBLE_DEVICES": "{uuids}"}}'),
        (
            "docker",
            "--gpus '\"device={uuids}\"' --ipc host --volume {dir}:{dir} --env CUDA_MPS_PIPE_DIRECTORY={dir}",
        ),
    ],
)
def test_what_a_client_exports(host: Host, kind: str, text: str) -> None:
    public = host.desired("pair", GPUs="2 0", DeviceMemoryLimit="4G")
    expected = text.format(dir=public, uuids=f"{uuid(2)},{uuid(0)}")
    assert client_environment.render(client_environment.of(host.world, "pair"), kind) == expected
