"""The trial of interrupted runs finds what it looks for: each violation, planted in what the probe says of a host."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.lab import interrupted_judge as judge
from tests.lab import interrupted_plan as planning

UUIDS = ("GPU-a", "GPU-b")
WELL: dict[str, Any] = {
    "status": 0,
    "amiss": {"host": [], "0": [], "1": [["warning", "restarts", "one restart"]]},
    "unusable": [],
    "unserved": [],
    "lock_is_free": True,
    "at_work": [],
    "partial_files": [],
    "remains_told": [],
    "limits": ["4G", "4G"],
    "newcomers": ["client", "client"],
    "clients": {"0": "running", "1": "exited"},
    "files": {"/etc/mps/0.conf": "sum", "/etc/mps/1.conf": "sum"},
    "modes": dict.fromkeys(UUIDS, "exclusive_process"),
    "served": list(UUIDS),
    "enabled": ["a", "b", "c", "d", "e"],
    "stale": "no",
}
GONE: dict[str, Any] = {
    "files": {},
    "partial_files": [],
    "directories": [],
    "enabled": [],
    "units": [],
    "served": [],
    "modes": dict.fromkeys(UUIDS, "default"),
    "at_work": [],
}
SITE = judge.Expected((4096, 6144), may_be_outside=False, ends_clients=False)


def test_a_host_that_is_well_has_no_violation() -> None:
    assert not [
        *judge.between(WELL, SITE),
        *judge.desired(WELL, 4096),
        *judge.removed(GONE),
        *judge.files(WELL, WELL, None),
    ]


@pytest.mark.parametrize(
    "planted",
    [
        {"unserved": ["GPU-a"]},
        {"unserved": ["GPU-a"], "unusable": ["GPU-a"]},
        {"lock_is_free": False},
        {"partial_files": ["/etc/mps/.0.conf.1.new"]},
        {"limits": ["5G", "4G"]},
        {"newcomers": ["hang", "client"]},
        {"newcomers": ["error-805", "client"]},
        {"newcomers": ["client", "outside-mps"], "amiss": {"1": [["critical", "unit-active", "it is down"]]}},
        {"clients": {"1": "ended with 7"}},
    ],
)
def test_what_nobody_desired_and_nobody_tells_is_found(planted: dict[str, Any]) -> None:
    assert list(judge.between({**WELL, **planted}, SITE))


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"unserved": ["GPU-a"], "unusable": ["GPU-a"], "status": 1}, SITE),
        ({"lock_is_free": False, "at_work": ["mpsctl reconcile"]}, SITE),
        ({"partial_files": ["/etc/mps/.0.conf.1.new"], "remains_told": ["one"]}, SITE),
        ({"limits": ["6G", ""]}, SITE),
        ({"newcomers": ["hang", "client"], "amiss": {"0": [["warning", "drain", "drained"]]}}, SITE),
        ({"newcomers": ["outside-mps"] * 2, "files": {}}, SITE),
        ({"clients": {"1": "ended with 7"}}, judge.Expected((4096, 6144), may_be_outside=False, ends_clients=True)),
    ],
)
def test_what_is_desired_or_told_is_none(planted: dict[str, Any], expected: judge.Expected) -> None:
    assert not list(judge.between({**WELL, **planted}, expected))


@pytest.mark.parametrize(
    "planted",
    [
        {"amiss": {"0": [["critical", "limit", "none"]]}},
        {"amiss": {"0": [["unknown", "limit", "none"]]}},
        {"limits": ["4G", ""]},
        {"modes": {"GPU-a": "exclusive_process", "GPU-b": "default"}},
        {"served": ["GPU-a"]},
        {"newcomers": ["client", "hang"]},
        {"partial_files": ["/etc/mps/.0.conf.1.new"]},
        {"enabled": ["a"]},
        {"stale": "yes"},
        {"at_work": ["mpsctl reconcile"]},
    ],
)
def test_what_the_whole_run_did_not_mend_is_found(planted: dict[str, Any]) -> None:
    assert len(list(judge.desired({**WELL, **planted}, 4096))) == 1


@pytest.mark.parametrize(
    "planted",
    [
        {"files": {"/etc/mps/0.conf": "sum"}},
        {"partial_files": ["/etc/mps/.0.conf.1.new"]},
        {"directories": ["/run/mps-fleet"]},
        {"enabled": ["a"]},
        {"units": ["mps-control@0.service"]},
        {"served": ["GPU-a"]},
        {"modes": {"GPU-a": "exclusive_process"}},
        {"at_work": ["mpsctl reconcile"]},
    ],
)
def test_what_a_removal_left_is_found(planted: dict[str, Any]) -> None:
    assert len(list(judge.removed({**GONE, **planted}))) == 1


@pytest.mark.parametrize(("found", "count"), [("old", 0), ("new", 0), ("half", 1), (None, 1)])
def test_a_file_is_the_old_or_the_new_one(found: str, count: int) -> None:
    old, one, new = ({"files": {"/etc/mps/0.conf": text} if text else {}} for text in ("old", found, "new"))
    assert len(list(judge.files(old, one, new))) == count
    assert len(list(judge.files(old, one, None))) == (0 if found in ("old", None) else 1)


def test_the_dice_draw_every_run_interruption_and_obstacle_as_often_and_the_same_again() -> None:
    def drawn(seed: int) -> list[planning.Plan]:
        planner = planning.Planner(random.Random(seed), ("a", "b", "c"), ("full", "read-only"))
        return [planner.draw() for _ in range(20)]

    plans = drawn(7)
    assert [(one.told, one.moments, one.variables) for one in plans] == [
        (one.told, one.moments, one.variables) for one in drawn(7)
    ]
    assert [one.moments for one in plans] != [one.moments for one in drawn(8)]
    whats = [moment.what for one in plans for moment in one.moments]
    assert {what: whats.count(what) for what in (*planning.KINDS, "full")} == {
        **dict.fromkeys(planning.KINDS, 4),
        "full": 10,
    }
    assert {run: [one.run for one in plans].count(run) for run in planning.RUNS} == dict.fromkeys(planning.RUNS, 4)
