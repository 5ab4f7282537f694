"""What a visitor of the front door meets: the instance's state, the group, the drain, the daemon's greeting."""

from __future__ import annotations

import select
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest

from door import ALICE, UNIT, Door
from fakes import Host
from mpsctl.front_door import greeting
from mpsctl.front_door.judge import LetIn, Refuse, Wait
from mpsctl.model.errors import NotReady
from mpsctl.store import admission, drains, front_door_notes
from mpsctl.store.admission import CLOSED, WAITING, Admission


def test_an_open_instance_lets_in_once_its_server_is_ready(door: Door) -> None:
    visitor = door.visitor()
    assert isinstance(door.ask(visitor), Wait)
    assert door.settled(visitor) == LetIn(door.served)
    assert door.daemon.commands.count("start_server -uid 0") == 1


def test_a_judge_that_was_asked_wakes_the_loop_once_something_was_done(door: Door) -> None:
    def readable() -> bool:
        return bool(select.select([door.judge.fileno()], [], [], 0)[0])

    assert not readable()
    door.ask(door.visitor())
    assert not readable()
    assert door.worker.work() > 0
    assert readable()
    door.judge.woken()
    assert not readable()


def test_how_long_a_visitor_waits_is_the_admissions_word_and_stays_when_the_file_has_gone(door: Door) -> None:
    assert door.judge.wait_s() == 60
    door.say(Admission(CLOSED, wait_s=7))
    door.word(door.visitor())
    admission.forget(door.host.places, "0")
    door.word(door.visitor())
    assert door.judge.wait_s() == 7


# -- no daemon


def gone(door: Door) -> None:
    """No admission: the host has booted, or an earlier release wrote none."""
    admission.forget(door.host.places, "0")


def crashed(door: Door) -> None:
    door.host.kill(door.daemon.pid)


def starting(door: Door) -> None:
    door.say(Admission(WAITING))


def stopped(door: Door) -> None:
    crashed(door)
    door.host.systemd.unit(UNIT).active_state = "inactive"
    door.say(Admission(CLOSED, "the unit was stopped"))


def damaged(door: Door) -> None:
    door.host.clock.pass_by(1)
    admission.path(door.host.places, "0").write_text("{")


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (gone, "limits-not-in-force"),
        (crashed, "daemon-down"),
        (starting, "limits-not-in-force"),
        (damaged, "limits-not-in-force"),
    ],
)
@pytest.mark.parametrize("state", ["active", "activating", "reloading", "deactivating"])
def test_while_systemd_has_the_unit_in_hand_a_visitor_waits(
    door: Door, before: Callable[[Door], None], why: str, state: str
) -> None:
    before(door)
    door.host.systemd.unit(UNIT).active_state = state
    assert door.word(door.visitor(), within_s=10) == why


@pytest.mark.parametrize("before", [gone, crashed, starting, damaged])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "stopped"),
        ({"enabled": False}, "disabled"),
        ({"load_state": "masked"}, "masked"),
        ({"load_state": "not-found"}, "not-found"),
        ({"result": "exec-condition"}, "skipped"),
        ({"active_state": "failed", "result": "exit-code"}, "failed"),
    ],
)
def test_a_unit_that_nobody_will_start_refuses_with_the_reason(
    door: Door, before: Callable[[Door], None], changes: dict[str, object], reason: str
) -> None:
    before(door)
    unit = door.host.systemd.unit(UNIT)
    unit.active_state = "inactive"
    for name, value in changes.items():
        setattr(unit, name, value)
    assert door.word(door.visitor()) == f"refused: {reason}"


@pytest.mark.parametrize("before", [gone, crashed])
def test_a_unit_with_a_job_is_waited_for(door: Door, before: Callable[[Door], None]) -> None:
    before(door)
    door.host.systemd.unit(UNIT).active_state = "inactive"
    door.host.systemd.jobs[UNIT] = "start"
    assert isinstance(door.settled(door.visitor(), within_s=10), Wait)


def test_one_look_between_the_stop_and_the_start_of_a_restart_refuses_nobody(door: Door) -> None:
    gone(door)
    unit, visitor = door.host.systemd.unit(UNIT), door.visitor()
    unit.active_state = "inactive"
    shows = door.host.systemd.shows
    while door.host.systemd.shows == shows:
        assert isinstance(door.ask(visitor), Wait)
    unit.active_state = "activating"
    assert isinstance(door.settled(visitor, within_s=2), Wait)
    unit.active_state = "inactive"
    looks = door.host.systemd.shows
    assert isinstance(door.settled(visitor), Refuse)
    assert door.host.systemd.shows >= looks + 2


def test_systemd_is_asked_once_a_second_however_many_wait_and_not_at_all_when_nobody_does(door: Door) -> None:
    gone(door)
    visitors = [door.visitor() for _ in range(20)]
    for _ in range(100):
        for visitor in visitors:
            door.judge.judge(visitor)
        door.host.clock.pass_by(0.05)
        door.worker.work()
    assert 4 <= door.host.systemd.shows <= 6
    for _ in range(100):
        door.host.clock.pass_by(0.05)
        door.worker.work()
    assert door.host.systemd.shows <= 7


def test_a_new_word_of_the_instance_makes_what_systemd_said_void(door: Door) -> None:
    gone(door)
    door.host.systemd.unit(UNIT).active_state = "inactive"
    assert isinstance(door.settled(door.visitor()), Refuse)
    door.host.systemd.unit(UNIT).active_state = "activating"
    starting(door)
    assert isinstance(door.ask(door.visitor()), Wait)
    assert isinstance(door.settled(door.visitor(), within_s=3), Wait)


def test_systemctl_that_does_not_answer_refuses_nobody(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(units: object) -> None:
        raise NotReady("`systemctl show` did not end within 30 s")

    monkeypatch.setattr(door.host.systemd, "show", hangs)
    gone(door)
    door.host.systemd.unit(UNIT).active_state = "inactive"
    assert isinstance(door.settled(door.visitor(), within_s=5), Wait)


def test_a_daemon_whose_pid_another_process_has_now_is_gone(door: Door) -> None:
    door.host.processes[door.daemon.pid].started_at += 1
    assert door.word(door.visitor(), within_s=1) == "daemon-down"


def test_who_waited_comes_in_to_the_next_daemon(door: Door) -> None:
    visitor = door.visitor()
    crashed(door)
    assert door.word(visitor, within_s=1) == "daemon-down"
    door.launch()
    door.open()
    door.come_in(visitor)


# -- closed, drained


def test_a_closed_instance_refuses_at_once_and_asks_nobody(door: Door) -> None:
    door.say(Admission(CLOSED, "the unit was stopped", door.served))
    verdict = door.judge.judge(door.visitor())
    assert verdict == Refuse("stopped", "the unit was stopped")
    assert door.host.systemd.shows == 0
    assert door.daemon.commands == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, "stopped"), ({"enabled": False}, "disabled"), ({"load_state": "masked"}, "masked")],
)
def test_a_stopped_unit_is_looked_at_once_and_refuses_with_the_reason(
    door: Door, changes: dict[str, object], reason: str
) -> None:
    stopped(door)
    unit, shows = door.host.systemd.unit(UNIT), door.host.systemd.shows
    for name, value in changes.items():
        setattr(unit, name, value)
    assert door.word(door.visitor()) == f"refused: {reason}"
    assert door.host.systemd.shows == shows + 1


def test_a_drained_unit_that_is_stopped_is_called_stopped(door: Door) -> None:
    drains.mark(door.host.world, "0")
    stopped(door)
    assert door.word(door.visitor()) == "refused: stopped"


def test_a_stopped_instance_refuses_also_where_systemd_does_not_answer(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(units: object) -> None:
        raise NotReady("`systemctl show` did not end within 30 s")

    monkeypatch.setattr(door.host.systemd, "show", hangs)
    stopped(door)
    assert door.settled(door.visitor()) == Refuse("stopped", "the unit was stopped")


def test_who_comes_right_after_the_start_of_a_stopped_unit_waits(door: Door) -> None:
    stopped(door)
    assert door.word(door.visitor()) == "refused: stopped"
    door.host.clock.pass_by(0.3)
    door.host.systemd.jobs[UNIT] = "start"
    assert door.word(door.visitor(), within_s=3) == "limits-not-in-force"


def test_a_drain_is_called_one(door: Door) -> None:
    drains.mark(door.host.world, "0", refuse=True)
    door.drain(refuse=True)
    assert door.word(door.visitor()) == "refused: drained"
    drains.forget(door.host.world, "0")
    drains.mark(door.host.world, "0")
    door.drain()
    assert door.word(door.visitor(), within_s=2) == "drained"


@pytest.mark.parametrize("refuse", [False, True])
def test_later_connections_of_a_client_pass_while_the_instance_drains_and_are_told_once(
    door: Door, refuse: bool
) -> None:
    known = door.come_in(door.visitor())
    door.drain(refuse)
    again = door.visitor(pid=known.pid)
    assert door.judge.judge(again) == LetIn(door.served)
    door.passes(again)
    assert isinstance(door.ask(door.visitor()), Refuse if refuse else Wait)
    assert [one["MPS_EVENT"] for one in door.entries()] == ["let-in"]
    assert len(door.notes.let_in) == 1


def test_a_later_process_with_a_clients_pid_is_judged_anew(door: Door) -> None:
    known = door.come_in(door.visitor())
    door.host.clock.pass_by(2)
    door.host.process("python3", "python3", {}, ALICE, known.pid)
    door.drain(refuse=True)
    assert isinstance(door.ask(door.visitor(pid=known.pid)), Refuse)


# -- the last look before the daemon hears of the client


def test_an_instance_that_is_drained_meanwhile_keeps_the_visitor_waiting(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.drain()
    assert not door.judge.still(visitor, door.served)


def test_a_daemon_that_ended_meanwhile_hears_of_nobody(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    served = door.served
    crashed(door)
    assert not door.judge.still(visitor, served)


def test_another_daemon_meanwhile_hears_of_nobody_under_the_old_verdict(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    served = door.served
    door.launch()
    door.open()
    assert not door.judge.still(visitor, served)
    assert not door.judge.still(visitor, door.served)


def test_a_group_that_was_set_meanwhile_counts(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    door.open(gid=700)
    assert not door.judge.still(visitor, door.served)


# -- the group


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "may"),
    [
        (0, 0, (), True),
        (ALICE, 700, (), True),
        (ALICE, 500, (500, 700), True),
        (ALICE, 500, (500, 70), False),
        (ALICE, 500, (), False),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
def test_only_root_and_the_groups_members_come_in(
    door: Door, uid: int, gid: int, groups: tuple[int, ...], may: bool, waits: bool
) -> None:
    door.open(gid=700)
    if waits:
        found = admission.read(door.host.places, "0")
        assert found is not None
        door.say(replace(found, state=WAITING))
    visitor = door.visitor(uid, gid)
    door.host.processes[visitor.pid].gids = groups
    expected = ("limits-not-in-force" if waits else "let-in") if may else "refused: not-in-group"
    assert door.word(visitor, within_s=2) == expected


def test_who_has_ended_is_not_called_no_member(door: Door) -> None:
    door.open(gid=700)
    visitor = door.visitor()
    door.host.kill(visitor.pid)
    assert door.word(visitor, within_s=1) == "client-ended"


# -- the greeting


def test_each_daemon_is_heard_once_before_anybody_meets_it(door: Door) -> None:
    for _ in range(3):
        door.come_in(door.visitor())
    assert door.heard == [door.directory]
    assert door.judge.greeting() == b"OUTBHELL\0"
    assert door.notes.greeting == b"OUTBHELL\0".hex()
    door.host.kill(door.daemon.pid)
    door.launch()
    door.open()
    door.come_in(door.visitor())
    assert len(door.heard) == 2


def test_a_greeting_that_is_not_understood_refuses_everyone_and_is_what_clients_are_told(door: Door) -> None:
    door.says = b"OUTBHEL2\0"
    assert door.judge.greeting() == b"OUTBHELL\0"
    assert door.word(door.visitor()) == "refused: unknown-greeting"
    assert door.judge.greeting() == b"OUTBHEL2\0"
    assert door.notes.unknown_greeting == b"OUTBHEL2\0".hex()
    assert door.daemon.commands == []


def test_a_greeting_that_is_understood_again_is_no_longer_noted_as_unknown(door: Door) -> None:
    door.says = b"OUTBHEL2\0"
    door.settled(door.visitor())
    door.host.kill(door.daemon.pid)
    door.says = b"OUTBHELL\0"
    door.launch()
    door.open()
    door.come_in(door.visitor())
    assert (door.notes.unknown_greeting, door.notes.greeting) == ("", b"OUTBHELL\0".hex())


def test_what_a_visitors_connection_heard_counts_as_well(door: Door) -> None:
    visitor = door.visitor()
    door.settled(visitor)
    door.judge.not_understood(door.served, b"HELLO")
    assert door.word(visitor) == "refused: unknown-greeting"


def test_a_daemon_that_nobody_can_connect_to_is_tried_again_and_not_suspected(door: Door) -> None:
    said, door.says = door.says, None
    visitor = door.visitor()
    assert isinstance(door.settled(visitor, within_s=2), Wait)
    assert 3 <= len(door.heard) <= 10
    assert door.daemon.commands == []
    door.says = said
    door.come_in(visitor)


def test_a_daemons_first_message_is_heard_and_the_connection_closed(root: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(root / "control"))
        listener.listen()
        listener.settimeout(30)
        heard: list[bytes] = []
        asks = threading.Thread(target=lambda: heard.append(greeting.hear(root)))
        asks.start()
        with listener.accept()[0] as connection:
            connection.send(b"OUTBHELL\0")
            connection.settimeout(30)
            assert connection.recv(64) == b""
        asks.join()
        assert heard == [b"OUTBHELL\0"]


def test_a_daemon_that_says_nothing_is_told_from_one_that_is_not_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "_HEARING_S", 0.05)
    with pytest.raises(FileNotFoundError):
        greeting.hear(root)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(root / "control"))
        with pytest.raises(ConnectionRefusedError):
            greeting.hear(root)
        listener.listen()
        with pytest.raises(TimeoutError):
            greeting.hear(root)


def test_a_greeting_survives_a_restart_of_the_door(door: Door) -> None:
    door.says = b"OUTBHEL2\0"
    door.settled(door.visitor())
    door.end()
    door.begin()
    assert door.judge.greeting() == b"OUTBHEL2\0"


# -- notes


def test_who_waits_is_noted_with_the_reason_until_it_is_done(door: Door, host: Host) -> None:
    door.drain()
    waits, gives_up, refused = (door.visitor() for _ in range(3))
    for visitor in (waits, gives_up, refused):
        door.ask(visitor)
    door.judge.gave_up(gives_up, 1.0)
    door.judge.refused(refused, "waited", "it waited 60 s", 60)
    (noted,) = door.notes.waiting
    assert (noted.pid, noted.uid, noted.why) == (waits.pid, ALICE, "limits-not-in-force")
    assert host.clock.now_s - 3 < noted.since_s <= host.clock.now_s
    door.open()
    door.come_in(waits)
    assert door.notes.waiting == ()
    assert [(one.pid, one.daemon_pid, one.uid) for one in door.notes.let_in] == [(waits.pid, door.daemon.pid, ALICE)]


def test_notes_are_written_ten_times_a_second_at_most(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    monkeypatch.setattr(front_door_notes, "write", lambda *_: written.append(door.host.clock.now_s))
    door.come_in(door.visitor())
    for _ in range(200):
        visitor = door.visitor()
        door.judge.judge(visitor)
        door.passes(visitor)
        door.host.clock.pass_by(0.01)
        door.worker.work()
    assert 10 <= len(written) <= 23
    assert all(later - earlier >= 0.099 for earlier, later in zip(written, written[1:]))


def test_notes_that_a_full_disk_did_not_take_are_written_later(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(front_door_notes, "write", full)
        visitor = door.come_in(door.visitor())
        door.host.clock.pass_by(1)
        door.worker.work()
        door.judge.close()
    assert {name for name, _ in door.faults} == {"notes"}
    door.faults.clear()
    assert [one.pid for one in door.notes.let_in] == [visitor.pid]
    door.begin()


def test_who_was_let_in_is_known_to_the_next_process_of_the_door(door: Door) -> None:
    known, ended = door.come_in(door.visitor()), door.come_in(door.visitor())
    door.end()
    door.host.kill(ended.pid)
    door.begin()
    door.drain(refuse=True)
    assert door.settled(door.visitor(pid=known.pid)) == LetIn(door.served)
    assert ended.pid not in {one.pid for one in door.notes.let_in}


def test_who_ended_is_forgotten(door: Door) -> None:
    ended = door.come_in(door.visitor())
    door.host.kill(ended.pid)
    door.host.clock.pass_by(10)
    door.come_in(door.visitor())
    door.worker.work()
    text = (door.host.places.runtime("0") / "front-door.json").read_text()
    assert f'"pid": {ended.pid},' not in text
