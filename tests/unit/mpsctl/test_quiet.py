"""While a daemon is asked the front door passes nobody on; it waits for that for a while, and not for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mpsctl.model.places import Places
from mpsctl.store import admission, quiet
from mpsctl.store.admission import Admission


@pytest.fixture
def places(root: Path) -> Places:
    made = Places(root)
    admission.write(made, "0", Admission(admission.OPEN))
    return made


def may_pass(door: quiet.Courtesy) -> bool:
    held = door.hold()
    if held is None:
        return False
    held.close()
    return True


def test_nobody_is_passed_on_while_somebody_looks(places: Places) -> None:
    door, other = quiet.Courtesy(places, "0"), quiet.Courtesy(places, "1")
    assert may_pass(door)
    with quiet.kept(places, "0") as nobody:
        assert nobody
        assert not may_pass(door)
        assert may_pass(other)
    assert may_pass(door)


def test_a_look_waits_for_who_is_being_passed_on(places: Places) -> None:
    passing = admission.try_hold(places, "0")
    assert passing is not None
    told = []

    def look() -> None:
        with quiet.kept(places, "0") as nobody:
            told.append(nobody)

    door = quiet.Courtesy(places, "0")
    thread = threading.Thread(target=look)
    thread.start()
    while may_pass(door):
        pass
    assert told == []
    passing.close()
    thread.join()
    assert told == [True]


@pytest.mark.parametrize("busy", ["being passed on", "another look", "a directory for the lock"])
def test_a_look_that_cannot_have_it_quiet_goes_on_and_says_so(
    places: Places, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    monkeypatch.setattr(quiet, "WAIT_S", 0.05)
    door = quiet.Courtesy(places, "0")
    if busy == "another look":
        with quiet.kept(places, "0"), quiet.kept(places, "0") as nobody:
            assert not nobody
    elif busy == "being passed on":
        passing = admission.try_hold(places, "0")
        assert passing is not None
        with quiet.kept(places, "0") as nobody:
            assert not nobody
            assert not may_pass(door), "nobody comes after that one"
        passing.close()
    else:
        quiet.path(places, "0").unlink()
        quiet.path(places, "0").mkdir()
        with quiet.kept(places, "0") as nobody:
            assert not nobody
    assert may_pass(door)


def test_where_no_door_has_served_yet_a_look_makes_no_file(places: Places) -> None:
    with quiet.kept(places, "0") as nobody:
        assert nobody
    assert not quiet.path(places, "0").exists()


def test_a_look_that_was_stopped_keeps_nobody_out_for_ever(places: Places) -> None:
    now_s = 1000.0
    door = quiet.Courtesy(places, "0", lambda: now_s)
    with quiet.kept(places, "0"):
        assert not may_pass(door)
        now_s += quiet.MOST_S - 0.1
        assert not may_pass(door)
        now_s += 0.2
        assert may_pass(door)
        now_s += 1
        assert may_pass(door), "also the next one"
    assert may_pass(door)
    with quiet.kept(places, "0"):
        assert not may_pass(door), "the next look is heard again"


def test_a_look_that_was_met_long_ago_takes_no_time_from_the_next_one(places: Places) -> None:
    """Nobody came meanwhile who could have seen its end."""
    clock = [1000.0]
    door = quiet.Courtesy(places, "0", lambda: clock[0])
    with quiet.kept(places, "0"):
        assert not may_pass(door)
    clock[0] += 100
    with quiet.kept(places, "0"):
        assert not may_pass(door)
        clock[0] += 0.5
        assert not may_pass(door)
