"""How many clients come in at once: the whole counts of what tests/lab/test_places.py tries a tenth of."""

from __future__ import annotations

from typing import Iterator

import pytest
from tests.lab import places_trials as trials
from tests.lab.front_door import Fleet, fleet, seed
from tests.lab.places_trials import Crowd


@pytest.fixture(scope="module")
def doors() -> Iterator[Fleet]:
    with fleet("places") as booted:
        for host in booted.hosts:
            trials.hold(host)
        yield booted


@pytest.mark.parametrize("daemon", ["535", "550", "555"])
@pytest.mark.parametrize("kills", [0, 5])
def test_never_more_than_there_is_room_for(doors: Fleet, daemon: str, kills: int) -> None:
    trials.storm(doors.of(daemon), Crowd(50, kills, seed()))
