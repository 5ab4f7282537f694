"""Later connections of a process that was let in: to the server that it began with, or to none.

A process keeps from its first connection what its server told it of limits. A context that it makes through another
server has no memory limit, and 8 multiprocessors (driver 580, H200: 36 of 2,299 clients in storms of kills).
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Optional

import pytest

from door import BOB, Door
from mpsctl.adapters import procfs
from mpsctl.front_door.judge import LetIn, Refuse, Visitor, Wait
from mpsctl.store import front_door_notes, remembered

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


def test_it_waits_for_its_own_server_where_another_one_is_ready(door: Door) -> None:
    known = door.come_in(door.visitor())
    (own,) = door.daemon.servers
    door.daemon.servers[own].state = "FAULT"
    door.start_server(0)
    door.host.clock.pass_by(2)
    door.come_in(door.visitor())  # the other one serves him
    assert isinstance(door.settled(again(door, known), within_s=1), Wait)
    door.end_server(own)
    assert door.word(again(door, known)) == ENDED


def test_one_look_that_failed_keeps_nobody_out_of_his_server_in_a_drain(door: Door) -> None:
    known = door.come_in(door.visitor())
    door.host.clock.pass_by(2)
    door.daemon.not_served = True
    assert isinstance(door.settled(door.visitor(), within_s=1), Wait)
    door.daemon.not_served = False
    door.drain(refuse=True)
    assert door.word(again(door, known), within_s=10) == "let-in"


def test_a_first_connection_that_failed_takes_no_other_ones_note_away(door: Door) -> None:
    first = door.visitor()
    assert door.settled(first) == LetIn(door.served)
    door.told(first)  # and the daemon closed before it had both messages
    second = again(door, first)
    assert door.settled(second) == LetIn(door.served)
    door.passes(second)
    door.judge.gave_up(first, 0)
    next_daemon(door)
    assert door.word(again(door, first)) == ENDED


def test_who_ends_while_the_arriving_are_counted_ends_no_door(door: Door) -> None:
    """The scribe forgets them meanwhile."""
    door.open(multi_user=False)
    for _ in range(5):
        door.come_in(door.visitor())
    notebook = door.judge._notebook
    began_at = procfs.started_at

    def forgets_meanwhile(pid: int) -> Optional[int]:
        notebook._let_in.clear()
        return began_at(pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procfs, "started_at", forgets_meanwhile)
        notebook.arriving(door.served)


def test_a_reader_misses_nobody_while_the_notes_are_written(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom the door added moves into the file while another program reads both."""
    known = door.come_in(door.visitor())
    load = remembered.load

    def written_meanwhile(path: Path) -> object:
        found = load(path)
        door.judge._notebook.write()
        return found

    door.judge._notebook.write()
    late = door.come_in(door.visitor())
    monkeypatch.setattr(remembered, "load", written_meanwhile)
    found = front_door_notes.read(door.host.places, "0")
    assert {one.pid for one in found.let_in} == {known.pid, late.pid}


def test_a_line_that_was_cut_short_takes_no_other_with_it(door: Door) -> None:
    known = door.come_in(door.visitor())
    added = front_door_notes._added_path(door.host.places, "0")
    late = door.visitor()
    assert door.settled(late) == LetIn(door.served)
    added.write_bytes(b'{"pid": 1, "started_')
    door.told(late)
    assert {one.pid for one in front_door_notes.read(door.host.places, "0").let_in} == {known.pid, late.pid}


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


@pytest.mark.parametrize("lost", LOST)
def test_another_program_of_the_same_process_begins_anew(door: Door, lost: Callable[[Door], None]) -> None:
    """exec(2) leaves pid and start time, and nothing of the server that the program before began with."""
    first = door.come_in(door.visitor(stack=0x7FFC1000))
    lost(door)
    assert door.word(door.visitor(pid=first.pid, stack=0x7FFC1000)) == ENDED
    second = door.come_in(door.visitor(pid=first.pid, stack=0x7FFD2000))
    lost(door)
    assert door.word(door.visitor(pid=first.pid, stack=second.stack)) == ENDED


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 5), (5, 0), (5, 5)])
def test_where_the_program_cannot_be_told_it_is_taken_for_the_same(door: Door, before: int, after: int) -> None:
    first = door.come_in(door.visitor(stack=before))
    next_daemon(door)
    assert door.word(door.visitor(pid=first.pid, stack=after)) == ENDED


def test_another_program_meets_a_drain_as_everybody_does(door: Door) -> None:
    first = door.come_in(door.visitor(stack=1))
    door.drain(refuse=True)
    assert door.word(door.visitor(pid=first.pid, stack=1)) == "let-in"
    assert door.word(door.visitor(pid=first.pid, stack=2)).startswith("refused")
