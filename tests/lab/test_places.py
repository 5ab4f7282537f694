"""How many clients come in at once, on whole hosts with the control daemons 535, 550 and 555.

A quarter of what tests/soak/test_places.py tries: who waits when the door's service is killed gets 805, and others are
to come after. Daemons, systemd, control groups and the door are real; the GPUs, the MPS server and the clients are
simulated.
"""

from __future__ import annotations

from typing import Iterator

import pytest

from . import places_trials as trials
from .front_door import DoorHost, Fleet, fleet, seed
from .places_trials import Crowd

CLIENTS, KILLS = 12, 1


@pytest.fixture(scope="module")
def doors() -> Iterator[Fleet]:
    with fleet("places") as booted:
        yield booted


def test_never_more_than_there_is_room_for(doors: Fleet) -> None:
    number = seed()

    def crowd(host: DoorHost) -> None:
        trials.hold(host)
        trials.storm(host, Crowd(CLIENTS, KILLS, number))
        trials.let_go(host)

    doors.everywhere(crowd)
