"""Whether the front door lets clients through: what is written holds for who is passed on after it, not before."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mpsctl.model.places import Places
from mpsctl.model.shares import Room, check_shares
from mpsctl.store import admission
from mpsctl.store.admission import Admission, ServedDaemon

OPEN = Admission(admission.OPEN, daemon=ServedDaemon(7, 70, "/run/mps-fleet/0/pipe"), gid=100, multi_user=True)
CLOSED = Admission(admission.CLOSED, why="drained", wait_s=5)


@pytest.fixture
def places(root: Path) -> Places:
    return Places(root)


def test_what_was_written_is_read(places: Places) -> None:
    assert admission.read(places, "0") is None
    for one in (OPEN, CLOSED):
        assert admission.write(places, "0", one)
        assert not admission.write(places, "0", one)
        assert admission.read(places, "0") == one
    admission.forget(places, "0")
    assert admission.read(places, "0") is None


def test_what_a_later_build_says_besides_takes_nothing_from_the_rest(places: Places) -> None:
    """A door's service of this build may still run then."""
    room = Room(8, check_shares("unit:api.service=4 each-user=2"), refuse=True)
    known = replace(OPEN, room=room, judged_devices=("GPU-1",))
    admission.write(places, "0", known)
    assert admission.read(places, "0") == known
    path = admission.path(places, "0")
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_a_later_build": {"more": [1]}}))
    assert admission.read(places, "0") == known


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": "ajar", "daemon": null}', '{"state": "open"}'])
def test_what_cannot_be_understood_is_nothing(places: Places, text: str) -> None:
    admission.write(places, "0", OPEN)
    admission.path(places, "0").write_text(text)
    assert admission.read(places, "0") is None


def written(places: Places, what: Admission) -> threading.Thread:
    """A write that has come to the entry, if it does not end before."""
    thread = threading.Thread(target=admission.write, args=(places, "0", what))
    thread.start()
    while thread.is_alive() and (held := admission.try_hold(places, "0")) is not None:
        held.close()
    return thread


def test_a_write_waits_for_who_is_passed_on(places: Places) -> None:
    admission.write(places, "0", OPEN)
    held = admission.try_hold(places, "0")
    assert held is not None
    thread = written(places, CLOSED)
    assert admission.read(places, "0") == OPEN
    held.close()
    thread.join()
    assert admission.read(places, "0") == CLOSED


def test_nobody_is_passed_on_any_more_once_somebody_wants_to_write(places: Places) -> None:
    """In a rush of clients the write would never have its time."""
    admission.write(places, "0", OPEN)
    first = admission.try_hold(places, "0")
    assert first is not None
    thread = written(places, CLOSED)
    assert admission.try_hold(places, "0") is None
    first.close()
    thread.join()
    last = admission.try_hold(places, "0")
    assert last is not None
    last.close()


def test_several_may_hold_it_at_once(places: Places) -> None:
    admission.write(places, "0", OPEN)
    with admission.held(places, "0") as found:
        assert found == OPEN
        held = admission.try_hold(places, "0")
        assert held is not None
        held.close()
        held.close()  # once is enough


def test_to_ask_leaves_nothing_open(places: Places) -> None:
    admission.write(places, "0", OPEN)
    before = os.listdir("/proc/self/fd")
    held = admission.try_hold(places, "0")
    assert held is not None
    thread = written(places, CLOSED)
    assert [admission.try_hold(places, "0") for _ in range(5)] == [None] * 5
    held.close()
    thread.join()
    assert os.listdir("/proc/self/fd") == before
