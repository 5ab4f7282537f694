"""health: every active instance is looked at in bounded time, and clients without their limit are ended where that is desired."""

from __future__ import annotations

import json
from typing import Optional, Sequence

import pytest

from fakes import Clock, FakeDaemon, Host, uuid
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters.control_daemon import NotServed
from mpsctl.lifecycle import health
from mpsctl.lifecycle.health import BOUND_S, INSTANCE_BOUND_S, Health
from mpsctl.model.errors import BadValue
from mpsctl.model.instance_file import parse_conf

SERVER = 9001
GRACE_S = 30


def begin(host: Host, name: str = "0", **values: object) -> FakeDaemon:
    host.desired(name, DeviceMemoryLimit="4G", **values)
    host.systemd.unit(f"mps-control@{name}.service").enabled = True
    daemon = host.start(name)
    daemon.start_server(SERVER)
    return daemon


def look(host: Host, name: str = "0") -> Health:
    return next(one for one in health.health(host.world) if one.instance == name)


def join(host: Host, daemon: FakeDaemon, variable: Optional[str] = None) -> int:
    pid = host.client(variable=variable)
    daemon.connect(SERVER, pid)
    return pid


@pytest.fixture
def strict(host: Host) -> FakeDaemon:
    return begin(host, LimitBypass="terminate", LimitBypassGraceSec=GRACE_S)


def test_a_host_that_is_well(host: Host) -> None:
    join(host, begin(host))
    begin(host, "1")
    assert health.health(host.world) == [Health("0"), Health("1")]


def test_a_host_without_instances_is_well(host: Host) -> None:
    assert health.health(host.world) == []


def test_only_active_instances_are_looked_at(host: Host) -> None:
    begin(host)
    host.desired("1")
    assert [one.instance for one in health.health(host.world)] == ["0"]


def test_a_refused_file_is_told_beside_the_others(host: Host) -> None:
    begin(host)
    host.desired("1", DeviceMemoryLimit="20")
    assert [(one.instance, one.well) for one in health.health(host.world)] == [("0", True), ("1", False)]


def test_looking_changes_nothing(host: Host) -> None:
    daemon = begin(host)
    join(host, daemon)
    before, setters = host.snapshot(), list(daemon.setters)
    look(host)
    assert host.snapshot() == before
    assert daemon.setters == setters
    assert host.systemd.acts == []


# -- a daemon that does not answer


class Stopped(FakeDaemon):
    """A daemon stopped by a signal: whoever asks waits for as long as he will."""

    clock: Clock

    def ask(self, commands: Sequence[str], deadline_s: float = 10) -> list[list[str]]:
        self.clock.pass_by(deadline_s)
        raise NotServed(f"the control daemon did not answer within {deadline_s:g} s")


def stop_it(host: Host, daemon: FakeDaemon) -> None:
    stopped = Stopped(daemon.pid)
    stopped.clock = host.clock
    host.daemons = {path: stopped if known is daemon else known for path, known in host.daemons.items()}


def test_a_daemon_that_does_not_answer_is_told_in_bounded_time_and_left_alone(host: Host) -> None:
    stop_it(host, begin(host))
    begin(host, "1")
    begun_s = host.clock.now_s
    found = health.health(host.world)
    assert [(one.instance, one.well) for one in found] == [("0", False), ("1", True)]
    assert "did not answer within 5 s" in found[0].findings[0]
    assert host.clock.now_s - begun_s <= INSTANCE_BOUND_S
    assert host.systemd.acts == []


def test_many_daemons_that_do_not_answer_have_one_bound_together(host: Host) -> None:
    for name in range(12):
        stop_it(host, begin(host, f"i{name}", GPUs=str(name % 4)))
    begun_s = host.clock.now_s
    found = health.health(host.world)
    assert len(found) == 12
    assert not any(one.well for one in found)
    assert host.clock.now_s - begun_s <= BOUND_S
    assert "in time for this look; nothing was restarted" in found[-1].findings[0] or not found[-1].well


# -- what becomes of it


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


KILL = "kill mps-control@0.service"


@pytest.mark.parametrize("how", ["stopped", "frozen", "without its socket"])
def test_by_default_a_unresponsive_daemon_is_named_at_every_look_and_left_alone(host: Host, how: str) -> None:
    unresponsive(host, how)
    for _ in range(4):
        found = look(host)
        assert (len(found.findings), found.actions) == (1, [])
    assert host.systemd.acts == []


def test_a_stopped_daemon_is_named_as_such_and_nobody_waits_for_it(host: Host) -> None:
    daemon = unresponsive(host, "stopped")
    daemon.before_command = lambda command: pytest.fail("it was asked")
    assert f"`kill -CONT {daemon.pid}`" in look(host).findings[0]


@pytest.mark.parametrize("how", ["stopped", "frozen", "without its socket"])
def test_where_it_is_desired_a_daemon_unresponsive_at_two_looks_in_a_row_is_ended(host: Host, how: str) -> None:
    daemon = unresponsive(host, how, UnresponsiveDaemon="restart")
    begin(host, "1", UnresponsiveDaemon="restart")
    assert "will be ended at the next look" in look(host).actions[0]
    assert host.systemd.acts == []
    found = look(host)
    assert not found.well
    assert f"(pid {daemon.pid}) was ended with SIGKILL" in found.actions[0]
    assert host.systemd.acts == [KILL], "and its neighbour is not"


def test_a_daemon_that_answers_in_between_begins_anew(host: Host) -> None:
    daemon = unresponsive(host, "frozen", UnresponsiveDaemon="restart")
    for _ in range(3):
        daemon.not_served = True
        look(host)
        daemon.not_served = False
        assert look(host).well
    assert host.systemd.acts == []


def test_another_process_begins_anew(host: Host) -> None:
    daemon = unresponsive(host, "stopped", UnresponsiveDaemon="restart")
    look(host)
    host.kill(daemon.pid)
    host.processes[host.start().pid].state = "T"
    look(host)
    assert host.systemd.acts == []


def test_a_daemon_whose_session_somebody_holds_is_never_ended(host: Host) -> None:
    unresponsive(host, "frozen", UnresponsiveDaemon="restart")
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", {})
    for _ in range(4):
        assert look(host).actions == []
    assert host.systemd.acts == []


def test_a_daemon_that_had_no_time_to_answer_is_never_ended(host: Host) -> None:
    for name in range(12):
        stop_it(host, begin(host, f"i{name}", GPUs=str(name % 4), UnresponsiveDaemon="restart"))
    for _ in range(2):
        found = health.health(host.world)
    ended = [one.instance for one in found if any("SIGKILL" in line for line in one.actions)]
    assert ended == [one.instance for one in found][: BOUND_S // INSTANCE_BOUND_S]


def test_a_gpu_that_is_gone_ends_no_daemon(host: Host) -> None:
    begin(host, UnresponsiveDaemon="restart")
    host.nvml.lost = {0}
    for _ in range(3):
        assert not look(host).well
    assert host.systemd.acts == []


def test_a_daemon_that_cannot_be_ended_is_told_and_tried_again(host: Host) -> None:
    unresponsive(host, "stopped", UnresponsiveDaemon="restart")
    look(host)
    host.systemd.fails["kill"] = "Access denied"
    assert "could not be ended: Access denied" in look(host).findings[-1]
    del host.systemd.fails["kill"]
    assert "was ended with SIGKILL" in look(host).actions[0]


def test_the_memory_of_a_unresponsive_daemon_is_gone_after_a_real_stop(host: Host) -> None:
    daemon = unresponsive(host, "frozen")
    look(host)
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
    found = {one.instance: one.findings for one in health.health(host.world) if not one.well}
    assert set(found) == instances
    for lines in found.values():
        assert len(lines) == 1
        assert f"(pid {pid})" in lines[0]
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps " in lines[0]


# -- limit bypasses


@pytest.mark.parametrize("variable", ["0=1G,1=1G", "1=1G", "1G"])
def test_by_default_an_client_without_its_limit_is_named_and_left_alone(host: Host, variable: str) -> None:
    daemon = begin(host)
    pid = join(host, daemon, variable)
    for _ in range(3):
        found = look(host)
        host.clock.pass_by(3600)
    assert f"client {pid} " in found.findings[0]
    assert (daemon.terminated, found.actions) == ([], [])


def test_an_client_without_its_limit_is_ended_after_its_grace_time_and_no_other(host: Host, strict: FakeDaemon) -> None:
    others = [join(host, strict), join(host, strict, "0=1G")]
    pid = join(host, strict, "1G")
    first = look(host)
    assert strict.terminated == []
    assert f"will be ended by the daemon in {GRACE_S} s" in first.actions[0]
    host.clock.pass_by(GRACE_S - 1)
    look(host)
    assert strict.terminated == []
    host.clock.pass_by(1)
    last = look(host)
    assert strict.terminated == [pid]
    assert f"`terminate_client {SERVER} {pid}`" in last.actions[0]
    assert not last.well, "it was found without its limit"
    assert strict.servers[SERVER].clients == others
    assert look(host) == Health("0")
    assert pid in host.processes, "no signal goes to a process"


def test_a_client_that_mends_itself_is_forgotten(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    look(host)
    remembered = host.places.runtime("0") / "escapes.json"
    assert json.loads(remembered.read_text())[0]["pid"] == pid
    strict.leave(SERVER, pid)
    assert look(host).well
    assert not remembered.exists()


def test_a_process_id_used_again_has_its_own_grace_time(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    look(host)
    host.clock.pass_by(GRACE_S)
    host.kill(pid)
    host.client(pid, variable="1G")
    look(host)
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
        found = look(host)
        host.clock.pass_by(3600)
    assert "got in without a limit" in found.findings[0]
    assert daemon.terminated == []


def test_a_client_with_an_older_limit_is_never_ended(host: Host, strict: FakeDaemon) -> None:
    join(host, strict)
    host.desired(DeviceMemoryLimit="2G", LimitBypass="terminate", LimitBypassGraceSec=1)
    host.systemd.act("reload", ["mps-control@0.service"])
    for _ in range(3):
        assert look(host).well
        host.clock.pass_by(3600)
    assert strict.terminated == []


@pytest.mark.parametrize("answer", ["1", "Server 9001 not found", ""])
def test_nothing_is_said_to_be_ended_that_the_daemon_did_not_end(host: Host, strict: FakeDaemon, answer: str) -> None:
    join(host, strict, "1G")
    look(host)
    host.clock.pass_by(GRACE_S)
    strict.answer_to_terminate = answer
    found = look(host)
    assert any("could not be ended" in finding for finding in found.findings)
    strict.answer_to_terminate = None
    look(host)
    assert len(strict.terminated) == 1, "it is tried again"


def test_a_client_that_was_ended_is_not_ended_again_while_it_lingers(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    look(host)
    host.clock.pass_by(GRACE_S)
    look(host)
    strict.servers[SERVER].clients.append(pid)
    for _ in range(3):
        host.clock.pass_by(GRACE_S)
        look(host)
    assert strict.terminated == [pid]


def test_a_daemon_that_does_not_answer_makes_nothing_forgotten(host: Host, strict: FakeDaemon) -> None:
    pid = join(host, strict, "1G")
    look(host)
    host.clock.pass_by(GRACE_S)
    strict.not_served = True
    look(host)
    strict.not_served = False
    look(host)
    assert strict.terminated == [pid]


def test_what_is_remembered_is_gone_after_a_real_stop(host: Host, strict: FakeDaemon) -> None:
    join(host, strict, "1G")
    look(host)
    host.stop()
    assert not (host.places.runtime("0") / "escapes.json").exists()


def test_a_damaged_memory_begins_anew(host: Host, strict: FakeDaemon) -> None:
    join(host, strict, "1G")
    (host.places.runtime("0") / "escapes.json").write_text('[{"pid": 1')
    assert "will be ended" in look(host).actions[0]


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
def test_the_policy_for_a_unresponsive_daemon_stands_in_the_instances_file(line: str, policy: str) -> None:
    instance = parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Daemon]\n{line}\n", "0")
    assert instance.unresponsive_daemon == policy


@pytest.mark.parametrize("value", ["terminate", "", "Restart", "yes"])
def test_another_policy_for_a_unresponsive_daemon_is_refused(value: str) -> None:
    with pytest.raises(BadValue, match="report or restart"):
        parse_conf(f"[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Daemon]\nUnresponsiveDaemon={value}\n", "0")


@pytest.mark.parametrize(
    ("command", "daemons", "front_ends"),
    [
        ("nvidia-cuda-mps-control", 0, 1),
        ("/usr/bin/nvidia-cuda-mps-control -f", 1, 0),
        ("/usr/bin/nvidia-cuda-mps-control -d", 1, 0),
        ("nvidia-cuda-mps-server", 0, 0),
        ("/usr/sbin/nvidia-cuda-mps-server", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_server_is_neither_a_daemon_nor_a_front_end(host: Host, command: str, daemons: int, front_ends: int) -> None:
    """The kernel cuts all their names to the same 15 characters."""
    host.process("nvidia-cuda-mps", command, {})
    assert len(list(control.processes(front_ends=False))) == daemons
    assert len(list(control.processes(front_ends=True))) == front_ends
