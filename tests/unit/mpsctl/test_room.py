"""How many clients are in each place: what is told is what the front door goes by."""

from __future__ import annotations

import random
from typing import Optional

import pytest

from door import ALICE, BOB, Door
from mpsctl.checks import words
from mpsctl.front_door.judge import LetIn, Visitor
from mpsctl.model import shares
from mpsctl.model.shares import Room, check_shares
from mpsctl.observe import room as counting
from mpsctl.observe.door_facts import Place, RoomFacts
from mpsctl.observe.room import Count
from mpsctl.store import front_door_notes
from mpsctl.store.admission import OPEN, Admission
from mpsctl.store.front_door_notes import Notes, Waits

UNITS = ("/system.slice/api.service", "/batch.slice/job@7.service", "/system.slice/web.service")


class Crowd:
    """Clients of a door, and what the daemon lists of them."""

    def __init__(self, door: Door, room: Room) -> None:
        self.door, self.room = door, room
        door.say(Admission(OPEN, "", door.served, multi_user=True, room=room))
        self.members: list[Visitor] = []
        self.was_listed: set[int] = set()

    def comes(self, uid: int, group: str, container: Optional[str] = None) -> Visitor:
        pid = self.door.host.process("python3", "python3 serve.py", {}, uid)
        self.door.host.processes[pid].group, self.door.host.processes[pid].container = group, container
        return self.door.visitor(uid, pid=pid)

    @property
    def clients(self) -> list[int]:
        """Whom the daemon lists; its one server starts with the first who comes."""
        return [pid for server in self.door.daemon.servers.values() for pid in server.clients]

    def in_if_it_may(self, visitor: Visitor) -> bool:
        self.door.host.clock.pass_by(2)
        self.door.worker.work()
        if self.door.settled(visitor, within_s=3) != LetIn(self.door.served):
            self.door.judge.gave_up(visitor, 0)
            return False
        self.door.passes(visitor)
        self.members.append(visitor)
        return True

    def listed(self, visitor: Visitor) -> None:
        (server,) = self.door.daemon.servers
        self.door.daemon.connect(server, visitor.pid)
        self.was_listed.add(visitor.pid)

    def unlisted(self, visitor: Visitor) -> None:
        (server,) = self.door.daemon.servers
        self.door.daemon.leave(server, visitor.pid)

    def ends(self, visitor: Visitor) -> None:
        if visitor.pid in self.clients:
            self.unlisted(visitor)
        self.door.host.kill(visitor.pid)
        self.members.remove(visitor)

    def count(self) -> Count:
        served, notes, now_s = self.door.served, self.door.notes, self.door.host.clock.now_s
        return counting.count(self.room, served, notes, self.clients, now_s, self.was_listed)


@pytest.mark.parametrize("seed", range(6))
def test_whoever_finds_a_place_by_this_count_is_let_in_and_nobody_else(door: Door, seed: int) -> None:
    chance = random.Random(seed)
    text = "unit:api.service=2 unit:batch.slice=2 each-unit=1 user:2000=3 each-container=1"
    crowd = Crowd(door, Room(4, check_shares(text)))
    told = []
    for _ in range(60):
        act = chance.choice(("comes", "comes", "listed", "unlisted", "ends", "time"))
        member = chance.choice(crowd.members) if crowd.members else None
        if act == "comes" or member is None:
            container = chance.choice((None, None, "c1"))
            visitor = crowd.comes(chance.choice((ALICE, BOB)), chance.choice(UNITS), container)
            door.host.clock.pass_by(7)  # past the moment in which the daemon may list somebody or not
            found = crowd.count().no_place(door.host.whose(visitor.pid, visitor.uid))
            told.append(found)
            assert (found is None) == crowd.in_if_it_may(visitor), (seed, found)
        elif act == "time":
            door.host.clock.pass_by(chance.choice((10, 130)))
        elif act == "ends":
            crowd.ends(member)
        elif (act == "listed") != (member.pid in crowd.clients):
            getattr(crowd, act)(member)
    assert len({found.name if found else "" for found in told}) > 2, "the history shows several places"


def test_who_was_let_in_and_is_not_listed_yet_counts_and_who_ended_does_not(door: Door) -> None:
    crowd = Crowd(door, Room(2))
    first, second = crowd.comes(ALICE, UNITS[0]), crowd.comes(ALICE, UNITS[0])
    assert crowd.in_if_it_may(first)
    assert crowd.in_if_it_may(second)
    (place,) = crowd.count().facts.places
    assert (place.pids, place.full, place.above) == ((first.pid, second.pid), True, False)
    door.host.processes[first.pid].state = "Z"
    assert crowd.count().facts.places[0].pids == (second.pid,)


def test_notes_of_an_earlier_daemon_count_for_nothing(door: Door) -> None:
    crowd = Crowd(door, Room(2))
    assert crowd.in_if_it_may(crowd.comes(ALICE, UNITS[0]))
    notes = front_door_notes.read(door.host.places, "0")
    later = counting.count(crowd.room, None, notes, [], door.host.clock.now_s)
    assert later.facts == RoomFacts((Place("clients", 2, ()),), refuse=False)


@pytest.mark.wording
def test_notes_that_are_not_whole_may_lack_somebody_and_that_is_said(door: Door) -> None:
    crowd = Crowd(door, Room(2))
    assert crowd.in_if_it_may(crowd.comes(ALICE, UNITS[0]))
    assert door.notes.whole
    front_door_notes.path(door.host.places, "0").with_suffix(".let-in").write_text('{"pid": 7, "st')
    counted = counting.count(crowd.room, door.served, front_door_notes.read(door.host.places, "0"), [], 0)
    assert not counted.facts.whole
    assert words.room(counted.facts).startswith("1 of 2 clients; and perhaps more")


def test_every_share_is_told_and_of_defaults_those_in_which_somebody_is_or_waits(door: Door) -> None:
    room = Room(8, check_shares("unit:a.service=3 each-user=2 each-unit=1"), refuse=True)
    crowd = Crowd(door, room)
    assert crowd.in_if_it_may(crowd.comes(ALICE, UNITS[0]))
    late = crowd.comes(BOB, UNITS[1])
    waits = Waits(late.pid, BOB, door.host.clock.now_s, "no-place", "unit:job@7.service")
    notes = Notes((waits, waits), front_door_notes.read(door.host.places, "0").let_in)
    counted = counting.count(room, door.served, notes, [], door.host.clock.now_s)
    told = {place.name: (place.has, place.most, place.waiting) for place in counted.facts.places}
    assert told == {
        "clients": (1, 8, 0),
        "unit:a.service": (0, 3, 0),
        "unit:api.service": (1, 1, 0),
        "unit:job@7.service": (0, 1, 1),
        f"user:{ALICE}": (1, 2, 0),
    }
    assert counted.free(door.host.whose(late.pid, BOB)) == 0, "somebody waits for it"


def test_how_many_more_find_a_place_is_the_least_of_all_that_they_count_in(door: Door) -> None:
    crowd = Crowd(door, Room(8, check_shares("each-user=5 unit:api.service=2")))
    assert crowd.in_if_it_may(crowd.comes(ALICE, UNITS[0]))
    counted = crowd.count()
    for uid, unit, free in ((ALICE, 0, 1), (ALICE, 1, 4), (BOB, 0, 1), (BOB, 1, 5)):
        whose = shares.Whose(uid, UNITS[unit])
        assert counted.free(whose) == free
        assert counted.no_place(whose, free) is None
        assert counted.no_place(whose, free + 1) is not None
    nobody_tells = counting.count(crowd.room, door.served, Notes(), None, 0)
    assert (nobody_tells.free(shares.Whose(ALICE)), nobody_tells.no_place(shares.Whose(ALICE))) == (None, None)
