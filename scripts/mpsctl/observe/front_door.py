"""The front door of an instance as found, and who waits: before it, or in the daemon's own list."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import pipe, procfs, without_door
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance
from mpsctl.observe.door_facts import ANOTHER_USER, PENDING, DoorFacts, UnitFacts, Waiting
from mpsctl.observe.facts import InstanceFacts
from mpsctl.store import admission, desired_admission, front_door_notes
from mpsctl.store.front_door_notes import Notes, Waits
from mpsctl.store.world import World


def look(world: World, desired: Instance, unit: UnitFacts, service: UnitFacts, found: InstanceFacts) -> DoorFacts:
    """The front door of an instance whose main process was looked at."""
    places, name = world.places, desired.name
    public = unit.listens_on.parent if unit.active and unit.listens_on is not None else Path(desired.pipe_directory)
    door = DoorFacts(
        unit,
        pipe.leads_to_door(public),
        admission.read(places, name),
        without_door.has_sockets(public),
        _notes(front_door_notes.read(places, name), service),
        service,
        pipe.somebody_listens(public),
    )
    return _compared(door, desired, found)


def _notes(notes: Notes, service: UnitFacts) -> Notes:
    """What the door noted, without those who waited for a process of it that was killed: they wait no more."""
    runs = service.active or service.active_state == UnitFacts("").active_state  # the latter: not told
    return notes if runs else replace(notes, waiting=())


def _compared(door: DoorFacts, desired: Instance, found: InstanceFacts) -> DoorFacts:
    """With what the door is to be told of the daemon that runs, in the state that it was told."""
    told = door.admission
    if told is None or told.daemon is None or told.daemon.pid != found.pid or not desired.front_door:
        return door
    try:
        wanted = desired_admission.desired_admission(desired, told.state, told.why, told.daemon, found.serves)
    except BadValue:  # the check of the file says so
        return door
    served_is_told = found.main is not None and found.main.serves is not None
    amiss = [one for one in desired_admission.differences(told, wanted) if served_is_told or one != "judged_devices"]
    return replace(door, desired=wanted, amiss=tuple(amiss))


def waiting(found: InstanceFacts, now_s: float) -> list[Waiting]:
    """Who waits, the longest first; one process once. ``found`` has the servers and the log already."""
    serving = sorted({server.uid for server in found.servers if server.uid is not None})
    first = at_door(found.door.notes if found.door is not None else Notes(), serving, now_s)
    known = {one.pid for one in first}
    pending = [(pid, uid) for pid, uid in found.log.waiting.items() if pid not in known and procfs.alive(pid)]
    return [*first, *(_waiting(pid, uid, PENDING, behind=_others(serving, uid)) for pid, uid in pending)]


def at_door(notes: Notes, serving: Sequence[int], now_s: float) -> list[Waiting]:
    """Who waits before the front door; ``serving`` are the users that have a server, as far as that is known."""
    every = noted(notes.waiting)
    return [_at_door(one, every, serving, now_s) for one in every]


def noted(every: Sequence[Waits]) -> list[Waits]:
    """Of each process that waits its oldest connection, in the order in which they came. A door that was killed could
    not take back what it noted: of a process that began later it noted nothing."""
    found: dict[int, Waits] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for one in sorted(every, key=lambda one: one.since_s):
        began = procfs.started_at(one.pid)
        if began is not None and (began - 1) / ticks <= one.since_s:
            found.setdefault(one.pid, one)
    return list(found.values())


def _at_door(one: Waits, every: Sequence[Waits], serving: Sequence[int], now_s: float) -> Waiting:
    behind: tuple[int, ...] = ()
    if one.why == ANOTHER_USER:
        came_first = sorted({other.uid for other in every if other.since_s < one.since_s and other.uid != one.uid})
        behind = tuple(uid for uid in serving if uid != one.uid) or tuple(came_first)
    waited_s = round(max(0.0, now_s - one.since_s), 1)
    return _waiting(one.pid, one.uid, one.why, one.place, behind, waited_s)


def _others(serving: Sequence[int], uid: int) -> tuple[int, ...]:
    """The users who are served where that one is not: a daemon serves one user at a time (B20, driver 580)."""
    return () if uid in serving else tuple(serving)


def _waiting(
    pid: int, uid: int, why: str, place: str = "", behind: tuple[int, ...] = (), waited_s: Optional[float] = None
) -> Waiting:
    user, unit, container = procfs.user(uid), procfs.unit(pid), procfs.container(pid)
    return Waiting(pid, uid, procfs.command(pid), user, unit, container, why, place, behind, waited_s)


def of_others(waits: Sequence[Waits], uid: int) -> list[Waits]:
    """Who of other users waits. Where one user is served at a time, a client of this one's would come in after them."""
    return [one for one in noted(waits) if one.uid != uid]
