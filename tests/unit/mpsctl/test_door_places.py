"""How many clients come in at once: in all, and by unit, user and container.

What a server lists is as on an H200 with driver 580: a process that has a context, not yet one after cuInit alone, no
more one whose last context is destroyed; each new context comes to the door again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Optional

import pytest

from door import ALICE, BOB, Door
from mpsctl.adapters import control_groups
from mpsctl.front_door.judge import LetIn, Refuse, Visitor, Wait
from mpsctl.model import shares
from mpsctl.model.shares import PLACE_HOLDS_S, Room, Whose, check_shares
from mpsctl.store.admission import OPEN, Admission

API, BATCH, WEB = "/system.slice/api.service", "/batch.slice/batch-b.slice/job@7.service", "/system.slice/web.service"
NO_PLACE, ONE_TOO_MANY = "no-place", "refused: over-expected"


def hold(door: Door, clients: Optional[int], text: str = "", refuse: bool = False) -> Room:
    room = Room(clients, check_shares(text), refuse)
    door.say(Admission(OPEN, "", door.served, multi_user=True, room=room))
    return room


def comes(door: Door, uid: int = ALICE, group: str = API, container: str = "") -> Visitor:
    pid = door.host.process("python3", "python3 serve.py", {}, uid)
    door.host.processes[pid].group, door.host.processes[pid].container = group, container or None
    return door.visitor(uid, pid=pid)


def again(door: Door, visitor: Visitor) -> Visitor:
    return door.visitor(visitor.uid, pid=visitor.pid)


def the_server(door: Door) -> int:
    (server,) = door.daemon.servers
    return server


def works(door: Door, visitor: Visitor) -> Visitor:
    """It came in and has a context: its server lists it."""
    door.come_in(visitor)
    door.daemon.connect(the_server(door), visitor.pid)
    return visitor


def no_context(door: Door, visitor: Visitor) -> None:
    door.daemon.leave(the_server(door), visitor.pid)


def ends(door: Door, visitor: Visitor) -> None:
    if visitor.pid in door.daemon.servers[the_server(door)].clients:
        no_context(door, visitor)
    door.host.kill(visitor.pid)


def test_one_more_than_there_is_room_for_waits_until_one_has_ended(door: Door) -> None:
    hold(door, 2)
    first, _ = works(door, comes(door)), works(door, comes(door))
    late = comes(door)
    verdict = door.settled(late, within_s=3)
    assert verdict == Wait(NO_PLACE, shares.ALL)
    ends(door, first)
    assert door.word(late) == "let-in"


def test_or_is_refused_at_once_where_that_is_chosen(door: Door) -> None:
    hold(door, 1, refuse=True)
    first = works(door, comes(door))
    verdict = door.settled(comes(door))
    assert isinstance(verdict, Refuse)
    assert (verdict.reason, verdict.text) == ("over-expected", "the instance takes 1 client at once, and has as many")
    ends(door, first)
    assert door.word(comes(door)) == "let-in"


def test_nobody_is_refused_by_what_the_daemon_said_long_ago(door: Door) -> None:
    hold(door, 1, refuse=True)
    first = works(door, comes(door))
    door.host.clock.pass_by(30)
    ends(door, first)
    door.host.clock.pass_by(10)
    assert door.word(comes(door)) == "let-in", "the very first one that comes"


def test_when_several_have_ended_as_many_come_in_by_one_list(door: Door) -> None:
    """Who ended is not met again in the notes, which forget him later."""
    hold(door, 3)
    first, late = [works(door, comes(door)) for _ in range(3)], [comes(door) for _ in range(3)]
    assert {door.word(one, within_s=1) for one in late} == {NO_PLACE}
    for one in first:
        ends(door, one)
    assert door.settled(late[0]) == LetIn(door.served)
    asked = len(door.daemon.commands)
    for one in late:
        assert door.judge.judge(one) == LetIn(door.served)
        door.passes(one)
    assert len(door.daemon.commands) == asked
    door.host.clock.pass_by(0.2)
    assert door.judge.judge(comes(door)) == Wait(NO_PLACE, shares.ALL)


def test_who_can_come_to_no_server_any_more_has_no_place(door: Door) -> None:
    """He began with a server that has ended, and would be told so."""
    hold(door, 1)
    door.come_in(comes(door))
    door.end_server(the_server(door))
    door.host.clock.pass_by(6)
    assert door.word(comes(door, BOB), within_s=10) == "let-in"


def test_who_comes_again_has_two_minutes_again(door: Door) -> None:
    """A program that another one became by exec(2) loads its data first."""
    hold(door, 1)
    first, late = works(door, comes(door)), comes(door)
    assert door.word(late, within_s=2) == NO_PLACE
    no_context(door, first)
    door.come_in(again(door, first))
    assert door.word(late, within_s=30) == NO_PLACE


def test_who_hides_his_group_comes_in_by_no_share_of_a_unit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "whose", lambda pid, uid: Whose(uid, group_untold=True))
    hold(door, 8, "each-unit=2")
    assert door.word(comes(door)) == ONE_TOO_MANY
    hold(door, 8, "each-user=2")
    assert door.word(comes(door)) == "let-in"


def test_who_does_not_hold_a_number_takes_as_many_as_come(door: Door) -> None:
    for _ in range(20):
        works(door, comes(door))


def test_a_place_is_taken_when_its_process_is_let_in(door: Door) -> None:
    """Before any server lists it."""
    hold(door, 1)
    door.come_in(comes(door))
    assert door.word(comes(door), within_s=3) == NO_PLACE


def test_and_kept_while_its_server_lists_it_though_it_has_ended(door: Door) -> None:
    hold(door, 1)
    first = works(door, comes(door))
    door.host.kill(first.pid)
    late = comes(door)
    assert door.word(late, within_s=5) == NO_PLACE
    no_context(door, first)
    assert door.word(late) == "let-in"


def test_a_list_from_before_its_end_frees_no_place(door: Door) -> None:
    """Between the end of a process and the next list its memory may be held still."""
    hold(door, 1)
    first, late = works(door, comes(door)), comes(door)
    assert door.word(late, within_s=1) == NO_PLACE
    ends(door, first)
    asked = door.daemon.commands.count(f"get_client_list {the_server(door)}")
    assert isinstance(door.judge.judge(late), Wait), "nobody asked since"
    assert door.word(late) == "let-in"
    assert door.daemon.commands.count(f"get_client_list {the_server(door)}") > asked


def test_who_makes_no_context_keeps_his_place_for_two_minutes(door: Door) -> None:
    hold(door, 1)
    door.come_in(comes(door))
    late = comes(door)
    assert door.word(late, within_s=PLACE_HOLDS_S - 5) == NO_PLACE
    assert door.word(late, within_s=10) == "let-in"


def test_who_gave_his_place_away_waits_for_one_when_he_comes_again(door: Door) -> None:
    hold(door, 1)
    first, second = works(door, comes(door)), comes(door)
    assert door.word(second, within_s=2) == NO_PLACE
    no_context(door, first)
    assert door.word(second, within_s=10) == "let-in"
    works(door, second)
    back = again(door, first)
    assert door.word(back, within_s=3) == NO_PLACE
    ends(door, second)
    assert door.word(back) == "let-in"


def test_who_has_a_place_comes_again_while_it_is_full(door: Door) -> None:
    hold(door, 1, refuse=True)
    first = works(door, comes(door))
    for _ in range(3):
        door.come_in(again(door, first))
    assert door.word(comes(door)) == ONE_TOO_MANY


def test_who_was_not_passed_on_after_all_has_no_place(door: Door) -> None:
    hold(door, 1)
    first = comes(door)
    assert door.settled(first) == LetIn(door.served)
    door.told(first)
    door.judge.gave_up(first, 0)
    assert door.word(comes(door)) == "let-in"


def test_the_last_look_before_a_visitor_is_passed_on_counts_as_well(door: Door) -> None:
    """Two may be judged before the first of them is told."""
    hold(door, 1)
    first, second = comes(door), comes(door)
    assert [door.settled(one) for one in (first, second)] == [LetIn(door.served)] * 2
    door.passes(first)
    assert not door.judge.still(second, door.served)


def test_the_next_process_of_the_door_counts_the_same(door: Door) -> None:
    hold(door, 2, "unit:api.service=1")
    works(door, comes(door))
    door.end()
    door.begin()
    assert door.settled(comes(door), within_s=3) == Wait(NO_PLACE, "unit:api.service")
    assert door.word(comes(door, group=WEB)) == "let-in"


def test_who_did_not_come_by_the_door_counts_once_he_is_listed(door: Door) -> None:
    """Clients of an instance that had no door, and root's at the daemon's own socket."""
    hold(door, 2)
    works(door, comes(door))
    past = comes(door)
    door.daemon.connect(the_server(door), past.pid)
    door.host.clock.pass_by(2)
    assert door.word(comes(door), within_s=3) == NO_PLACE


def test_clients_of_a_former_daemon_count_no_more(door: Door) -> None:
    hold(door, 1)
    works(door, comes(door))
    door.host.kill(door.daemon.pid)
    door.host.clock.pass_by(2)
    door.launch()
    hold(door, 1)
    assert door.word(comes(door)) == "let-in"


def test_a_lower_number_ends_nobody(door: Door) -> None:
    hold(door, 3)
    here = [works(door, comes(door)) for _ in range(3)]
    hold(door, 1)
    late = comes(door)
    assert door.word(late, within_s=2) == NO_PLACE
    for one in here[:2]:
        ends(door, one)
        assert door.word(late, within_s=2) == NO_PLACE
    ends(door, here[2])
    assert door.word(late) == "let-in"


def test_the_notes_say_what_place_is_missing(door: Door) -> None:
    hold(door, None, "unit:api.service=1")
    works(door, comes(door))
    late = comes(door)
    door.settled(late, within_s=1)
    (waits,) = door.notes.waiting
    assert (waits.pid, waits.why, waits.place) == (late.pid, NO_PLACE, "unit:api.service")


def test_who_waited_before_a_door_that_ended_waits_there_no_more(door: Door) -> None:
    hold(door, 1)
    works(door, comes(door))
    door.settled(comes(door), within_s=1)
    assert len(door.notes.waiting) == 1
    door.begin()
    assert not door.notes.waiting


@pytest.mark.parametrize("refuse", [True, False])
def test_a_share_of_nothing_is_refused_at_once(door: Door, refuse: bool) -> None:
    hold(door, None, f"user:{BOB}=0", refuse)
    assert door.word(comes(door, BOB)) == ONE_TOO_MANY
    assert door.word(comes(door, ALICE)) == "let-in"


@pytest.mark.parametrize(
    ("text", "full", "free"),
    [
        ("unit:api.service=1", (ALICE, API, ""), (ALICE, WEB, "")),
        ("unit:batch.slice=1", (ALICE, BATCH, ""), (ALICE, API, "")),
        (f"user:{ALICE}=1", (ALICE, WEB, ""), (BOB, API, "")),
        ("each-user=1", (ALICE, WEB, ""), (BOB, API, "")),
        ("each-unit=1", (BOB, API, ""), (BOB, WEB, "")),
        ("each-container=1", (0, "/system.slice/docker-aa.scope", "aa"), (0, "/system.slice/docker-bb.scope", "bb")),
    ],
)
def test_each_kind_of_share(door: Door, text: str, full: tuple[int, str, str], free: tuple[int, str, str]) -> None:
    hold(door, None, text)
    works(door, comes(door, ALICE, API) if "container" not in text else comes(door, *full))
    if "batch" in text:
        works(door, comes(door, BOB, BATCH))
    assert door.word(comes(door, *full), within_s=2) == NO_PLACE
    assert door.word(comes(door, *free)) == "let-in"


@pytest.mark.parametrize(
    ("whose", "expected"),
    [
        (Whose(ALICE, API), {"clients": 9, f"user:{ALICE}": 3, "unit:api.service": 4}),
        (Whose(BOB, API), {"clients": 9, f"user:{BOB}": 2, "unit:api.service": 4}),
        (Whose(BOB, BATCH), {"clients": 9, f"user:{BOB}": 2, "unit:batch.slice": 5}),
        (Whose(BOB, WEB), {"clients": 9, f"user:{BOB}": 2, "unit:web.service": 1}),
        (Whose(BOB), {"clients": 9, f"user:{BOB}": 2}),
        (Whose(0, "/system.slice/docker-aa.scope", "aa"), {"clients": 9, "user:0": 2, "container:aa": 1}),
        (
            Whose(0, "/batch.slice/docker-aa.scope", "aa"),
            {"clients": 9, "user:0": 2, "container:aa": 1, "unit:batch.slice": 5},
        ),
        (
            Whose(BOB, "/user.slice/user-2000.slice/session-3.scope"),
            {"clients": 9, f"user:{BOB}": 2, "unit:session-3.scope": 1},
        ),
    ],
)
def test_what_a_process_counts_in(whose: Whose, expected: dict[str, int]) -> None:
    text = f"unit:api.service=4 unit:batch.slice=5 user:{ALICE}=3 each-user=2 each-unit=1 each-container=1"
    assert dict(shares.places(Room(9, check_shares(text)), whose)) == expected


class Counted:
    """Random comings and goings, and what must hold after each: never more than there is room for."""

    def __init__(self, door: Door, seed: int) -> None:
        self.door, self.dice = door, random.Random(seed)
        self.room = hold(door, 8, f"unit:api.service=3 user:{BOB}=2 each-unit=4")
        self.here: list[Visitor] = []
        self.since_s: dict[int, float] = {}
        self.waiting: list[Visitor] = []
        self.admitted = 0

    def whose(self, visitor: Visitor) -> Whose:
        return self.door.host.whose(visitor.pid, visitor.uid)

    def step(self) -> None:
        dice, door = self.dice, self.door
        what = dice.random()
        if what < 0.55:
            self.waiting.append(comes(door, dice.choice((ALICE, BOB)), dice.choice((API, BATCH, WEB))))
        elif what < 0.7 and self.waiting:  # one is killed while it waits
            gone = self.waiting.pop(dice.randrange(len(self.waiting)))
            door.host.kill(gone.pid)
            door.judge.gave_up(gone, 0)
        elif self.here:
            ends(door, self.here.pop(dice.randrange(len(self.here))))
        if dice.random() < 0.01:
            door.end()
            for one in self.waiting:
                door.host.kill(one.pid)
            self.waiting = []
            door.begin()
        for one in list(self.waiting):
            if isinstance(door.ask(one), LetIn) and door.judge.still(one, door.served):
                self.waiting.remove(one)
                self.come_in(one)
        self.holds()

    def come_in(self, visitor: Visitor) -> None:
        door = self.door
        door.judge.tells(visitor, door.served)
        if self.dice.random() < 0.05:  # it dies in the middle
            door.host.kill(visitor.pid)
            door.judge.gave_up(visitor, 0)
            return
        door.judge.passed(visitor, 0)
        self.admitted += 1
        self.here.append(visitor)
        self.since_s[visitor.pid] = door.host.clock.now_s
        if self.dice.random() < 0.9:
            door.daemon.connect(the_server(door), visitor.pid)

    def has_place(self, visitor: Visitor) -> bool:
        """Who makes no context gives his place away after a while."""
        listed = visitor.pid in self.door.daemon.servers[the_server(self.door)].clients
        return listed or self.door.host.clock.now_s < self.since_s[visitor.pid] + PLACE_HOLDS_S

    def holds(self) -> None:
        holders = list(filter(self.has_place, self.here))
        counted = shares.count(self.room, map(self.whose, holders))
        for visitor in holders:
            for place, most in shares.places(self.room, self.whose(visitor)):
                assert counted[place] <= most, (place, counted)

    def rest(self) -> Counter[str]:
        """Once all have gone: as many come in as there is room for, no more and no less."""
        for one in self.waiting:
            self.door.judge.gave_up(one, 0)
        for one in self.here:
            ends(self.door, one)
        self.door.host.clock.pass_by(10)
        met: Counter[str] = Counter()
        for group in (API, BATCH, WEB):
            for _ in range(5):
                one = comes(self.door, ALICE, group)
                word = self.door.word(one, within_s=1)
                met[word] += 1
                if word == "let-in":
                    works(self.door, one)
        return met


@pytest.mark.parametrize("seed", range(4))
def test_counts_never_drift(door: Door, seed: int) -> None:
    """A hundred admissions each; `make soak` has 10,000 in all."""
    run = Counted(door, seed)
    while run.admitted < int(os.environ.get("MPS_ADMISSIONS", "100")):
        run.step()
    assert run.rest() == {"let-in": 8, NO_PLACE: 7}
