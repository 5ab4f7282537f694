"""verify: a healthy host is silent, and each thing that can be amiss is found under its name and with its level."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Callable, Optional, Sequence

import pytest

from fakes import H200_MIB, RESERVED_MIB, FakeDaemon, Host, h200, uuid
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import hardware, procfs
from mpsctl.checks import checking, client_checks, host_checks, instance_checks
from mpsctl.checks import verify as proofs
from mpsctl.checks.verify import InstanceLook, Report
from mpsctl.cli import verify as cli
from mpsctl.lifecycle import apply
from mpsctl.model.errors import NotReady
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN, Check
from mpsctl.model.gpu import Load
from mpsctl.observe import host as look

UNIT = "mps-control@0.service"
SERVER = 9001


@pytest.fixture
def live(host: Host) -> Host:
    """A host on which instance 0 runs in the desired state, with one server and one client at work."""
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    serve(host, host.start())
    return host


def serve(host: Host, daemon: FakeDaemon, clients: int = 1) -> list[int]:
    """A server of the daemon and its clients, as NVML and /proc show them."""
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=SERVER)
    host.processes[SERVER].parent = daemon.pid
    host.nvml.outside_mib.setdefault(uuid(0), {})[SERVER] = 66
    daemon.start_server(SERVER)
    return [connect(host, daemon) for _ in range(clients)]


def connect(host: Host, daemon: FakeDaemon, **environment: str) -> int:
    pid = cuda(host, {"CUDA_MPS_PIPE_DIRECTORY": public(host), **environment})
    daemon.connect(SERVER, pid)
    assert host.nvml.held_mib is not None
    host.nvml.held_mib.setdefault(uuid(0), {})[pid] = 600
    return pid


def cuda(host: Host, environment: dict[str, str]) -> int:
    return host.process("python3", "python3 serve.py", environment, uid=1000)


def outsider(host: Host, device: str = uuid(0), **environment: str) -> int:
    """A CUDA process that is no MPS client."""
    pid = cuda(host, environment)
    host.nvml.outside_mib.setdefault(device, {})[pid] = 9000
    return pid


def public(host: Host) -> str:
    return str(host.pipe_root / "0")


def amiss(report: Report) -> dict[str, str]:
    """The checks that did not pass, by name, with their levels."""
    return {one.name: one.level for _, one in report.every if one.level != PASS}


def verify(host: Host) -> Report:
    report = proofs.verify(host.world, nvml_timeout_s=5)
    for _, one in report.every:
        assert one.found
        assert "\n" not in one.found + one.expected + one.remedy
        if one.level in (FAIL, WARN):
            assert one.remedy, one
    return report


def only(host: Host, name: str, level: str) -> Check:
    """The one check that does not pass."""
    report = verify(host)
    assert amiss(report) == {name: level}, [one for _, one in report.every if one.level != PASS]
    return next(one for _, one in report.every if one.name == name)


# -- healthy


def test_a_healthy_host_is_silent(live: Host) -> None:
    report = verify(live)
    assert amiss(report) == {}, [one for _, one in report.every if one.level != PASS]
    assert (report.worst, report.exit_code) == (PASS, 0)
    names = [one.name for one in report.instances["0"]]
    assert len(names) == len(set(names))


def test_a_host_without_clients_or_servers_is_silent_too(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    host.start()
    assert amiss(verify(host)) == {}


def test_verify_changes_nothing_and_asks_for_each_thing_once(live: Host) -> None:
    before, daemon = live.snapshot(), live.running()
    daemon.commands.clear()
    setters, modes, opened = list(daemon.setters), list(live.nvml.modes_set), live.nvml.times_opened
    verify(live)
    proofs.of_instance(look.at_host(live.world, [], 5), "0")
    assert live.snapshot() == before
    assert daemon.setters == setters
    assert live.nvml.modes_set == modes
    assert live.systemd.acts == []
    assert len(daemon.commands) == len(set(daemon.commands))
    assert live.nvml.times_opened == opened  # asked in another process, once


# -- the unit and its daemon


def test_a_unit_that_is_not_enabled(live: Host) -> None:
    live.systemd.unit(UNIT).enabled = False
    assert only(live, "unit-enabled", FAIL).remedy == f"systemctl enable {UNIT}"


def test_a_unit_file_that_systemd_has_not_read(live: Host) -> None:
    live.systemd.unit(UNIT).stale = True
    only(live, "unit-active", WARN)


def test_restarts_by_systemd(live: Host) -> None:
    live.systemd.unit(UNIT).restarts = 3
    assert "3 times" in only(live, "restarts", WARN).found


def test_a_crash_loop(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).enabled = True
    for _ in range(4):
        host.kill(host.start().pid)
    unit = host.systemd.unit(UNIT)
    unit.active_state, unit.sub_state, unit.main_pid = "activating", "auto-restart", 0
    found = amiss(verify(host))
    assert (found["restarts"], found["unit-active"]) == (FAIL, FAIL)


def test_a_unit_that_does_not_run_and_what_cannot_be_told_without_it(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).enabled = True
    found = amiss(verify(host))
    assert found.pop("unit-active") == FAIL
    assert set(found.values()) == {CANNOT_TELL}
    for name in ("main-process", "daemon-answers", "front-door", "memory-limit", "server-state", "client-limits"):
        assert name in found


def test_a_main_process_that_serves_another_directory(live: Host) -> None:
    environment = live.processes[live.running().pid].environment
    assert environment is not None
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(live.pipe_root / "elsewhere/.private")
    assert amiss(verify(live))["main-process"] == FAIL


def test_a_main_process_that_is_no_child_of_systemd(live: Host) -> None:
    live.processes[live.running().pid].parent = 4711
    assert "child of pid 4711" in only(live, "main-process", FAIL).found


def test_a_server_that_another_daemon_started(live: Host) -> None:
    live.processes[SERVER].parent = 4711
    assert f"server {SERVER}" in only(live, "main-process", FAIL).found


def test_a_door_that_leads_to_another_daemons_directory(live: Host) -> None:
    door = live.pipe_root / "0/control"
    door.unlink()
    door.symlink_to(".another0000/control")
    assert "the front door leads to" in next(
        one.found for one in verify(live).instances["0"] if one.name == "main-process" and one.level == FAIL
    )


def test_a_closed_door(live: Host) -> None:
    (live.pipe_root / "0/control").unlink()
    only(live, "front-door", FAIL)


def test_a_daemon_that_does_not_answer(live: Host) -> None:
    live.running().not_served = True
    found = verify(live)
    levels = amiss(found)
    assert levels.pop("daemon-answers") == FAIL
    assert set(levels.values()) == {CANNOT_TELL}
    assert {"memory-limit", "thread-percentage", "client-priority", "server-state", "gpu-processes"} <= set(levels)
    assert "4711" in next(one.found for one in found.instances["0"] if one.name == "daemon-answers")


def test_a_stopped_daemon_is_told_by_its_state_and_never_asked(live: Host) -> None:
    daemon = live.running()
    live.processes[daemon.pid].state = "T"
    daemon.commands.clear()
    checks = proofs.of_instance(look.at_host(live.world, [], 5), "0")
    (found,) = (one for one in checks if one.name == "daemon-answers")
    assert (found.level, "state T" in found.found, f"kill -CONT {daemon.pid}" in found.remedy) == (FAIL, True, True)
    assert daemon.commands == []


def test_an_answer_cut_short_calls_no_client_a_foreign_process(live: Host) -> None:
    daemon = live.running()

    def hold(command: str) -> None:
        daemon.not_served = daemon.not_served or command.startswith("get_client_list")

    daemon.before_command = hold
    found = amiss(verify(live))
    assert (found["daemon-answers"], found["gpu-processes"], found["client-limits"]) == (FAIL, CANNOT_TELL, CANNOT_TELL)


def test_all_questions_to_one_daemon_share_five_seconds(live: Host) -> None:
    daemon, deadlines = live.running(), []
    ask = daemon.ask

    def slow(commands: list[str], deadline_s: float = 10) -> list[list[str]]:
        deadlines.append(deadline_s)
        live.clock.pass_by(2)
        return ask(commands, deadline_s)

    daemon.ask = slow  # type: ignore[assignment,method-assign]
    proofs.of_instance(look.at_host(live.world, [], 5), "0")
    assert deadlines == [5, 3, 1]


# -- NVML and systemd


def test_nvml_that_hangs_is_left_behind(live: Host) -> None:
    live.nvml.hangs = True
    report = proofs.verify(live.world, nvml_timeout_s=0.1)
    found = amiss(report)
    assert found["gpus-answer"] == FAIL
    assert found["gpu-processes"] == found["gpus-present"] == found["persistence"] == CANNOT_TELL
    assert "daemon-answers" not in found


def hang(monkeypatch: pytest.MonkeyPatch, name: str, pids: Sequence[int]) -> None:
    """What /proc tells of these processes never comes, in any process but this one: none may ask for it here."""
    real = getattr(procfs, name)
    parent = os.getpid()

    def read(pid: int) -> object:
        assert pid not in pids or os.getpid() != parent, f"{name} of {pid} is read in verify's own process"
        if pid in pids:
            time.sleep(3600)
        return real(pid)

    monkeypatch.setattr(procfs, name, read)
    monkeypatch.setattr(look, "DEADLINE_S", 1.0)


def test_a_foreign_daemon_that_hangs_is_named_and_holds_up_nobody(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = live.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {})
    hang(monkeypatch, "environment", [pid])
    report = proofs.verify(live.world, instance_timeout_s=10)
    found = {one.name: one for one in report.host}["foreign-daemons"]
    assert found.level == WARN
    assert f"pid {pid} (it hangs" in found.found
    levels = {one.name: one.level for one in report.instances["0"] if one.level != PASS}
    assert levels == {"other-daemons": CANNOT_TELL}


def test_a_daemon_whose_very_command_hangs_holds_up_nobody(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    hang(monkeypatch, "command", [live.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {})])
    report = proofs.verify(live.world, instance_timeout_s=2)
    assert report.exit_code == 3
    assert "did not answer within" in " ".join(one.found for _, one in report.every if one.level == CANNOT_TELL)


def test_a_host_whose_processes_cannot_be_listed(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    real = control.processes

    def processes(front_ends: bool = True) -> object:
        if os.getpid() != parent:
            time.sleep(3600)
        return real(front_ends)

    monkeypatch.setattr(control, "processes", processes)
    monkeypatch.setattr(look, "DEADLINE_S", 0.5)
    report = proofs.verify(live.world, instance_timeout_s=10)
    levels = {one.name: one.level for _, one in report.every if one.level != PASS}
    unknown = {"foreign-daemons", "default-pipe-directory", "modes-without-daemon", "other-daemons", "orphan-daemon"}
    assert {name for name, level in levels.items() if level == CANNOT_TELL} >= unknown


def test_an_instance_that_hangs_is_left_behind_and_holds_up_no_other(
    live: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.desired("1", ComputeMode="exclusive_process")
    live.systemd.unit("mps-control@1.service").enabled = True
    hang(monkeypatch, "environment", [live.start("1").pid])
    report = proofs.verify(live.world, instance_timeout_s=3)
    assert [(one.name, one.level) for one in report.instances["1"]] == [("look", CANNOT_TELL)]
    assert "did not answer within 3 s" in report.instances["1"][0].found
    assert {one.name: one.found for one in report.instances["0"] if one.level != PASS} == {}


def test_a_driver_that_is_not_loaded(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    live.nvml.driver_up = False
    assert amiss(verify(live))["gpus-answer"] == FAIL
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert amiss(verify(live))["gpus-answer"] == CANNOT_TELL


def test_systemd_that_does_not_answer(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(units: list[str]) -> None:
        raise NotReady("systemctl is not on this host")

    monkeypatch.setattr(live.systemd, "show", show)
    found = amiss(verify(live))
    assert found["unit-active"] == found["main-process"] == found["memory-limit"] == CANNOT_TELL
    assert found["compute-mode"] == CANNOT_TELL
    assert FAIL not in found.values()


def test_a_journal_that_may_not_be_read_is_never_a_pass(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    live.systemd.boot = None
    assert only(live, "boot-order", CANNOT_TELL).remedy == "ask as root"


def test_an_ordering_cycle_at_boot(live: Host) -> None:
    line = "multi-user.target: Found ordering cycle on mps-control@0.service/start"
    live.systemd.boot = ["x.service: Found ordering cycle on y.service/start", line]
    assert only(live, "boot-order", FAIL).found == line
    live.systemd.boot = ["x.service: Found ordering cycle on y.service/start"]
    assert amiss(verify(live)) == {}


# -- files and permissions


@pytest.mark.parametrize("name", ["control", "control_privileged", "control_lock", "log"])
def test_files_removed_under_a_live_daemon(live: Host, name: str) -> None:
    next(live.pipe_root.glob(f"0/.*/{name}")).unlink()
    found = only(live, "pipe-directory-files", FAIL)
    assert f"damage: {name} gone" in found.found
    assert "do NOT start a second daemon" in found.remedy


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_ancestor_that_others_may_not_enter(live: Host, level: int) -> None:
    directory = [live.places.root, live.pipe_root, live.pipe_root / "0"][level]
    directory.chmod(0o700)
    found = only(live, "pipe-directory-access", FAIL).found
    assert found.startswith(f"{directory}, on the way")
    assert "mode 0700, owner" in found
    directory.chmod(0o755)


def test_a_socket_that_others_may_not_write(live: Host) -> None:
    next(live.pipe_root.glob("0/.*/control")).chmod(0o644)
    assert "may not connect" in only(live, "pipe-directory-access", FAIL).found


def test_an_ancestor_that_is_open_to_the_server_user_is_enough(host: Host) -> None:
    import pwd

    me = pwd.getpwuid(host.places.root.stat().st_uid).pw_name
    host.desired(ServerUser=me, ComputeMode="default")
    host.systemd.unit(UNIT).enabled = True
    host.start()
    host.pipe_root.chmod(0o700)
    assert "pipe-directory-access" not in amiss(verify(host))


def test_a_server_user_that_this_host_does_not_have(live: Host) -> None:
    live.desired(ServerUser="nobody-has-this-name", ComputeMode="exclusive_process")
    found = next(one for one in verify(live).instances["0"] if one.name == "pipe-directory-access")
    assert (found.level, "nobody-has-this-name" in found.found) == (FAIL, True)


# -- GPUs


def test_a_gpu_that_is_gone(live: Host) -> None:
    live.nvml.lost.add(0)
    assert amiss(verify(live))["gpus-present"] == FAIL


def test_a_daemon_that_serves_another_gpu_than_desired(live: Host) -> None:
    live.desired(GPUs="1", ComputeMode="default")
    assert amiss(verify(live))["gpus-served"] == FAIL


@pytest.mark.parametrize(
    ("desired", "mode", "level"),
    [
        ("exclusive_process", "default", FAIL),
        ("exclusive_process", "prohibited", FAIL),
        ("default", "default", PASS),
        (None, "default", WARN),
        (None, "exclusive_process", PASS),
        ("exclusive_process", None, CANNOT_TELL),
    ],
)
def test_the_compute_mode_beside_the_desired_state(
    host: Host, desired: Optional[str], mode: Optional[str], level: str
) -> None:
    host.desired(ComputeMode=desired)
    host.systemd.unit(UNIT).enabled = True
    host.start()
    host.nvml.all = [h200(0, compute_mode=mode)]
    assert amiss(verify(host)) == ({} if level == PASS else {"compute-mode": level})


@pytest.mark.parametrize("mode", ["exclusive_process", "prohibited"])
def test_a_mode_left_behind_without_a_daemon(host: Host, mode: str) -> None:
    host.desired()
    host.nvml.all = [h200(0, compute_mode=mode)]
    assert amiss(verify(host))["compute-mode"] == FAIL
    host.desired(WhenDown="prohibited", ComputeMode="exclusive_process", ServerUser="root")
    expected = None if mode == "prohibited" else FAIL
    assert amiss(verify(host)).get("compute-mode") == expected


def test_a_mode_left_behind_on_a_gpu_of_no_instance(live: Host) -> None:
    live.nvml.all[2] = h200(2, compute_mode="exclusive_process")
    assert "GPU 2" in only(live, "modes-without-daemon", WARN).found


@pytest.mark.parametrize(("persistence", "level"), [(False, WARN), (None, CANNOT_TELL)])
def test_persistence(live: Host, persistence: Optional[bool], level: str) -> None:
    live.nvml.all[0] = h200(0, persistence=persistence, compute_mode="exclusive_process")
    only(live, "persistence", level)


# -- limits


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("set_default_device_pinned_mem_limit 0 3G", "memory-limit"),
        (f"set_device_pinned_mem_limit {SERVER} 0 3G", "memory-limit"),
        ("set_default_device_pinned_mem_limit 0 0", "memory-limit"),
        ("set_default_active_thread_percentage 100", "thread-percentage"),
        (f"set_active_thread_percentage {SERVER} 100", "thread-percentage"),
        ("set_default_client_priority 0", "client-priority"),
    ],
)
def test_a_value_changed_by_hand(live: Host, command: str, name: str) -> None:
    live.running().ask([command])
    found = only(live, name, FAIL)
    assert found.expected in ("4096 MiB", "50 %", "1")
    assert found.remedy == f"systemctl reload {UNIT}"


def test_a_rounded_limit_that_nothing_proves_is_not_passed(live: Host) -> None:
    (live.places.runtime("0") / "in-force.json").unlink()
    only(live, "memory-limit", CANNOT_TELL)


# -- servers


def without_the_pid_file(host: Host) -> None:
    """A control daemon before 550 writes none."""
    private = Path(host.processes[host.running().pid].environment["CUDA_MPS_PIPE_DIRECTORY"])  # type: ignore[index]  # readable
    (private / "nvidia-cuda-mps-control.pid").unlink()


def test_a_daemon_that_lets_every_user_change_limits(live: Host) -> None:
    without_the_pid_file(live)
    assert "set mps_group" in only(live, "limits-guarded", WARN).remedy


def test_with_a_group_only_its_members_can_and_may_enter(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gid = os.getegid()
    monkeypatch.setattr(procfs, "gid", lambda name: gid)
    live.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, Group="mps")
    live.processes[live.running().pid].gids = (gid,)
    without_the_pid_file(live)
    apply.apply(live.world, "0", live.running().pid)
    found = {one.name: one for one in verify(live).instances["0"]}
    assert found["limits-guarded"].level == PASS
    assert found["pipe-directory-access"].level == PASS
    assert found["pipe-directory-access"].found.startswith(f"a member of group {gid} may enter")


@pytest.mark.parametrize(("state", "level"), [("FAULT", FAIL), ("INITIALIZING", WARN)])
def test_a_server_that_does_not_serve(live: Host, state: str, level: str) -> None:
    live.running().servers[SERVER].state = state
    only(live, "server-state", level)


def test_a_stopped_server(live: Host) -> None:
    live.processes[SERVER].state = "T"
    assert "state T" in only(live, "server-state", FAIL).found


def test_a_daemon_that_does_not_tell_the_state(live: Host) -> None:
    live.running().version = 535
    only(live, "server-state", CANNOT_TELL)


def test_no_server_where_one_is_desired_without_clients(host: Host) -> None:
    host.desired(ServerUser="root", ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = host.start()
    daemon.servers.clear()
    assert amiss(verify(host))["server-state"] == FAIL


def fail_servers(daemon: FakeDaemon, count: int, uid: int = 1000) -> None:
    for pid in range(95, 95 + count):
        daemon.write("Control", 73, f"Starting new server {pid} for user {uid}")
        daemon.write("Control", 73, "Server encountered a fatal exception. Shutting down")
        daemon.write("Control", 73, f"Server {pid} exited with status 1")


@pytest.mark.parametrize(("count", "level"), [(1, WARN), (2, WARN), (3, FAIL), (6, FAIL)])
def test_servers_that_end_with_a_failure(host: Host, count: int, level: str) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    fail_servers(host.start(), count)
    found = only(host, "server-exits", level)
    assert f"server {94 + count} of user 1000 exited with status 1" in found.evidence


def test_failed_servers_that_were_replaced_are_a_note(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = host.start()
    fail_servers(daemon, 2)
    serve(host, daemon)
    report = verify(host)
    assert amiss(report) == {}
    assert any(one.name == "server-exits" and len(one.evidence) == 2 for one in report.instances["0"])


# -- clients


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "no CUDA_MPS_PIPE_DIRECTORY in its environment"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/proc"}, "CUDA_MPS_PIPE_DIRECTORY=/proc instead of"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/not/here"}, "that directory does not exist where it stands"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC", "CUDA_VISIBLE_DEVICES": uuid(3)}, "names no GPU of this instance"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC"}, "its environment is right"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC/"}, "its environment is right"),
    ],
)
def test_a_process_outside_mps_and_why(live: Host, environment: dict[str, str], reason: str) -> None:
    pid = outsider(live, **{key: value.replace("PUBLIC", public(live)) for key, value in environment.items()})
    found = only(live, "gpu-processes", FAIL).found
    assert found.startswith(f"pid {pid} (python3 serve.py, user ")
    assert "9000 MiB) is outside MPS: " in found
    assert reason in found


def test_a_process_that_was_started_before_the_daemon(live: Host) -> None:
    pid = outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    live.processes[pid].started_at = 1
    assert "started before this daemon" in only(live, "gpu-processes", FAIL).found


def test_another_directory_is_no_containers_fault_where_the_daemons_unit_is_sandboxed(live: Host) -> None:
    """The unit's sandbox gives the daemon mounts of its own, which say nothing of the process."""
    live.processes[live.running().pid].mounts = 3
    outsider(live, CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    check = only(live, "gpu-processes", FAIL)
    assert [reason.cause for reason in check.reasons][:1] == ["pipe-directory-wrong"]


def test_a_restart_that_waits_for_clients_is_shown(live: Host) -> None:
    live.desired(
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        PipeDirectory="/run/elsewhere/%i",
    )
    found = {one.name: one for one in verify(live).instances["0"]}["restart-pending"]
    assert found.level == WARN
    assert found.found == f"the daemon serves {public(live)}, desired /run/elsewhere/0"


@pytest.mark.parametrize(
    ("said", "level", "found"),
    [
        ("13000", PASS, "the daemon and the driver are of CUDA 13.0"),
        ("12080", WARN, "the daemon is of CUDA 12.8, the driver of CUDA 13.0"),
        ("13030", WARN, "the daemon is of CUDA 13.3, the driver of CUDA 13.0"),
        (None, PASS, "the daemon does not tell its version"),
    ],
)
def test_a_daemon_of_another_release_than_the_driver(live: Host, said: Optional[str], level: str, found: str) -> None:
    daemon = live.running()
    if said:
        daemon.write("Control", daemon.pid, f"CUDA MPS Control binary version: {said}")
    check = {one.name: one for one in verify(live).instances["0"]}["daemon-version"]
    assert (check.level, check.found) == (level, found)


def test_a_server_that_ended_under_its_clients(live: Host) -> None:
    """A server that was killed reports status 0 as well."""
    daemon = live.running()
    (client,) = daemon.servers.pop(SERVER).clients
    daemon.write("Control", daemon.pid, f"Server {SERVER} exited with status 0")
    live.processes.pop(SERVER)
    live.nvml.outside_mib[uuid(0)].pop(SERVER)
    assert live.nvml.held_mib is not None
    live.nvml.held_mib.clear()
    check = only(live, "server-exits", WARN)
    assert check.found == f"server {SERVER} ended under 1 clients (pid {client})"
    assert [reason.cause for reason in check.reasons] == ["server-gone"]
    serve(live, daemon, clients=0)
    assert amiss(verify(live)) == {}, "another took over"


def test_a_server_whose_clients_had_left_ended_well(live: Host) -> None:
    daemon = live.running()
    (client,) = daemon.servers[SERVER].clients
    daemon.leave(SERVER, client)
    daemon.servers.pop(SERVER)
    daemon.write("Control", daemon.pid, f"Server {SERVER} exited with status 0")
    live.nvml.outside_mib[uuid(0)].pop(SERVER)
    assert live.nvml.held_mib is not None
    live.nvml.held_mib.clear()
    assert amiss(verify(live)) == {}


def test_a_fatal_fault_of_a_client_is_named_until_others_have_come(live: Host) -> None:
    daemon = live.running()
    (client,) = daemon.servers[SERVER].clients
    daemon.write("Server", SERVER, f"Client {{PID: {client}, Context: 1}} encountered a fatal GPU error.")
    check = only(live, "client-faults", WARN)
    assert check.found.startswith(f"client {client} made a fatal fault on server {SERVER}")
    connect(live, daemon)
    assert amiss(verify(live)) == {}


@pytest.mark.parametrize(("held_mib", "level"), [(4098, WARN), (4081, WARN), (4080, PASS), (600, PASS)])
def test_a_client_that_has_used_up_its_limit(live: Host, held_mib: int, level: str) -> None:
    (client,) = live.running().servers[SERVER].clients
    assert live.nvml.held_mib is not None
    live.nvml.held_mib[uuid(0)][client] = held_mib
    found = {one.name: one for one in verify(live).instances["0"]}["client-memory"]
    assert found.level == level
    assert level == PASS or f"holds {held_mib} MiB of its limit of 4096 MiB" in found.found


@pytest.mark.parametrize(("left_mib", "level"), [(15, WARN), (5000, PASS)])
def test_a_card_on_which_no_more_context_fits(live: Host, left_mib: int, level: str) -> None:
    (client,) = live.running().servers[SERVER].clients
    outsider(live, CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    assert live.nvml.held_mib is not None
    others = sum(mib or 0 for mib in live.nvml.outside_mib[uuid(0)].values())
    live.nvml.held_mib[uuid(0)][client] = H200_MIB - RESERVED_MIB - others - left_mib
    found = {one.name: one for one in verify(live).instances["0"]}["gpu-memory"]
    assert found.level == level
    assert f"{left_mib} of {H200_MIB} MiB" in found.found  # what the driver keeps for itself is not free


def test_a_card_whose_room_nvml_does_not_tell(live: Host) -> None:
    live.nvml.loads[uuid(0)] = Load()
    found = {one.name: one for one in verify(live).instances["0"]}["gpu-memory"]
    assert found.level == CANNOT_TELL


@pytest.mark.parametrize(
    ("free_mib", "level", "says"),
    [
        ((100_000, 50_000), PASS, "50000 of 143771 MiB of GPU 1"),
        ((50_000, 100_000), PASS, "50000 of 143771 MiB of GPU 0"),
        ((100_000, 15), WARN, "15 of 143771 MiB of GPU 1"),
        ((None, 15), WARN, "15 of 143771 MiB of GPU 1"),
        ((15, None), WARN, "15 of 143771 MiB of GPU 0"),
        ((100_000, None), CANNOT_TELL, "NVML does not tell how much of GPU 1"),
        ((None, 100_000), CANNOT_TELL, "NVML does not tell how much of GPU 0"),
    ],
)
def test_of_several_cards_the_fullest_is_told(
    host: Host, free_mib: tuple[Optional[int], ...], level: str, says: str
) -> None:
    host.nvml.all = [h200(0), h200(1)]
    host.desired(GPUs="0 1", ComputeMode="default")
    host.systemd.unit(UNIT).enabled = True
    serve(host, host.start())
    for number, free in enumerate(free_mib):
        host.nvml.loads[uuid(number)] = Load(free_mib=free)
    found = {one.name: one for one in verify(host).instances["0"]}["gpu-memory"]
    assert (found.level, says in found.found) == (level, True), found.found


def test_a_container_without_the_directory_mounted(live: Host, tmp_path: Path) -> None:
    pid = outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    process = live.processes[pid]
    process.root, process.mounts, process.container = tmp_path, 2, "4f1e77"
    found = only(live, "gpu-processes", FAIL).found
    assert "container 4f1e77" in found
    assert "its mount namespace does not have it: mount it" in found


def test_a_user_before_a_closed_ancestor(live: Host) -> None:
    outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    live.pipe_root.chmod(0o700)
    report = verify(live)
    found = next(one.found for one in report.instances["0"] if one.name == "gpu-processes")
    assert f"{live.pipe_root}, on the way to the pipe directory, may not be entered by user 1000 (mode 0700" in found


def test_an_environment_that_may_not_be_read_is_no_reason(live: Host) -> None:
    live.processes[outsider(live)].environment = None
    assert "its environment cannot be read" in only(live, "gpu-processes", FAIL).found


def test_a_process_that_proc_does_not_show(live: Host) -> None:
    live.nvml.outside_mib[uuid(0)][777] = 100
    assert "pid 777" in only(live, "gpu-processes", CANNOT_TELL).found


def test_an_nvml_that_lists_no_processes(live: Host) -> None:
    live.nvml.held_mib = None
    found = amiss(verify(live))
    assert found["gpu-processes"] == found["client-variables"] == found["client-connections"] == CANNOT_TELL
    assert "client-count" not in found  # the daemon's own list is enough


def test_a_client_of_another_daemon(live: Host) -> None:
    assert live.nvml.held_mib is not None
    pid = live.client(CUDA_MPS_PIPE_DIRECTORY="/run/other")
    live.nvml.held_mib[uuid(0)][pid] = 600
    found = only(live, "gpu-processes", FAIL).found
    assert f"pid {pid}" in found
    assert "is of another daemon: an MPS client of the daemon on /run/other" in found


def test_a_process_on_another_gpu_is_not_this_instances(live: Host) -> None:
    outsider(live, uuid(1))
    assert amiss(verify(live)) == {}


def test_a_client_that_bypassed_its_limit_its_limit(live: Host) -> None:
    pid = connect(live, live.running(), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")
    assert f"client {pid}" in only(live, "client-limits", FAIL).found


def test_a_client_with_an_older_limit_is_a_note(live: Host) -> None:
    live.desired(DeviceMemoryLimit="5G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    live.systemd.act("reload", [UNIT])
    report = verify(live)
    assert amiss(report) == {}
    (older,) = (one for one in report.instances["0"] if one.name == "older-limits")
    assert "connected before the change" in older.evidence[0]


@pytest.mark.parametrize(("clients", "level"), [(43, PASS), (44, WARN), (47, WARN), (48, FAIL)])
def test_clients_near_the_cap(live: Host, clients: int, level: str) -> None:
    for _ in range(clients - 1):
        connect(live, live.running())
    if level == PASS:
        assert amiss(verify(live)) == {}
    else:
        assert f"{clients} clients on GPU 0" in only(live, "client-count", level).found


@pytest.mark.parametrize(("value", "level"), [("1", PASS), ("2", PASS), ("8", WARN), ("many", WARN)])
def test_connections_that_lower_the_cap(live: Host, value: str, level: str) -> None:
    connect(live, live.running(), CUDA_DEVICE_MAX_CONNECTIONS=value)
    assert amiss(verify(live)) == ({} if level == PASS else {"client-connections": WARN})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CUDA_MPS_DEVICE_MEM_LIMIT", "0=1G", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is the nearest"),
        ("CUDA_MPS_ACTIVE_THREADS_PERCENTAGE", "50", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is the nearest"),
        ("CUDA_MPS_CLIENT_PRIORITY", "'1'", "has quotes inside the value"),
        ("CUDA_MPS_SM_PARTITION", '"a"', "has quotes inside the value"),
    ],
)
def test_variables_that_mps_does_not_know(live: Host, name: str, value: str, says: str) -> None:
    connect(live, live.running(), **{name: value})
    assert says in only(live, "client-variables", WARN).found


@pytest.mark.parametrize("name", ["client-variables", "client-connections"])
def test_a_clients_environment_that_may_not_be_read(live: Host, name: str) -> None:
    live.processes[connect(live, live.running())].environment = None
    assert amiss(verify(live))[name] == CANNOT_TELL


def test_a_client_that_waits_behind_another_user(live: Host) -> None:
    waiting = live.client(uid=1000, CUDA_MPS_PIPE_DIRECTORY=public(live))
    line = f"NEW CLIENT {waiting} from user 1000: Server is not ready, push client to pending list"
    live.running().write("Control", live.running().pid, line)
    found = only(live, "waiting-clients", WARN).found
    assert f"pid {waiting} of user 1000" in found
    assert "behind user 0" in found
    live.kill(waiting)
    assert amiss(verify(live)) == {}


def test_client_pids_that_a_namespace_hides(live: Host) -> None:
    line = "NEW CLIENT 0 from user 0: Server is not ready, push client to pending list"
    live.running().write("Control", 261, line)
    assert "process id 0" in only(live, "client-pids", WARN).found


@pytest.mark.parametrize(("policy", "level"), [("ignore", None), ("warn", WARN), ("fail", FAIL)])
def test_ranks_of_a_distributed_run_under_each_policy(live: Host, policy: str, level: Optional[str]) -> None:
    live.desired(
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        DistributedJobs=policy,
    )
    for rank in ("0", "1"):
        connect(live, live.running(), RANK=rank, WORLD_SIZE="2", MASTER_ADDR="n1", MASTER_PORT="29500")
    names = ("distributed-jobs", "nccl-ranks-on-one-gpu")
    assert amiss(verify(live)) == ({} if level is None else dict.fromkeys(names, level))


# -- others on this host


def daemon_of_others(host: Host, **environment: str) -> int:
    return host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment)


@pytest.mark.parametrize("devices", [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": uuid(0)[:12]}, {}])
def test_another_daemon_on_the_same_gpu(live: Host, devices: dict[str, str]) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/run/other", **devices)
    report = verify(live)
    assert amiss(report) == {"other-daemons": FAIL, "foreign-daemons": WARN}
    assert f"pid {pid}" in next(one.found for one in report.instances["0"] if one.name == "other-daemons")


def test_another_daemon_on_a_gpu_of_no_instance(live: Host) -> None:
    daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/run/other", CUDA_VISIBLE_DEVICES="2")
    assert "/run/other" in only(live, "foreign-daemons", WARN).found


def test_a_daemon_whose_environment_may_not_be_read(live: Host) -> None:
    live.processes[daemon_of_others(live)].environment = None
    assert amiss(verify(live)) == {"other-daemons": CANNOT_TELL, "foreign-daemons": WARN}


def test_a_daemon_of_another_namespace_with_a_directory_of_the_same_name_is_no_orphan(
    live: Host, tmp_path: Path
) -> None:
    for directory in (public(live), "/tmp/nvidia-mps"):
        pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=directory, CUDA_VISIBLE_DEVICES="2")
        live.processes[pid].root, live.processes[pid].mounts = tmp_path, 2
    assert "in another namespace" in only(live, "foreign-daemons", WARN).found


def test_a_daemon_of_another_namespace_that_has_this_directory_mounted_is_an_orphan(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=public(live), CUDA_VISIBLE_DEVICES="2")
    live.processes[pid].mounts = 2
    assert amiss(verify(live)) == {"orphan-daemon": FAIL, "foreign-daemons": WARN}


def test_an_orphan_daemon_on_this_directory(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=f"{public(live)}/.before", CUDA_VISIBLE_DEVICES="0")
    report = verify(live)
    assert amiss(report) == {"orphan-daemon": FAIL, "foreign-daemons": WARN}
    found = next(one.found for one in report.instances["0"] if one.name == "orphan-daemon")
    assert f"pid {pid}" in found
    assert "its socket is gone" in found


def test_a_daemon_on_the_default_directory(live: Host) -> None:
    daemon_of_others(live, CUDA_VISIBLE_DEVICES="2")
    report = verify(live)
    assert amiss(report) == {"default-pipe-directory": WARN, "foreign-daemons": WARN}


def test_a_default_directory_that_was_left_behind_is_a_note(live: Host) -> None:
    directory = live.places.root / "tmp/nvidia-mps"
    directory.mkdir(parents=True)
    (directory / "control_lock").touch()
    report = verify(live)
    assert amiss(report) == {}
    assert any(one.name == "default-pipe-directory" and one.evidence for one in report.host)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


_STARTS = "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -f\n"


def a_vendors_unit(host: Host) -> str:
    write(host.places.root / "usr/lib/systemd/system/nvidia-mps.service", _STARTS)
    host.systemd.unit("nvidia-mps.service").active_state = "active"
    return "unit nvidia-mps.service"


def a_wanted_unit(host: Host) -> str:
    write(host.places.root / "etc/systemd/system/vendor.service", _STARTS)
    wants = host.places.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "vendor.service").symlink_to("../vendor.service")
    return "unit vendor.service"


def a_drop_in(host: Host) -> str:
    write(host.places.root / "etc/systemd/system/app.service.d/mps.conf", _STARTS)
    host.systemd.unit("app.service").active_state = "active"
    return "app.service.d/mps.conf"


def a_slurm_prolog(host: Host) -> str:
    write(host.places.root / "etc/slurm/slurm.conf", "Prolog=/opt/site/before-job\n")
    write(host.places.root / "opt/site/before-job", "#!/bin/sh\nnvidia-cuda-mps-control -d\n")
    return "opt/site/before-job"


def a_slurm_prolog_directory(host: Host) -> str:
    write(host.places.root / "etc/slurm/prolog.d/50-gpu", "#!/bin/sh\necho quit | nvidia-cuda-mps-control\n")
    return "prolog.d/50-gpu"


def slurms_resource(host: Host) -> str:
    write(host.places.root / "etc/slurm/gres.conf", "NodeName=n1 Name=mps Count=200\n")
    return "gres.conf names the generic resource mps"


def the_device_plugin(host: Host) -> str:
    return f"pid {host.process('mps-control-daemon', 'mps-control-daemon', {})}"


@pytest.mark.parametrize(
    "manager",
    [
        a_vendors_unit,
        a_wanted_unit,
        a_drop_in,
        a_slurm_prolog,
        a_slurm_prolog_directory,
        slurms_resource,
        the_device_plugin,
    ],
)
def test_another_manager_of_mps(live: Host, manager: Callable[[Host], str]) -> None:
    named = manager(live)
    assert named in only(live, "other-managers", WARN).found


def test_a_control_daemon_in_a_container_is_a_manager_too(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/tmp/pod", CUDA_VISIBLE_DEVICES="2")
    live.processes[pid].container = "77ab"
    report = verify(live)
    assert amiss(report) == {"other-managers": WARN, "foreign-daemons": WARN}
    assert "container 77ab" in next(one.found for one in report.host if one.name == "other-managers")


def test_a_unit_that_nobody_starts_is_a_note(live: Host) -> None:
    write(live.places.root / "usr/lib/systemd/system/nvidia-mps.service", _STARTS)
    write(live.places.units / "mps-control@.service", _STARTS)
    report = verify(live)
    assert amiss(report) == {}
    (managers,) = (one for one in report.host if one.name == "other-managers")
    assert len(managers.evidence) == 1


# -- several instances, and the probe client


def test_one_broken_instance_hides_no_other(live: Host) -> None:
    live.places.conf("1").write_text("[Instance]\nGPUs=\n")
    live.desired("2", ComputeMode="exclusive_process")
    live.systemd.unit("mps-control@2.service").enabled = True

    def ask(commands: list[str], deadline_s: float = 10) -> list[list[str]]:
        raise KeyError(commands[0])

    live.start("2").ask = ask  # type: ignore[assignment,method-assign]
    report = verify(live)
    assert [one.name for one in report.instances["1"]] == ["configuration"]
    assert report.instances["1"][0].level == FAIL
    assert any("KeyError" in one.found for one in report.instances["2"])
    assert all(one.level == PASS for one in report.instances["0"])


def test_a_check_that_breaks_is_told_and_hides_no_other(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def journal(wanted: str) -> None:
        raise KeyError(wanted)

    monkeypatch.setattr(live.systemd, "journal_of_boot", journal)
    assert "a fault of mpsctl" in only(live, "boot-order", CANNOT_TELL).found


def test_a_host_that_was_never_converged(host: Host) -> None:
    assert amiss(verify(host)) == {"instances-configured": CANNOT_TELL}


def test_an_instance_that_does_not_exist(live: Host) -> None:
    report = proofs.verify(live.world, ["7"])
    assert [(one.name, one.level) for one in report.instances["7"]] == [("configuration", FAIL)]
    assert list(report.instances) == ["7"]


def test_a_probe_client_adds_its_checks_and_cannot_break_the_rest(live: Host) -> None:
    def probe(look: InstanceLook) -> list[Check]:
        if look.instance.name != "0":
            raise NotReady("no")
        return [Check("probe", FAIL, "it ran outside MPS", "attribute 133 is 1", "see the rest")]

    report = proofs.verify(live.world, probe=probe)
    assert amiss(report) == {"probe": FAIL}

    def broken(look: InstanceLook) -> list[Check]:
        raise NotReady("no libcuda")

    assert amiss(proofs.verify(live.world, probe=broken)) == {"probe": CANNOT_TELL}


# -- what is printed


def printed(host: Host, capsys: pytest.CaptureFixture[str], every: bool = False) -> tuple[int, list[str]]:
    report = verify(host)
    cli.show(report, every)
    return report.exit_code, capsys.readouterr().out.splitlines()


def test_a_healthy_host_is_told_in_three_lines(live: Host, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = printed(live, capsys)
    assert code == 0
    assert lines[0].startswith("MPS OK: 1 instance, ")
    assert [line.split(":")[0] for line in lines[1:]] == ["host", "instance 0"]
    _, lines = printed(live, capsys, every=True)
    assert len(lines) == 3 + sum(line.startswith("  pass ") for line in lines)
    assert "\033" not in "".join(lines)


@pytest.mark.parametrize(
    ("break_", "code", "first"),
    [
        (lambda host: setattr(host.systemd.unit(UNIT), "restarts", 2), 1, "MPS WARNING: instance 0: restarts: "),
        (
            lambda host: setattr(host.systemd.unit(UNIT), "enabled", False),
            2,
            "MPS CRITICAL: instance 0: unit-enabled: ",
        ),
        (lambda host: setattr(host.systemd, "boot", None), 3, "MPS UNKNOWN: host: boot-order: "),
    ],
)
def test_the_first_line_and_the_exit_code_are_for_monitoring(
    live: Host, capsys: pytest.CaptureFixture[str], break_: Callable[[Host], None], code: int, first: str
) -> None:
    break_(live)
    found, lines = printed(live, capsys)
    assert (found, lines[0].startswith(first)) == (code, True), lines[0]
    assert "|" not in lines[0]
    assert any(line.startswith("    do: ") for line in lines)
    answer = json.loads(json.dumps(verify(live).as_json()))
    assert (answer["exit_code"], answer["simulated"]) == (code, False)
    assert {one["level"] for one in answer["host"] + answer["instances"]["0"]} == {PASS, answer["worst"]}


def test_what_no_daemon_keeps_from_being_told_is_one_line(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.desired()
    _, lines = printed(host, capsys)
    assert sum(line.endswith(": no daemon runs") for line in lines) == 1


def test_every_check_stands_in_the_documentation() -> None:
    """And no other: names are stable, so what is written down is what is there."""
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    section = text.partition("## Is MPS really active")[2].partition("\n## ")[0]
    table = ",".join(line.split("|")[2] for line in section.splitlines() if line.startswith("| "))
    host = section.partition("Of the host: ")[2].partition(".\n")[0]
    documented = set(re.findall(r"[a-z]+(?:-[a-z]+)+|configuration|restarts|front door|persistence", table + host))
    checks = [*host_checks.CHECKS, *instance_checks.CHECKS, *client_checks.CHECKS]
    assert documented == {"configuration", *(checking.name_of(one) for one in checks)}  # type: ignore[arg-type]
