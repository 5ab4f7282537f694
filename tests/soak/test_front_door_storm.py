"""The front door under the whole counts of what tests/lab/test_front_door.py tries a tenth of."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

import pytest
from tests.lab import front_door_trials as trials
from tests.lab.front_door import Fleet, fleet, seed

KILLS = 200
"""Of the daemon, and as many of the door's service."""
TIMES = 10


@pytest.fixture(scope="module")
def doors() -> Iterator[Fleet]:
    with fleet("stormy") as booted:
        yield booted


@pytest.fixture(autouse=True)
def nobody_is_left(doors: Fleet) -> Iterator[None]:
    yield
    for host in doors.hosts:
        host.end_clients()


@pytest.mark.parametrize("daemon", ["535", "550", "555"])
def test_a_storm_of_kills_lets_nobody_past(doors: Fleet, daemon: str) -> None:
    met = trials.storm(doors.of(daemon), KILLS, seed())
    print(f"daemon {daemon}: {KILLS} kills of the daemon, {KILLS} of the service: {dict(met)}")
    trials.judge_storm(met)


def test_without_the_door_the_same_storm_has_clients_outside(doors: Fleet) -> None:
    found = doors.of("550").storm("--direct", "--daemon", str(KILLS), "--seed", str(seed()))
    print(f"without the door, {KILLS} kills: {found['met']}")
    assert trials.outside(Counter(found["met"])) > 0, found


def test_the_service_killed_at_each_step_jams_no_daemon(doors: Fleet) -> None:
    for _ in range(TIMES):
        doors.everywhere(trials.killed_after_each_step)
        doors.everywhere(trials.killed_while_the_server_starts)


def test_a_daemon_jammed_by_the_services_death_heals_by_itself(doors: Fleet) -> None:
    for _ in range(TIMES):
        waited_s = doors.everywhere(trials.killed_in_the_moment)
        print(f"the next client waited, in seconds: {waited_s}")
        assert max(waited_s.values()) < 30  # 5 on an idle machine


@pytest.mark.parametrize("daemon", ["535", "550", "555"])
def test_crowds_delay_nobody(doors: Fleet, daemon: str) -> None:
    host = doors.of(daemon)
    trials.silent_connections(host, 200)
    trials.full_backlog(host)
    trials.one_user_leaves_room_for_another(host, 5000)
