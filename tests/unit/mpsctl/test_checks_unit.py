"""The judgements of an instance's unit, daemon, directory, limits and servers."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest

from fakes import FakeDaemon, Host
from judging import SERVER, UNIT, amiss, judge, only, serve
from mpsctl.adapters import procfs
from mpsctl.checks import report
from mpsctl.checks.judgement import STATUS, VERIFY
from mpsctl.lifecycle import apply
from mpsctl.model.finding import CONVERGE, CRITICAL, OK, PERSON, RELOAD, UNKNOWN, WARNING
from mpsctl.model.names import door_unit
from mpsctl.observe import host as look
from mpsctl.store import admission, front_door_notes
from mpsctl.store.front_door_notes import Notes

# -- healthy


def test_a_healthy_host_is_silent(live: Host) -> None:
    found = judge(live)
    assert amiss(found) == {}, [one for _, one in found.every if one.level != OK]
    assert found.worst == OK
    names = [one.name for one in found.instances["0"]]
    assert len(names) == len(set(names))


def test_a_host_without_clients_or_servers_is_silent_too(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    host.start()
    assert amiss(judge(host)) == {}


def test_verify_changes_nothing_and_asks_for_each_thing_once(live: Host) -> None:
    before, daemon = live.snapshot(), live.running()
    daemon.commands.clear()
    setters, modes, opened = list(daemon.setters), list(live.nvml.modes_set), live.nvml.times_opened
    judge(live)
    assert live.snapshot() == before
    assert daemon.setters == setters
    assert live.nvml.modes_set == modes
    assert live.systemd.acts == []
    assert daemon.commands
    assert len(daemon.commands) == len(set(daemon.commands))
    assert live.nvml.times_opened == opened + 1


# -- the unit and its daemon


def test_a_unit_that_is_not_enabled(live: Host) -> None:
    live.systemd.unit(UNIT).enabled = False
    assert only(live, "unit-enabled", CRITICAL).remedy == f"systemctl enable {UNIT}"


def test_a_unit_file_that_systemd_has_not_read(live: Host) -> None:
    live.systemd.unit(UNIT).stale = True
    only(live, "unit-active", WARNING)


# -- the file of variables for clients


def test_a_file_of_variables_that_is_gone(live: Host) -> None:
    live.places.client_environment("0").unlink()
    found = only(live, "client-file", WARNING)
    assert found.mends == CONVERGE
    assert "does not start" in found.found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("PIPE_DIRECTORY=", "PIPE_DIRECTORY=/tmp"),
        ("VISIBLE_DEVICES=GPU-", "VISIBLE_DEVICES=GPU-0"),
        ("CUDA_", "# CUDA_"),
    ],
    ids=["another directory", "another GPU", "nothing"],
)
def test_a_file_of_variables_that_somebody_changed(live: Host, before: str, after: str) -> None:
    path = live.places.client_environment("0")
    path.write_text(path.read_text().replace(before, after))
    found = only(live, "client-file", WARNING)
    assert found.mends == CONVERGE
    assert "outside MPS" in found.found


def test_a_file_of_variables_of_somebody_else(live: Host) -> None:
    live.places.client_environment("0").write_text("CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0\n")
    assert only(live, "client-file", WARNING).mends == PERSON


def test_a_folder_where_the_file_of_variables_belongs(live: Host) -> None:
    path = live.places.client_environment("0")
    path.unlink()
    path.mkdir()
    only(live, "client-file", UNKNOWN)


def test_while_a_restart_waits_the_file_of_variables_speaks_of_the_daemon_that_runs(live: Host) -> None:
    live.desired(GPUs="1", ComputeMode="exclusive_process")
    found = judge(live)
    assert found.check("0", "client-file").level == OK
    assert found.check("0", "restart-pending").level == WARNING


def test_a_file_of_variables_that_is_wrong_is_told_while_a_restart_waits_as_well(live: Host) -> None:
    live.desired(GPUs="1", ComputeMode="exclusive_process")
    live.places.client_environment("0").unlink()
    assert judge(live).check("0", "client-file").level == WARNING


def test_what_the_daemon_serves_is_not_told(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to a user who may not read its environment: nobody says then that the file is right."""
    monkeypatch.setattr(procfs, "environment", lambda pid: None)
    assert judge(live).check("0", "client-file").level == UNKNOWN


def test_restarts_by_systemd(live: Host) -> None:
    live.systemd.unit(UNIT).restarts = 3
    assert "3 times" in only(live, "restarts", WARNING).found


def test_a_crash_loop(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).enabled = True
    for _ in range(4):
        host.kill(host.start().pid)
    unit = host.systemd.unit(UNIT)
    unit.active_state, unit.sub_state, unit.main_pid = "activating", "auto-restart", 0
    found = amiss(judge(host))
    assert (found["restarts"], found["unit-active"]) == (CRITICAL, CRITICAL)


def test_a_unit_that_does_not_run_and_what_cannot_be_told_without_it(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).enabled = True
    found = amiss(judge(host))
    assert found.pop("unit-active") == CRITICAL
    assert [found.pop(name) for name in ("front-door", "front-door-enabled")] == [CRITICAL] * 2
    assert set(found.values()) == {UNKNOWN}
    for name in ("main-process", "daemon-answers", "memory-limit", "server-state", "client-limits"):
        assert name in found


def test_a_main_process_that_serves_another_directory(live: Host) -> None:
    environment = live.processes[live.running().pid].environment
    assert environment is not None
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(live.pipe_root / "elsewhere/.private")
    assert amiss(judge(live))["main-process"] == CRITICAL


def test_a_main_process_that_is_no_child_of_systemd(live: Host) -> None:
    live.processes[live.running().pid].parent = 4711
    assert "child of pid 4711" in only(live, "main-process", CRITICAL).found


def test_a_server_that_another_daemon_started(live: Host) -> None:
    live.processes[SERVER].parent = 4711
    assert f"server {SERVER}" in only(live, "main-process", CRITICAL).found


def test_a_door_that_leads_to_another_daemons_directory(live: Host) -> None:
    told = admission.read(live.places, "0")
    assert told is not None
    assert told.daemon is not None
    another = replace(told.daemon, pipe_directory="/run/another/pipe")
    admission.write(live.places, "0", replace(told, daemon=another))
    assert "the front door leads to" in next(
        one.found for one in judge(live).instances["0"] if one.name == "main-process" and one.level == CRITICAL
    )


@pytest.mark.parametrize("state", [admission.WAITING, admission.CLOSED])
def test_a_door_that_lets_nobody_in(live: Host, state: str) -> None:
    live.tell_door(state)
    assert only(live, "front-door", CRITICAL).mends == RELOAD


def test_a_door_that_was_told_of_an_earlier_daemon(live: Host) -> None:
    told = admission.read(live.places, "0")
    assert told is not None
    assert told.daemon is not None
    admission.write(live.places, "0", replace(told, daemon=replace(told.daemon, pid=told.daemon.pid + 1)))
    assert only(live, "front-door", CRITICAL).mends == RELOAD


def name_gone(live: Host) -> None:
    (live.pipe_root / "0/control").unlink()


def name_leads_elsewhere(live: Host) -> None:
    (live.pipe_root / "0/control").unlink()
    (live.pipe_root / "0/control").touch()
    (live.pipe_root / "0/control").chmod(0o666)


def socket_gone(live: Host) -> None:
    (live.pipe_root / "0/front-door").unlink()


def socket_unit_down(live: Host) -> None:
    live.systemd.unit(door_unit("0")).active_state = "failed"


@pytest.mark.parametrize("fault", [name_gone, name_leads_elsewhere, socket_gone, socket_unit_down])
def test_a_door_that_is_not_there_lets_clients_run_outside_mps(live: Host, fault: Callable[[Host], None]) -> None:
    fault(live)
    found = only(live, "front-door", CRITICAL)
    assert found.mends == CONVERGE
    assert "outside MPS" in found.found


def test_a_door_that_is_masked_is_for_a_person(live: Host) -> None:
    live.systemd.unit(door_unit("0")).load_state = "masked"
    found = only(live, "front-door", CRITICAL)
    assert found.mends == PERSON
    assert f"systemctl unmask {door_unit('0')}" in found.remedy


def test_a_door_that_does_not_stand_after_a_boot(live: Host) -> None:
    live.systemd.unit(door_unit("0")).enabled = False
    assert only(live, "front-door-enabled", CRITICAL).mends == CONVERGE


def test_a_door_that_does_not_understand_its_daemon(live: Host) -> None:
    front_door_notes.write(live.places, "0", Notes(unknown_greeting=b"HELLO".hex()))
    assert b"HELLO".hex() in only(live, "front-door", CRITICAL).found


@pytest.mark.parametrize(("name", "mode"), [("log", 0o622), ("control", 0o666), ("control_lock", 0o644), ("", 0o711)])
def test_a_daemons_directory_that_others_come_to(live: Host, name: str, mode: int) -> None:
    (live.own() / name).chmod(mode)
    assert only(live, "daemon-directory", CRITICAL).mends == RELOAD
    apply.apply(live.world, "0", live.running().pid)
    assert amiss(judge(live)) == {"daemon-log": WARNING}, "what the log says may be others' words"


@pytest.mark.wording
def test_a_daemon_that_does_not_answer(live: Host) -> None:
    live.running().not_served, live.running().holders = True, (4711,)
    live.process("cat", "cat /some/file", {}, uid=61234, pid=4711)
    found = judge(live)
    levels = amiss(found)
    assert levels.pop("daemon-answers") == CRITICAL
    assert set(levels.values()) == {UNKNOWN}
    assert {"memory-limit", "thread-percentage", "client-priority", "server-state", "gpu-processes"} <= set(levels)
    check = found.check("0", "daemon-answers")
    assert (check.facts["holders"], check.reasons[0].cause) == ([4711], "session-held")
    assert all(word in check.remedy for word in ("pid 4711", "61234", "cat /some/file", "kill 4711"))


def test_a_daemon_of_which_nobody_can_tell_who_holds_it(live: Host) -> None:
    live.running().not_served, live.running().holders_untold = True, "the kernel does not list its unix sockets"
    check = judge(live).check("0", "daemon-answers")
    assert (check.level, check.facts["holders"], check.reasons[0].cause) == (CRITICAL, [], "daemon-hangs")


@pytest.mark.wording
def test_a_stopped_daemon_is_told_by_its_state_and_never_asked(live: Host) -> None:
    daemon = live.running()
    live.processes[daemon.pid].state = "T"
    daemon.commands.clear()
    found = report.report(look.look(live.world), VERIFY).check("0", "daemon-answers")
    assert (found.level, "state T" in found.found, f"kill -CONT {daemon.pid}" in found.remedy) == (CRITICAL, True, True)
    assert daemon.commands == []


def test_an_answer_cut_short_calls_no_client_a_foreign_process(live: Host) -> None:
    daemon = live.running()

    def hold(command: str) -> None:
        daemon.not_served = daemon.not_served or command.startswith("get_client_list")

    daemon.before_command = hold
    found = amiss(judge(live))
    assert (found["daemon-answers"], found["gpu-processes"], found["client-limits"]) == (CRITICAL, UNKNOWN, UNKNOWN)


def test_all_questions_to_one_daemon_share_five_seconds(live: Host) -> None:
    daemon, deadlines = live.running(), []
    ask = daemon.ask

    def slow(commands: list[str], deadline_s: float = 10) -> list[list[str]]:
        deadlines.append(deadline_s)
        live.clock.pass_by(2)
        return ask(commands, deadline_s)

    daemon.ask = slow  # type: ignore[assignment,method-assign]
    inside = live.world.hurried(live.world.now_s() + look.DAEMON_TIMEOUT_S)
    look.look(inside)
    assert deadlines == [5, 3]


# -- files and permissions


@pytest.mark.parametrize("name", ["control", "control_privileged", "control_lock", "log"])
def test_files_removed_under_a_live_daemon(live: Host, name: str) -> None:
    (live.own() / name).unlink()
    found = only(live, "pipe-directory-files", CRITICAL)
    assert f"damage: {name} gone" in found.found
    assert "do NOT start a second daemon" in found.remedy


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_ancestor_that_others_may_not_enter(live: Host, level: int) -> None:
    directory = [live.places.root, live.pipe_root, live.pipe_root / "0"][level]
    directory.chmod(0o700)
    found = only(live, "pipe-directory-access", CRITICAL).found
    assert found.startswith(f"{directory}, on the way")
    assert "mode 0700, owner" in found
    directory.chmod(0o755)


def test_a_socket_that_others_may_not_write(live: Host) -> None:
    (live.pipe_root / "0/front-door").chmod(0o644)
    assert "may not connect" in only(live, "pipe-directory-access", CRITICAL).found


def test_an_ancestor_that_is_open_to_the_server_user_is_enough(host: Host) -> None:
    import pwd

    me = pwd.getpwuid(host.places.root.stat().st_uid).pw_name
    host.desired(ServerUser=me, ComputeMode="default")
    host.systemd.unit(UNIT).enabled = True
    host.start()
    host.pipe_root.chmod(0o700)
    assert "pipe-directory-access" not in amiss(judge(host))


@pytest.mark.wording
def test_a_server_user_that_this_host_does_not_have(live: Host) -> None:
    live.desired(ServerUser="nobody-has-this-name", ComputeMode="exclusive_process")
    found = next(one for one in judge(live).instances["0"] if one.name == "pipe-directory-access")
    assert (found.level, "nobody-has-this-name" in found.found) == (CRITICAL, True)


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
    found = only(live, name, CRITICAL)
    assert found.expected in ("4096 MiB", "50 %", "1")
    assert found.remedy == f"systemctl reload {UNIT}"


def test_a_rounded_limit_that_nothing_proves_is_not_passed(live: Host) -> None:
    (live.places.runtime("0") / "in-force.json").unlink()
    assert amiss(judge(live)) == {}, "the daemon's own log has the command"
    daemon = live.running()
    daemon.log[:] = [line for line in daemon.log if "Cmd:" not in line]
    only(live, "memory-limit", UNKNOWN)


# -- servers


def without_the_pid_file(host: Host) -> None:
    """A control daemon before 550 writes none."""
    private = Path(host.processes[host.running().pid].environment["CUDA_MPS_PIPE_DIRECTORY"])  # type: ignore[index]  # readable
    (private / "nvidia-cuda-mps-control.pid").unlink()


def test_a_daemon_that_lets_every_user_change_limits_who_comes_to_it(live: Host) -> None:
    without_the_pid_file(live)
    assert "limits-guarded" not in amiss(judge(live)), "nobody but root comes to it"
    live.own().chmod(0o755)
    found = judge(live)
    assert amiss(found) == {"daemon-directory": CRITICAL, "limits-guarded": WARNING}
    assert found.check("0", "limits-guarded").remedy == "systemctl reload mps-control@0.service"


def test_with_a_group_only_its_members_may_enter(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gid = os.getegid()
    monkeypatch.setattr(procfs, "gid", lambda name: gid)
    live.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, Group="mps")
    without_the_pid_file(live)
    apply.apply(live.world, "0", live.running().pid)
    found = {one.name: one for one in judge(live).instances["0"]}
    assert found["limits-guarded"].level == OK
    assert found["pipe-directory-access"].level == OK
    assert found["pipe-directory-access"].found.startswith(f"a member of group {gid} may enter")


@pytest.mark.parametrize(("state", "level"), [("FAULT", CRITICAL), ("INITIALIZING", WARNING)])
def test_a_server_that_does_not_serve(live: Host, state: str, level: str) -> None:
    live.running().servers[SERVER].state = state
    only(live, "server-state", level)


def test_a_stopped_server(live: Host) -> None:
    live.processes[SERVER].state = "T"
    assert "state T" in only(live, "server-state", CRITICAL).found


def test_a_daemon_that_does_not_tell_the_state(live: Host) -> None:
    live.running().version = 535
    only(live, "server-state", UNKNOWN)


def test_no_server_where_one_is_desired_without_clients(host: Host) -> None:
    host.desired(ServerUser="root", ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = host.start()
    daemon.servers.clear()
    assert amiss(judge(host))["server-state"] == CRITICAL


def fail_servers(daemon: FakeDaemon, count: int, uid: int = 1000) -> None:
    for pid in range(95, 95 + count):
        daemon.write("Control", 73, f"Starting new server {pid} for user {uid}")
        daemon.write("Control", 73, "Server encountered a fatal exception. Shutting down")
        daemon.write("Control", 73, f"Server {pid} exited with status 1")


@pytest.mark.parametrize(("count", "level"), [(1, WARNING), (2, WARNING), (3, CRITICAL), (6, CRITICAL)])
def test_servers_that_end_with_a_failure(host: Host, count: int, level: str) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    fail_servers(host.start(), count)
    found = only(host, "server-exits", level)
    assert f"server {94 + count} of user 1000 exited with status 1" in found.evidence


YEARS_S = 10 * 365 * 86400


def started_long_ago(host: Host, ago_s: float = 7200) -> FakeDaemon:
    """Its unit was started two hours ago, by both clocks, and half an hour ago a server of it failed."""
    host.clock.now_s += 10 * ago_s
    base_s = host.wall_s() - 1800
    daemon = host.start()
    unit = host.systemd.unit(UNIT)
    unit.active_since_s = host.clock.now_s - ago_s
    unit.active_since_utc = time.strftime("%a %Y-%m-%d %H:%M:%S UTC", time.gmtime(host.wall_s() - ago_s))
    for what in ("Starting new server 95 for user 1000", "Server 95 exited with status 1"):
        daemon.log.append(f"[{time.strftime('%Y-%m-%d %H:%M:%S.000', time.localtime(base_s))} Control    73] {what}")
    return daemon


@pytest.mark.parametrize("set_s", [0, YEARS_S, -YEARS_S, 600, -600, 86400])
def test_when_a_server_failed_is_told_though_the_clock_was_set_since(host: Host, set_s: float) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    started_long_ago(host)
    host.clock_set_s = set_s
    told = only(host, "server-exits", WARNING).found
    assert "30 min ago" in told or abs(set_s) == 600, "of two times that both can be, the later one counts"
    assert " y " not in told
    host.clock.now_s += 3600
    assert judge(host).check("0", "server-exits").level == OK


@pytest.mark.parametrize("set_s", [YEARS_S, -YEARS_S])
def test_a_server_that_failed_after_the_clock_was_set(host: Host, set_s: float) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = started_long_ago(host)
    daemon.log.clear()
    host.clock_set_s = set_s
    now = time.strftime("%Y-%m-%d %H:%M:%S.000", time.localtime(host.wall_s() - 60))
    daemon.log += [
        f"[{now} Control    73] {what}"
        for what in ("Starting new server 96 for user 7", "Server 96 exited with status 1")
    ]
    assert "1 min ago" in only(host, "server-exits", WARNING).found
    host.clock.now_s += 3600
    assert judge(host).check("0", "server-exits").level == OK


def test_a_time_that_cannot_be_is_not_told_and_counts_as_recent(host: Host) -> None:
    """The clock went forward and back again while the daemon ran."""
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = started_long_ago(host)
    daemon.log[:] = [line.replace("[2026", "[2036") for line in daemon.log]
    assert " ago" not in only(host, "server-exits", WARNING).found


@pytest.mark.parametrize("set_s", [0, 10, YEARS_S, -YEARS_S])
def test_all_of_the_journal_is_read_where_the_clock_was_set(
    host: Host, set_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """journalctl counts an hour back by the clock: of a server from before that it would show no line."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    host.desired(ComputeMode="exclusive_process")
    started_long_ago(host)
    host.clock_set_s = set_s
    host.systemd.read_back_s.clear()
    judge(host, verb=STATUS)
    (last_s,) = host.systemd.read_back_s
    assert (last_s is None) == (abs(set_s) > 30)


def test_failed_servers_that_were_replaced_are_a_note(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    daemon = host.start()
    fail_servers(daemon, 2)
    serve(host, daemon)
    found = judge(host)
    assert amiss(found) == {}
    assert any(one.name == "server-exits" and len(one.evidence) == 2 for one in found.instances["0"])
