"""A daemon that gave a client no answer: jammed is told from stopped, from held and from slow."""

from __future__ import annotations

import fcntl
import os
from typing import Sequence

import pytest

from door import Door
from mpsctl.adapters.control_daemon import NotServed
from mpsctl.front_door.judge import LetIn, Wait

HEALTH = "request start mps-health.service"


def jam(door: Door) -> None:
    """As driver 580's daemon is: the list answers, every question about a server hangs."""

    def hang(command: str) -> None:
        if command.startswith(("get_server_status", "get_client_list")):
            raise NotServed("it accepted the connection and said nothing")

    door.daemon.before_command = hang


def unanswered(door: Door) -> None:
    """A client was passed on and got no answer."""
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.judge.unanswered(visitor, door.served, "no answer within 10 s")


def test_a_jammed_daemon_is_noted_told_and_handed_to_health(door: Door) -> None:
    door.come_in(door.visitor())
    jammed = door.served
    door.entries()
    jam(door)
    unanswered(door)
    assert door.word(door.visitor(), within_s=3) == "jammed"
    noted = door.notes.jammed
    assert noted is not None
    assert (noted.daemon_pid, noted.daemon_started_at) == (jammed.pid, jammed.started_at)
    assert door.host.clock.now_s - 6 < noted.since_s <= door.host.clock.now_s
    assert door.host.systemd.acts == [HEALTH]
    events = [(one["MPS_EVENT"], one.get("MPS_REASON")) for one in door.entries()]
    assert events == [("refused", "daemon-silent"), ("jammed", None)]


def test_nobody_is_passed_on_from_the_first_suspicion(door: Door) -> None:
    first, second = door.visitor(), door.visitor()
    assert door.settled(first) == door.settled(second) == LetIn(door.served)
    known = door.come_in(door.visitor())
    door.judge.unanswered(first, door.served, "no answer within 10 s")
    assert not door.judge.still(second, door.served)
    assert door.judge.judge(second) != LetIn(door.served)
    for state in (door.open, door.drain):
        state()
        assert door.judge.judge(door.visitor(pid=known.pid)) == Wait("daemon-silent")


def test_a_daemon_that_answers_was_only_slow(door: Door) -> None:
    unanswered(door)
    assert door.settled(door.visitor()) == LetIn(door.served)
    assert door.notes.jammed is None
    assert door.host.systemd.acts == []


def test_a_jam_ends_with_the_daemon(door: Door) -> None:
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    visitor = door.visitor()
    assert door.word(visitor, within_s=3) == "jammed"
    door.host.kill(door.daemon.pid)
    assert door.word(visitor, within_s=1) == "daemon-down"
    door.launch()
    door.open()
    door.come_in(visitor)
    assert door.notes.jammed is None


def test_a_jam_that_dissolves_is_forgotten(door: Door) -> None:
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    visitor = door.visitor()
    assert door.word(visitor, within_s=3) == "jammed"
    door.daemon.before_command = lambda command: None
    door.come_in(visitor)
    assert door.notes.jammed is None


def test_health_is_asked_again_each_minute_while_somebody_waits(door: Door) -> None:
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    door.word(door.visitor(), within_s=130)
    assert door.host.systemd.acts == [HEALTH] * 3
    assert [one["MPS_EVENT"] for one in door.entries()].count("jammed") == 1


def test_a_stopped_daemon_is_not_jammed(door: Door) -> None:
    unanswered(door)
    door.host.processes[door.daemon.pid].state = "T"
    asked = len(door.daemon.commands)
    visitor = door.visitor()
    assert door.word(visitor, within_s=3) == "daemon-stopped"
    assert (door.notes.jammed, door.host.systemd.acts, len(door.daemon.commands)) == (None, [], asked)
    door.host.processes[door.daemon.pid].state = "S"
    door.come_in(visitor)


def test_a_stopped_server_is_no_jam(door: Door) -> None:
    door.come_in(door.visitor())
    (server,) = door.daemon.servers
    door.host.processes[server].state = "T"
    jam(door)
    unanswered(door)
    visitor = door.visitor()
    assert door.word(visitor, within_s=3) == "server-stopped"
    assert (door.notes.jammed, door.host.systemd.acts) == (None, [])
    door.host.processes[server].state = "S"
    door.daemon.before_command = lambda command: None
    door.come_in(visitor)


@pytest.mark.parametrize("environment", [{"CUDA_MPS_PIPE_DIRECTORY": "its own"}, {}, None])
def test_a_session_that_somebody_holds_is_no_jam(door: Door, environment: object) -> None:
    named = {"CUDA_MPS_PIPE_DIRECTORY": str(door.directory)} if environment else environment
    holder = door.host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", named)  # type: ignore[arg-type]
    unanswered(door)
    door.daemon.not_served, door.daemon.holders = True, (holder,)
    visitor = door.visitor()
    assert door.word(visitor, within_s=5) == "session-held"
    assert door.notes.jammed is None
    door.daemon.not_served = False
    door.come_in(visitor)


def test_another_call_of_ours_that_has_the_session_is_no_jam(door: Door) -> None:
    unanswered(door)
    door.daemon.not_served = True
    lock = os.open(door.host.places.runtime("0") / "session.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert door.word(door.visitor(), within_s=3) == "session-held"
        assert door.notes.jammed is None
    finally:
        os.close(lock)


def test_a_daemon_that_answers_no_look_at_its_servers_is_suspected_as_well(door: Door) -> None:
    jam(door)
    door.start_server(0)
    assert door.word(door.visitor(), within_s=3) == "jammed"


@pytest.mark.parametrize("heard_by", ["the worker", "a visitor's connection"])
def test_a_daemon_that_greets_nobody_is_suspected(door: Door, heard_by: str) -> None:
    visitor = door.visitor()
    if heard_by == "the worker":
        door.says = b""
    else:
        door.settled(visitor)
        door.judge.not_understood(door.served, b"")
    door.daemon.not_served = True
    assert door.word(visitor, within_s=3) == "jammed"


def test_a_jam_is_remembered_over_a_restart_of_the_door(door: Door) -> None:
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    door.word(door.visitor(), within_s=3)
    door.end()
    door.begin()
    assert door.word(door.visitor(), within_s=0.1) == "jammed"


def test_a_jam_of_an_earlier_daemon_is_forgotten_at_the_start_of_the_door(door: Door) -> None:
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    door.word(door.visitor(), within_s=3)
    door.end()
    door.host.kill(door.daemon.pid)
    door.launch()
    door.open()
    door.begin()
    door.come_in(door.visitor())
    assert door.notes.jammed is None


def test_health_that_cannot_be_started_is_said(door: Door) -> None:
    door.host.systemd.fails["start"] = "Unit mps-health.service not found."
    door.come_in(door.visitor())
    jam(door)
    unanswered(door)
    assert door.word(door.visitor(), within_s=3) == "jammed"
    said: Sequence[str] = door.host.said
    assert any("mps-health.service" in line for line in said)


# -- a door that died while it told the daemon of a client


def dies_while_it_tells(door: Door) -> None:
    """The door's process is killed between a client's credentials and the daemon's answer; another one starts."""
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.judge.tells(visitor, door.served)
    door.end()
    door.begin()


def test_the_next_process_of_the_door_looks_at_once_and_health_is_asked_before_anybody_comes(door: Door) -> None:
    dies_while_it_tells(door)
    jam(door)
    door.judge.look_back()
    door.worker.work()
    assert door.host.systemd.acts == [HEALTH]
    assert door.word(door.visitor()) == "jammed"


def test_a_daemon_that_was_told_and_is_well_lets_in(door: Door) -> None:
    dies_while_it_tells(door)
    door.judge.look_back()
    assert door.judge.judge(door.visitor()) == Wait("daemon-silent")
    door.come_in(door.visitor())
    assert (door.notes.jammed, door.host.systemd.acts) == (None, [])


@pytest.mark.parametrize("what", ["passed", "gave_up", "another_daemon"])
def test_nothing_is_looked_at_where_no_daemon_was_left_in_the_middle(door: Door, what: str) -> None:
    visitor, other = door.visitor(), door.visitor()
    assert door.settled(visitor) == door.settled(other) == LetIn(door.served)
    door.judge.tells(visitor, door.served)
    door.judge.gave_up(other, 0)  # is not the one of whom the daemon is told
    if what == "passed":
        door.judge.passed(visitor, 0)
    elif what == "gave_up":
        door.judge.gave_up(visitor, 0)
    else:
        door.host.kill(door.daemon.pid)
        door.launch()
        door.open()
    door.end()
    door.begin()
    asked = len(door.daemon.commands)
    door.judge.look_back()
    door.worker.work()
    assert len(door.daemon.commands) == asked
