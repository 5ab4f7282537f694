"""What became of clients, in the journal: one entry with fields for each, and nothing foreign passes for ours."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Callable

import pytest

from door import ALICE, BOB, Door, parsed
from fakes import Clock
from mpsctl.adapters import procfs
from mpsctl.adapters.journal import encoded
from mpsctl.front_door.account import Account, Client
from mpsctl.front_door.journal import Journal
from mpsctl.front_door.worker import Worker
from mpsctl.model.places import Places

_MINUTE_S = 60


def test_a_client_that_came_in_is_told_with_who_it_is_and_how_long_it_waited(door: Door) -> None:
    visitor = door.visitor()
    door.host.processes[visitor.pid].unit = "training.service"
    door.come_in(visitor)
    (entry,) = door.entries()
    message = entry.pop("MESSAGE")
    assert str(visitor.pid) in message
    assert "\n" not in message
    assert entry == {
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "mps-front-door@0",
        "MPS_INSTANCE": "0",
        "MPS_EVENT": "let-in",
        "MPS_CLIENT_PID": str(visitor.pid),
        "MPS_CLIENT_UID": str(ALICE),
        "MPS_CLIENT_UNIT": "training.service",
        "MPS_WAITED_MS": "250",
    }


def test_a_container_stands_for_its_clients_unit(door: Door) -> None:
    visitor = door.visitor()
    door.host.processes[visitor.pid].unit = "docker-4711.scope"
    door.host.processes[visitor.pid].container = "4711"
    door.come_in(visitor)
    assert door.entries()[0]["MPS_CLIENT_UNIT"] == "4711"


def test_who_was_refused_or_gave_up_is_told_with_what_it_waited_for_though_it_has_ended(door: Door) -> None:
    door.drain()
    refused, gave_up = door.visitor(), door.visitor()
    for visitor in (refused, gave_up):
        door.host.processes[visitor.pid].unit = "training.service"
        door.settled(visitor, within_s=1)
        door.host.kill(visitor.pid)
    door.judge.refused(refused, "waited", "it waited 60 s", 60.0)
    door.judge.gave_up(gave_up, 1.5)
    first, second = door.entries()
    wanted = ("MPS_EVENT", "MPS_REASON", "MPS_WAITED_FOR", "MPS_WAITED_MS", "MPS_CLIENT_UNIT", "PRIORITY")
    waited_for = "limits-not-in-force"
    assert [first[name] for name in wanted] == ["refused", "waited", waited_for, "60000", "training.service", "4"]
    assert [second[name] for name in wanted] == ["gave-up", waited_for, waited_for, "1500", "training.service", "4"]


def test_connections_that_were_turned_away_are_told_with_their_number(door: Door) -> None:
    door.judge.turned_away(4711, BOB, "not-a-client", "it said 04000000", 1)
    door.judge.turned_away(4712, BOB, "not-a-client", "it said 04000000", 900)
    first, second = door.entries()
    assert (first["MPS_EVENT"], first["MPS_COUNT"], first["MPS_CLIENT_UID"]) == ("turned-away", "1", str(BOB))
    assert (second["MPS_COUNT"], second["MPS_CLIENT_PID"]) == ("900", "4712")


def test_a_flood_of_refusals_of_one_user_is_counted_and_others_are_still_told(door: Door) -> None:
    door.drain(refuse=True)
    for _ in range(500):
        door.judge.refused(door.visitor(ALICE), "drained", "drained", 0)
    door.judge.refused(door.visitor(BOB), "drained", "drained", 0)
    assert len(door.entries()) == 61
    door.host.clock.pass_by(_MINUTE_S)
    door.ask(door.visitor())
    (rest,) = door.entries()
    fields = (rest["MPS_EVENT"], rest["MPS_COUNT"], rest["MPS_CLIENT_UID"], rest["MPS_REASON"])
    assert fields == ("refused", "440", str(ALICE), "drained")
    door.judge.refused(door.visitor(ALICE), "drained", "drained", 0)
    assert len(door.entries()) == 1


def test_what_was_left_out_is_told_when_the_door_ends(door: Door) -> None:
    for _ in range(63):
        door.judge.refused(door.visitor(), "drained", "drained", 0)
    door.entries()
    door.end()
    assert [one["MPS_COUNT"] for one in door.entries()] == ["3"]
    door.begin()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "plain",
        "two\nlines",
        "\n",
        "a=b",
        "ends\n",
        "MPS_EVENT=let-in\nPRIORITY=0",
        "ä\u202eü",
        "\udcff",
        "x" * 5000,
    ],
)
def test_every_value_arrives_whole_at_a_reader_of_journalds_protocol(value: str) -> None:
    fields = {"MESSAGE": value, "PRIORITY": "6"}
    read = parsed(encoded(fields))
    assert list(read) == ["MESSAGE", "PRIORITY"]
    assert read["MESSAGE"] == value.encode("utf-8", "backslashreplace").decode()


def test_nothing_foreign_makes_a_line_or_a_field_of_its_own(door: Door) -> None:
    visitor = door.visitor()
    door.judge.refused(visitor, "drained", "drained (why\nMPS_EVENT=let-in\x1b[31m\u202e)", 0)
    (entry,) = door.entries()
    assert entry["MPS_EVENT"] == "refused"
    assert entry["MESSAGE"].isprintable()


def test_without_journald_the_line_goes_to_standard_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(Places(root), lambda send: None)
    account = Account(journal, "0", Clock().now, lambda *_: None)
    account.let_in(Client(4711, ALICE, "training.service"), 0.1)
    journal.close()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "4711" in err


def test_a_full_journal_holds_nobody_up_and_takes_the_rest_later(root: Path) -> None:
    path = root / "run/systemd/journal/socket"
    path.parent.mkdir(parents=True)
    later: list[Callable[[], None]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as log:
        log.bind(str(path))
        journal = Journal(Places(root), later.append)
        sent = 5000
        for number in range(sent):
            journal.write({"MESSAGE": str(number)})
        read: list[dict[str, str]] = []
        while True:
            try:
                read.append(parsed(log.recv(1 << 16)))
            except BlockingIOError:
                if not later:
                    break
                again, later[:] = later[-1], []
                again()
        assert [one["MESSAGE"] for one in read] == [str(number) for number in range(len(read))]
        assert 1000 < len(read) < sent
        journal.write({"MESSAGE": "after"})
        assert parsed(log.recv(1 << 16)) == {"MESSAGE": "after", "MPS_DROPPED_LINES": str(sent - len(read))}
        journal.write({"MESSAGE": "later"})
        assert parsed(log.recv(1 << 16)) == {"MESSAGE": "later"}
        journal.close()


# -- units


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/training.service\n", "training.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/mps-control@0.service\n", "user@1000.service"),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "slurmstepd.scope"),
        ("12:pids:/a\n0::/system.slice/a.service/b.scope\n", "a.service"),
        ("0::/\n", None),
        ("0::/user.slice\n", None),
    ],
)
def test_the_unit_of_a_process_is_the_outermost(
    root: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, unit: str
) -> None:
    (root / "77").mkdir()
    (root / "77" / "cgroup").write_text(cgroup)
    monkeypatch.setattr(procfs, "_PROC", root)
    assert procfs.unit(77) == unit
    assert procfs.unit(78) is None


# -- the worker


def test_a_worker_does_what_is_due_in_order_and_each_thing_once() -> None:
    clock = Clock()
    done: list[str] = []
    faults: list[tuple[str, str]] = []
    worker = Worker(clock.now, lambda name, error: faults.append((name, str(error))))

    def fails() -> None:
        raise ValueError("no")

    worker.order("late", lambda: done.append("late"), clock.now_s + 5)
    worker.order("later", lambda: done.append("later"), clock.now_s + 6)
    worker.order("later", lambda: done.append("earlier"), clock.now_s + 4)
    worker.order("b", lambda: done.append("first b"))
    worker.order("a", lambda: done.append("a"), clock.now_s - 2)
    worker.order("b", lambda: done.append("b"), clock.now_s + 1)
    worker.order("fails", fails)
    assert worker.work() == 3
    assert (done, faults) == (["b", "a"], [("fails", "no")])
    clock.pass_by(7)
    assert worker.work() == 2
    assert done == ["b", "a", "earlier", "late"]


def test_a_look_that_is_being_taken_is_not_ordered_again_meanwhile() -> None:
    clock = Clock()
    worker = Worker(clock.now, lambda name, error: None)
    done: list[str] = []

    def task() -> None:
        done.append("look")
        worker.look("look", task)
        worker.look("another", lambda: done.append("another"))

    worker.look("look", task)
    assert worker.work() == 2
    assert done == ["look", "another"]
    worker.look("look", task)
    assert worker.work() == 2


def test_what_fails_is_not_tried_again_before_a_second_has_passed() -> None:
    clock, faults = Clock(), list[str]()
    worker = Worker(clock.now, lambda name, error: faults.append(name))
    done: list[str] = []

    def fails() -> None:
        raise ValueError("no")

    for _ in range(30):
        worker.look("look", fails)
        worker.order("other", lambda: done.append("other"))
        worker.work()
        clock.pass_by(0.05)
    assert faults == ["look"] * 2
    assert len(done) == 30
    worker.look("look", lambda: done.append("mended"))
    clock.pass_by(1)
    worker.work()
    worker.look("look", lambda: done.append("again"))
    worker.work()
    assert done[-2:] == ["mended", "again"]


def test_a_workers_thread_works_when_something_is_ordered_or_due_and_ends() -> None:
    worker = Worker(time.monotonic, lambda name, error: None)
    done: list[str] = []
    worker.order("before", lambda: done.append("before"))
    worker.start()
    worker.order("later", lambda: done.append("later"), time.monotonic() + 0.05)
    worker.order("now", lambda: done.append("now"))
    end = time.monotonic() + 20
    while len(done) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert sorted(done) == ["before", "later", "now"]
    assert done[-1] == "later"
    worker.end()
    worker.order("after", lambda: done.append("after"))
    assert worker.work() == 0
    assert os.read(worker.fileno(), 100) == b"!!!"
