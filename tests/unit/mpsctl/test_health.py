"""health: every instance is judged in bounded time; clients without their limit and daemons are ended where desired."""

from __future__ import annotations

import json
import time
from typing import Optional

import pytest

from fakes import FakeDaemon, Host, uuid
from mpsctl.adapters import control_daemon as control
from mpsctl.lifecycle import health
from mpsctl.lifecycle.health import Action
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check
from mpsctl.model.instance_file import parse_conf
from mpsctl.store import drains
from mpsctl.store.admission import WAITING

SERVER = 9001
GRACE_S = 30


class Look:
    """One look at one instance: its word, its checks that are not ok by name, and what was done about it."""

    def __init__(self, host: Host, name: str = "0") -> None:
        self.whole = health.health(host.world)
        self.word = self.whole.report.word(name)
        self.amiss: dict[str, Check] = {one.name: one for one in self.whole.report.instances[name] if one.level != OK}
        self.actions: list[Action] = self.whole.actions.get(name, [])

    @property
    def kinds(self) -> list[str]:
        return [action.kind for action in self.actions]


def begin(host: Host, name: str = "0", **values: object) -> FakeDaemon:
    host.desired(name, **{"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process", **values})
    host.systemd.unit(f"mps-control@{name}.service").enabled = True
    daemon = host.start(name)
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=SERVER)
    host.processes[SERVER].parent = daemon.pid
    daemon.start_server(SERVER)
    return daemon


def join(host: Host, daemon: FakeDaemon, variable: Optional[str] = None) -> int:
    pid = host.client(variable=variable)
    daemon.connect(SERVER, pid)
    return pid


@pytest.fixture
def strict(host: Host) -> FakeDaemon:
    return begin(host, LimitBypass="terminate", LimitBypassGraceSec=GRACE_S)


def test_a_host_that_is_well(host: Host) -> None:
    join(host, begin(host))
    found = Look(host)
    assert (found.word, found.amiss, found.whole.actions) == (OK, {}, {})


def test_a_host_without_instances_has_nothing_to_look_after(host: Host) -> None:
    found = health.health(host.world)
    assert (found.report.instances, found.actions) == ({}, {})


@pytest.mark.parametrize("state", ["activating", "failed", "inactive"])
def test_an_instance_that_is_desired_and_does_not_run_is_amiss(host: Host, state: str) -> None:
    begin(host)
    host.desired("1")
    unit = host.systemd.unit("mps-control@1.service")
    unit.enabled, unit.active_state = True, state
    found = Look(host, "1")
    assert (found.word, found.amiss["unit-active"].level) == (CRITICAL, CRITICAL)
    assert Look(host).word == OK


def test_a_refused_file_is_told_beside_the_others(host: Host) -> None:
    begin(host)
    host.desired("1", DeviceMemoryLimit="20")
    assert Look(host, "1").amiss["configuration"].level == CRITICAL
    assert Look(host).word == OK


def test_a_drain_is_a_warning_and_nothing_is_done_about_it(host: Host) -> None:
    begin(host)
    drains.mark(host.world, "0")
    host.tell_door(WAITING)
    found = Look(host)
    assert (found.word, set(found.amiss), found.actions) == (WARNING, {"drain"}, [])


def test_looking_changes_nothing(host: Host) -> None:
    daemon = begin(host)
    join(host, daemon)
    before, setters = host.snapshot(), list(daemon.setters)
    Look(host)
    assert host.snapshot() == before
    assert daemon.setters == setters
    assert host.systemd.acts == []


# -- a daemon that does not answer


def unresponsive(host: Host, how: str, **values: object) -> FakeDaemon:
    """A daemon that answers nothing: stopped by a signal, frozen, or without its socket."""
    daemon = begin(host, "0", **values)
    if how == "stopped":
        host.processes[daemon.pid].state = "T"
    elif how == "frozen":
        daemon.not_served = True
    else:
        daemon.unreachable = True
    return daemon


HOW = ["stopped", "frozen", "without its socket"]
KILL = "kill mps-control@0.service"


@pytest.mark.parametrize("how", HOW)
def test_by_default_an_unresponsive_daemon_is_named_at_every_look_and_left_alone(host: Host, how: str) -> None:
    unresponsive(host, how)
    for _ in range(4):
        found = Look(host)
        assert (found.amiss["daemon-answers"].level, found.actions) == (CRITICAL, [])
    assert host.systemd.acts == []


def test_a_stopped_daemon_is_named_as_such_and_nobody_waits_for_it(host: Host) -> None:
    daemon = unresponsive(host, "stopped")
    daemon.before_command = lambda command: pytest.fail("it was asked")
    assert f"kill -CONT {daemon.pid}" in Look(host).amiss["daemon-answers"].remedy


def test_a_daemon_has_five_seconds_for_all_questions(host: Host) -> None:
    begin(host).before_command = lambda command: host.clock.pass_by(6)
    found = Look(host).amiss["daemon-answers"]
    assert found.level == CRITICAL


@pytest.mark.forks
def test_an_instance_that_hangs_holds_up_no_other_and_its_daemon_is_never_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its daemon would have answered is not known."""
    monkeypatch.setattr(health, "INSTANCE_TIMEOUT_S", 0.5)
    begin(host, UnresponsiveDaemon="restart").before_command = lambda command: time.sleep(3600)
    begin(host, "1")
    for _ in range(2):
        found = Look(host)
        assert (found.amiss["configuration"].level, found.actions) == (UNKNOWN, [])
        assert Look(host, "1").word == OK
    assert host.systemd.acts == []


@pytest.mark.parametrize("how", HOW)
def test_where_it_is_desired_a_daemon_unresponsive_at_two_looks_in_a_row_is_ended(host: Host, how: str) -> None:
    daemon = unresponsive(host, how, UnresponsiveDaemon="restart")
    begin(host, "1", UnresponsiveDaemon="restart")
    assert Look(host).kinds == [health.DAEMON_WILL_BE_ENDED]
    assert host.systemd.acts == []
    found = Look(host)
    assert found.word == CRITICAL
    assert [(action.kind, action.pid) for action in found.actions] == [(health.DAEMON_ENDED, daemon.pid)]
    assert host.systemd.acts == [KILL], "and its neighbour is not"


def test_a_daemon_that_answers_in_between_begins_anew(host: Host) -> None:
    daemon = unresponsive(host, "frozen", UnresponsiveDaemon="restart")
    for _ in range(3):
        daemon.not_served = True
        Look(host)
        daemon.not_served = False
        assert Look(host).word == OK
    assert host.systemd.acts == []


def test_another_process_begins_anew(host: Host) -> None:
    daemon = unresponsive(host, "stopped", UnresponsiveDaemon="restart")
    Look(host)
    host.kill(daemon.pid)
    host.processes[host.start().pid].state = "T"
    Look(host)
    assert host.systemd.acts == []


def test_a_daemon_whose_session_somebody_holds_is_never_ended(host: Host) -> None:
    unresponsive(host, "frozen", UnresponsiveDaemon="restart").holders = (4711,)
    for _ in range(4):
        found = Look(host)
        assert (found.amiss["daemon-answers"].level, found.actions) == (CRITICAL, [])
    assert host.systemd.acts == []


def test_where_nobody_can_tell_who_holds_it_a_daemon_is_never_ended_and_that_is_said(host: Host) -> None:
    unresponsive(host, "frozen", UnresponsiveDaemon="restart").holders_untold = "the kernel does not list its sockets"
    for _ in range(4):
        found = Look(host)
        assert (found.amiss["daemon-answers"].level, found.kinds) == (CRITICAL, [health.DAEMON_NOT_ENDED])
    assert host.systemd.acts == []


def test_a_stopped_daemon_is_ended_whoever_holds_its_session(host: Host) -> None:
    unresponsive(host, "stopped", UnresponsiveDaemon="restart").holders = (4711,)
    Look(host)
    assert Look(host).kinds == [health.DAEMON_ENDED]


def test_a_process_with_the_name_of_a_front_end_saves_no_daemon(host: Host) -> None:
    """Who holds the session counts, not who runs."""
    unresponsive(host, "frozen", UnresponsiveDaemon="restart")
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", {})
    Look(host)
    assert Look(host).kinds == [health.DAEMON_ENDED]


def test_a_gpu_that_is_gone_ends_no_daemon(host: Host) -> None:
    begin(host, UnresponsiveDaemon="restart")
    host.nvml.lost = {0}
    for _ in range(3):
        assert Look(host).word == CRITICAL
    assert host.systemd.acts == []


def test_a_daemon_that_cannot_be_ended_is_told_and_tried_again(host: Host) -> None:
    unresponsive(host, "stopped", UnresponsiveDaemon="restart")
    Look(host)
    host.systemd.fails["kill"] = "Access denied"
    (action,) = Look(host).actions
    assert (action.kind, "Access denied" in action.line) == (health.DAEMON_NOT_ENDED, True)
    del host.systemd.fails["kill"]
    assert Look(host).kinds == [health.DAEMON_ENDED]


def test_the_memory_of_an_unresponsive_daemon_is_gone_after_a_real_stop(host: Host) -> None:
    daemon = unresponsive(host, "frozen")
    Look(host)
    assert (host.places.runtime("0") / "silent.json").exists()
    daemon.not_served = False
    host.stop()
    assert not (host.places.runtime("0") / "silent.json").exists()


# -- other daemons


@pytest.mark.parametrize(
    ("environment", "instances"),
    [
        ({}, {"0", "1"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"1"}),
        ({"CUDA_VISIBLE_DEVICES": f"{uuid(0)}, {uuid(3)}"}, {"0"}),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, set()),
        ({"CUDA_VISIBLE_DEVICES": ""}, set()),
    ],
)
def test_another_daemon_on_a_gpu_of_ours_is_named(host: Host, environment: dict[str, str], instances: set[str]) -> None:
    begin(host)
    begin(host, "1")
    pid = host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment)
    report = health.health(host.world).report
    hit = {name for name in ("0", "1") if report.check(name, "other-daemons").level == CRITICAL}
    assert hit == instances
    assert all(report.check(name, "other-daemons").facts["pids"] == [pid] for name in hit)
    assert report.check(None, "foreign-daemons").level == WARNING


# -- limit bypasses


@pytest.mark.parametrize("variable", ["0=1G,1=1G", "1=1G", "1G"])
def test_by_default_a_client_without_its_limit_is_named_and_left_alone(host: Host, variable: str) -> None:
    daemon = begin(host)
    pid = join(host, daemon, variable)
    for _ in range(3):
        found = Look(host)
        host.clock.pass_by(3600)
    assert found.amiss["client-limits"].facts["pids"] == [pid]
    assert (daemon.terminated, found.actions) == ([], [])


def test_a_client_without_its_limit_is_ended_after_its_grace_time_and_no_other(host: Host, strict: FakeDaemon) -> None:
    others = [join(host, strict), join(host, strict, "0=1G")]
    pid = join(host, strict, "1G")
    (first,) = Look(host).actions
    assert strict.terminated == []
    assert (first.kind, first.pid) == (health.CLIENT_WILL_BE_ENDED, pid)
    assert f"in {GRACE_S} s" in first.line
    host.clock.pass_by(GRACE_S - 1)
    Look(host)
    assert strict.terminated == []
    host.clock.pass_by(1)
    last = Look(host)
    assert strict.terminated == [pid]
    assert [(action.kind, action.pid) for action in last.actions] == [(health.CLIENT_ENDED, pid)]
    assert f"`terminate_client {SERVER} {pid}`" in last.actions[0].line
    assert last.word == CRITICAL, "it was found without its limit"
    assert strict.servers[SERVER].clients == others
    after = Look(host)
    assert (after.word, after.actions) == (OK, [])
    assert pid in host.processes, "no signal goes to a process"


def test_a_client_that_mends_itself_is_forgotten(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    Look(host)
    remembered = host.places.runtime("0") / "escapes.json"
    assert json.loads(remembered.read_text())[0]["pid"] == pid
    strict.leave(SERVER, pid)
    assert Look(host).word == OK
    assert not remembered.exists()


def test_a_process_id_used_again_has_its_own_grace_time(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    Look(host)
    host.clock.pass_by(GRACE_S)
    host.kill(pid)
    host.client(pid, variable="1G")
    Look(host)
    assert strict.terminated == []


def test_a_client_without_a_limit_by_no_fault_of_its_own_is_never_ended(host: Host) -> None:
    """It connected before any limit was desired."""
    host.desired(LimitBypass="terminate", LimitBypassGraceSec=1)
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    daemon.start_server(SERVER)
    join(host, daemon)
    host.desired(DeviceMemoryLimit="4G", LimitBypass="terminate", LimitBypassGraceSec=1)
    host.systemd.act("reload", ["mps-control@0.service"])
    for _ in range(3):
        found = Look(host)
        host.clock.pass_by(3600)
    assert found.amiss["client-limits"].level == CRITICAL
    assert daemon.terminated == []


def test_a_client_with_an_older_limit_is_never_ended(host: Host, strict: FakeDaemon) -> None:
    join(host, strict)
    host.desired(DeviceMemoryLimit="2G", LimitBypass="terminate", LimitBypassGraceSec=1)
    host.systemd.act("reload", ["mps-control@0.service"])
    for _ in range(3):
        assert Look(host).word == OK
        host.clock.pass_by(3600)
    assert strict.terminated == []


@pytest.mark.parametrize("answer", ["1", "Server 9001 not found", ""])
def test_nothing_is_said_to_be_ended_that_the_daemon_did_not_end(host: Host, strict: FakeDaemon, answer: str) -> None:
    join(host, strict, "1G")
    Look(host)
    host.clock.pass_by(GRACE_S)
    strict.answer_to_terminate = answer
    assert Look(host).kinds == [health.CLIENT_NOT_ENDED]
    strict.answer_to_terminate = None
    Look(host)
    assert len(strict.terminated) == 1, "it is tried again"


def test_a_client_that_was_ended_is_not_ended_again_while_it_lingers(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    Look(host)
    host.clock.pass_by(GRACE_S)
    Look(host)
    strict.servers[SERVER].clients.append(pid)
    for _ in range(3):
        host.clock.pass_by(GRACE_S)
        Look(host)
    assert strict.terminated == [pid]


def test_a_daemon_that_does_not_answer_makes_nothing_forgotten(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    Look(host)
    host.clock.pass_by(GRACE_S)
    strict.not_served = True
    Look(host)
    strict.not_served = False
    Look(host)
    assert strict.terminated == [pid]


def test_what_is_remembered_is_gone_after_a_real_stop(host: Host, strict: FakeDaemon) -> None:
    join(host, strict, "1G")
    Look(host)
    host.stop()
    assert not (host.places.runtime("0") / "escapes.json").exists()


def test_a_damaged_memory_begins_anew(host: Host, strict: FakeDaemon) -> None:
    join(host, strict, "1G")
    (host.places.runtime("0") / "escapes.json").write_text('[{"pid": 1')
    assert Look(host).kinds == [health.CLIENT_WILL_BE_ENDED]


# -- the policy in the file


@pytest.mark.parametrize(
    ("lines", "policy", "grace_s"),
    [
        ("", "report", 60),
        ("LimitBypass=report", "report", 60),
        ("LimitBypass=terminate\nLimitBypassGraceSec=5", "terminate", 5),
    ],
)
def test_the_policy_stands_in_the_instances_file(host: Host, lines: str, policy: str, grace_s: int) -> None:
    instance = parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Clients]\n{lines}\n", "0")
    assert (instance.limit_bypass, instance.limit_bypass_grace_s) == (policy, grace_s)


@pytest.mark.parametrize(
    ("line", "variable"),
    [("LimitBypass=kill", "mps_limit_bypass"), ("LimitBypass=", "mps_limit_bypass")]
    + [(f"LimitBypassGraceSec={value}", "mps_limit_bypass_grace_s") for value in ("0", "-1", "1.5", "1m", "3601")],
)
def test_another_policy_is_refused_by_name(line: str, variable: str) -> None:
    with pytest.raises(BadValue) as refused:
        parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Clients]\n{line}\n", "0")
    assert refused.value.variable == variable


@pytest.mark.parametrize(
    ("line", "policy"), [("", "report")] + [(f"UnresponsiveDaemon={p}", p) for p in ("report", "restart")]
)
def test_the_policy_for_an_unresponsive_daemon_stands_in_the_instances_file(line: str, policy: str) -> None:
    instance = parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Daemon]\n{line}\n", "0")
    assert instance.unresponsive_daemon == policy


@pytest.mark.parametrize("value", ["terminate", "", "Restart", "yes"])
def test_another_policy_for_an_unresponsive_daemon_is_refused(value: str) -> None:
    with pytest.raises(BadValue, match="report or restart"):
        parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Daemon]\nUnresponsiveDaemon={value}\n", "0")


@pytest.mark.parametrize(
    ("command", "daemons"),
    [
        ("nvidia-cuda-mps-control", 0),
        ("/usr/bin/nvidia-cuda-mps-control -f", 1),
        ("/usr/bin/nvidia-cuda-mps-control -d", 1),
        ("nvidia-cuda-mps-server", 0),
        ("/usr/sbin/nvidia-cuda-mps-server", 0),
        ("", 0),
    ],
)
def test_neither_a_server_nor_a_front_end_is_a_daemon(host: Host, command: str, daemons: int) -> None:
    """The kernel cuts all their names to the same 15 characters."""
    host.process("nvidia-cuda-mps", command, {})
    assert len(list(control.daemons())) == daemons
