"""Later connections of a process that was let in: to the server that it began with, or to none.

A process keeps from its first connection what its server told it of limits. A context that it makes through another
server has no memory limit, and 8 multiprocessors (driver 580, H200: 36 of 2,299 clients in storms of kills).
"""

from __future__ import annotations

from typing import Callable

import pytest

from door import BOB, Door
from mpsctl.front_door.judge import LetIn, Refuse, Visitor, Wait

ENDED = "refused: server-ended"


def next_daemon(door: Door) -> None:
    """The daemon was killed with its servers, and the next one's limits are in force."""
    for pid in list(door.daemon.servers):
        door.end_server(pid)
    door.host.kill(door.daemon.pid)
    door.host.clock.pass_by(2)
    door.launch()
    door.open()


def next_server(door: Door) -> None:
    """Its server ended by itself, and another one is up."""
    for pid in list(door.daemon.servers):
        door.end_server(pid)
    door.host.clock.pass_by(2)
    door.start_server(0)


def former_server_stays(door: Door) -> None:
    """The daemon was killed, its server lives on for a while, and the next daemon serves already."""
    door.host.kill(door.daemon.pid)
    door.host.clock.pass_by(2)
    door.launch()
    door.open()


LOST = [next_daemon, next_server, former_server_stays]


def again(door: Door, visitor: Visitor) -> Visitor:
    return door.visitor(visitor.uid, pid=visitor.pid)


@pytest.mark.parametrize("lost", LOST)
def test_a_process_whose_server_is_gone_is_told_so_at_once(door: Door, lost: Callable[[Door], None]) -> None:
    known = door.come_in(door.visitor())
    lost(door)
    assert door.word(again(door, known)) == ENDED
    assert door.word(door.visitor()) == "let-in"


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("written", [True, False])
def test_so_is_it_by_the_next_process_of_the_door(door: Door, lost: Callable[[Door], None], written: bool) -> None:
    """Also by one whose predecessor was killed before it wrote its notes."""
    known = door.come_in(door.visitor())
    if written:
        door.end()
    door.begin()
    lost(door)
    assert door.word(again(door, known)) == ENDED


def test_who_was_added_while_the_notes_were_written_is_not_lost(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the disk that took no notes, nor by the notes that were made before."""
    first = door.come_in(door.visitor())
    with monkeypatch.context() as patch:
        patch.setattr("mpsctl.adapters.files.write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        for _ in range(5):
            door.host.clock.pass_by(1)
            with pytest.raises(OSError, match="full"):
                door.judge._notebook.write()
    second = door.come_in(door.visitor())
    door.faults.clear()
    door.begin()
    next_daemon(door)
    assert [door.word(again(door, one)) for one in (first, second)] == [ENDED, ENDED]


def test_the_journal_says_why(door: Door) -> None:
    known = door.come_in(door.visitor())
    next_daemon(door)
    late = again(door, known)
    verdict = door.settled(late)
    assert isinstance(verdict, Refuse)
    door.judge.refused(late, verdict.reason, verdict.text, 0)
    assert [(one["MPS_EVENT"], one.get("MPS_REASON")) for one in door.entries()][-1] == ("refused", "server-ended")


def test_the_same_server_lets_it_in_again(door: Door) -> None:
    known = door.come_in(door.visitor())
    for _ in range(3):
        door.come_in(again(door, known))
    assert [one["MPS_EVENT"] for one in door.entries()] == ["let-in"]


def test_while_nobody_knows_the_next_daemon_it_is_refused_as_well(door: Door) -> None:
    known = door.come_in(door.visitor())
    for pid in list(door.daemon.servers):
        door.end_server(pid)
    door.host.kill(door.daemon.pid)
    assert door.word(again(door, known)) == ENDED


def test_while_only_the_daemon_is_gone_it_waits(door: Door) -> None:
    known = door.come_in(door.visitor())
    door.host.kill(door.daemon.pid)
    door.host.systemd.unit("mps-control@0.service").active_state = "activating"
    assert isinstance(door.settled(again(door, known), within_s=1), Wait)


@pytest.mark.parametrize("ends", ["gave_up", "unanswered", "refused"])
def test_a_first_connection_that_the_daemon_did_not_serve_binds_nobody(door: Door, ends: str) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.told(visitor)
    if ends == "gave_up":
        door.judge.gave_up(visitor, 0)
    elif ends == "unanswered":
        door.judge.unanswered(visitor, door.served, "the daemon closed the connection")
    else:
        door.judge.refused(visitor, "credentials", "not allowed", 0)
    next_daemon(door)
    assert door.word(again(door, visitor)) == "let-in"


def test_who_waits_on_because_the_daemon_could_not_be_told_comes_in_to_the_next_one(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.told(visitor)  # and it closed before it had both messages
    next_daemon(door)
    door.come_in(visitor)
    assert [one["MPS_EVENT"] for one in door.entries()] == ["let-in"]


def test_a_later_process_with_its_pid_is_somebody_else(door: Door) -> None:
    known = door.come_in(door.visitor())
    door.host.clock.pass_by(2)
    door.host.process("python3", "python3", {}, BOB, known.pid)
    next_daemon(door)
    assert door.word(door.visitor(BOB, pid=known.pid)) == "let-in"
