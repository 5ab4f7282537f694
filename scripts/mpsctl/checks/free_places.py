"""Whether clients of ours would find a place at the front door of an instance: one that starts without waits like any
other, or is refused."""

from __future__ import annotations

import os
from typing import Optional

from mpsctl.adapters import control_groups
from mpsctl.checks import words
from mpsctl.model.instance import Instance
from mpsctl.model.shares import Whose
from mpsctl.observe import room
from mpsctl.observe.door_facts import Place
from mpsctl.store.world import World

_POLL_S, _ENDING_S = 0.2, 2.0


def why_none(world: World, instance: Instance, uid: Optional[int], clients: int = 1) -> Optional[str]:
    """Why so many more clients of ours would not all find a place, or would take one from those who wait; None where
    they find one. ``uid`` is the user that they become, None for our own.

    :raises NotReady: if the daemon does not tell its clients.
    """
    counted = room.now(world, instance.name)
    place = None if counted is None else counted.no_place(_whose(uid), clients)
    return None if place is None else line(place, clients)


def line(place: Place, clients: int) -> str:
    """What keeps so many more clients from a place that does not have them all."""
    waiting = f", and {place.waiting} wait{'s' if place.waiting == 1 else ''} for one" if place.waiting else ""
    what = "no place is free" if clients == 1 else f"{clients} places are not free"
    return f"{what} ({words.place(place)}{waiting})"


def why_none_after_ours(world: World, instance: Instance, uid: Optional[int]) -> Optional[str]:
    """As ``why_none``, where one of ours ended a moment ago, which the daemon may list still.

    :raises NotReady: if the daemon does not tell its clients.
    """
    end_s = world.now_s() + _ENDING_S
    why = why_none(world, instance, uid)
    while why is not None and world.now_s() < end_s:
        world.sleep_s(_POLL_S)
        why = why_none(world, instance, uid)
    return why


def number(world: World, instance: Instance, uid: Optional[int]) -> Optional[int]:
    """How many more clients of ours find a place; None for as many as come.

    :raises NotReady: if the daemon does not tell its clients.
    """
    counted = room.now(world, instance.name)
    return None if counted is None else counted.free(_whose(uid))


def _whose(uid: Optional[int]) -> Whose:
    """Whose a client of ours is: it stays in our control group."""
    return control_groups.whose(os.getpid(), os.geteuid() if uid is None else uid)
