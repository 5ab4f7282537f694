"""The front door's notes: what of them can be read is read, and whoever cannot be counted counts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable

import pytest

from door import Door
from fakes import Host
from mpsctl.adapters import procfs
from mpsctl.converge import removal
from mpsctl.store import front_door_notes
from mpsctl.store.front_door_notes import Jammed, LetIn, Notes, Waits

ENDED = "refused: server-ended"


def noted(host: Host, **changes: Any) -> LetIn:
    pid = host.client()
    began = host.processes[pid].started_at
    return LetIn(**{**asdict(LetIn(pid, began, 1000, 71, 900.0, 72, 5)), **changes})


@pytest.fixture
def written(host: Host) -> Callable[[Any], Path]:
    def write(found: Any) -> Path:
        place = front_door_notes.path(host.places, "0")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(found if isinstance(found, str) else json.dumps(found))
        return place

    return write


def test_what_was_written_is_read_back(host: Host, written: Callable[[Any], Path]) -> None:
    notes = Notes((Waits(host.client(), 1, 2.0, "x"),), (noted(host),), Jammed(71, 5, 900), "aa", "bb")
    written({})
    front_door_notes.write(host.places, "0", notes)
    assert front_door_notes.read(host.places, "0") == notes


def test_without_notes_nobody_came_in(host: Host) -> None:
    assert front_door_notes.read(host.places, "0") == Notes()


def test_a_release_that_noted_no_server_is_read(host: Host, written: Callable[[Any], Path]) -> None:
    one = asdict(noted(host))
    del one["server_pid"], one["server_started_at"]
    written({"waiting": [], "let_in": [one], "jammed": None})
    found = front_door_notes.read(host.places, "0")
    assert found.whole
    assert [(each.pid, each.server_lives) for each in found.let_in] == [(one["pid"], False)]


def test_a_later_release_that_notes_more_is_read(host: Host, written: Callable[[Any], Path]) -> None:
    one = asdict(noted(host))
    written({"waiting": [{"new": 1}], "let_in": [{**one, "new": [1]}], "jammed": None, "greeting": "aa", "new": {}})
    found = front_door_notes.read(host.places, "0")
    assert (found.whole, found.greeting, [each.pid for each in found.let_in]) == (True, "aa", [one["pid"]])


DAMAGED: list[Any] = [
    {"pid": 1},
    {"pid": "7", "started_at": 1, "uid": 0, "daemon_pid": 1, "at_s": 1},
    {"pid": 7, "started_at": None, "uid": 0, "daemon_pid": 1, "at_s": 1},
    {"pid": 7, "started_at": 1, "uid": 0, "daemon_pid": True, "at_s": 1},
    {"pid": 7, "started_at": 1, "uid": 0, "daemon_pid": 1, "at_s": "now"},
    None,
    [],
    7,
]


@pytest.mark.parametrize("entry", DAMAGED)
def test_one_that_cannot_be_read_hides_no_other_and_is_not_forgotten(
    host: Host, written: Callable[[Any], Path], entry: Any
) -> None:
    one = noted(host)
    written({"waiting": [], "let_in": [entry, asdict(one)], "jammed": None})
    found = front_door_notes.read(host.places, "0")
    assert found.let_in == (one,)
    assert not found.whole
    front_door_notes.write(host.places, "0", found)
    assert not front_door_notes.read(host.places, "0").whole, "the next ones to read it know"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"let_in": 7}', '{"waiting": []}'])
def test_notes_that_are_none_are_not_whole(host: Host, written: Callable[[Any], Path], text: str) -> None:
    written(text)
    assert not front_door_notes.read(host.places, "0").whole


def test_a_line_that_is_cut_short_is_somebody(host: Host, written: Callable[[Any], Path]) -> None:
    one = noted(host)
    written({"waiting": [], "let_in": [], "jammed": None})
    front_door_notes.add(host.places, "0", one)
    assert front_door_notes.read(host.places, "0") == Notes(let_in=(one,))
    with front_door_notes._added_path(host.places, "0").open("a") as file:
        file.write('\n{"pid": 12')
    found = front_door_notes.read(host.places, "0")
    assert (found.let_in, found.whole) == ((one,), False)


def test_a_survivor_of_a_removed_instance_comes_in_to_no_other_server(door: Door) -> None:
    """Its context there would have no limit, whoever removed the instance and made it anew."""
    survivor, gone = door.come_in(door.visitor()), door.come_in(door.visitor())
    door.end()
    door.host.end(gone.pid)
    front_door_notes.forget(door.host.places, "0")
    for pid in list(door.daemon.servers):
        door.end_server(pid)
    door.host.kill(door.daemon.pid)
    door.host.clock.pass_by(2)
    door.launch()
    door.open()
    door.begin()
    assert door.word(door.visitor(survivor.uid, pid=survivor.pid)) == ENDED
    assert door.word(door.visitor()) == "let-in"
    assert [one.pid for one in front_door_notes.read(door.host.places, "0").let_in] == [survivor.pid]


def test_nothing_is_kept_of_an_instance_without_survivors(door: Door) -> None:
    gone = door.come_in(door.visitor())
    door.end()
    door.host.end(gone.pid)
    front_door_notes.forget(door.host.places, "0")
    assert not list(front_door_notes.path(door.host.places, "0").parent.glob("front-door.*"))


def test_a_whole_removal_leaves_the_notes_of_survivors_and_says_so(host: Host) -> None:
    host.desired("0", DeviceMemoryLimit="4G")
    host.start("0")
    front_door_notes.write(host.places, "0", Notes(let_in=(noted(host),), greeting="aa"))
    place = front_door_notes.path(host.places, "0")
    answer = removal.remove(host.world, False)
    assert answer.error is None
    assert [path for path in host.places.host_lock.parent.rglob("*") if path.is_file()] == [place]
    assert any(str(place) in line for line in answer.warnings)
    assert not removal.remove(host.world, False).changed
    host.end(front_door_notes.read(host.places, "0").let_in[0].pid)
    assert removal.remove(host.world, False).error is None
    assert not place.exists()


@pytest.mark.skipif(
    Path("/proc/sys/kernel/randomize_va_space").read_text().strip() == "0", reason="addresses are not randomised here"
)
def test_exec_is_told_by_the_stack() -> None:
    """Of real processes: the same pid and start, another stack."""
    become = (
        "import os, sys; print(1, flush=True); input();"
        " os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", become], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = procfs.started_at(process.pid), procfs.stack(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        after = procfs.started_at(process.pid), procfs.stack(process.pid)
        process.kill()
    assert before[0] == after[0]
    assert 0 not in (before[1], after[1])
    assert before[1] != after[1]
