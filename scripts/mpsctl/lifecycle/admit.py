"""What the unit's commands and drains tell the front door of an instance.

Every word goes into one file, which the door reads before each client that it passes on. Whoever closes the door may
look at the daemon's clients at once: the word is in force when these functions return.

Without a front door the word is the mode of the directory that clients name: they come in while it is open. Nobody is
told to wait, or refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import pipe, procfs, without_door
from mpsctl.model.instance import Instance
from mpsctl.store import admission, drains, jobs
from mpsctl.store.admission import CLOSED, OPEN, WAITING, Admission, ServedDaemon
from mpsctl.store.desired_admission import desired_admission
from mpsctl.store.world import World

_REFUSE_ALL_S = 3
"""Nobody is being passed on to a daemon that has ended; a door's service that is stopped is not waited for."""
_SETTLE_S = 3
"""For each instance, by who has the host to himself."""
_STARTS, _STOPPED = "the daemon's limits are not in force yet", "the unit was stopped"


def wait_for_start(world: World, instance: Instance) -> None:
    """Whoever comes waits, as far as no drain refuses him: a daemon is about to start, or to start again.

    :raises BadValue: if the host does not have the group that may connect.
    """
    _write(world, instance.name, _drained(world, instance) or desired_admission(instance, WAITING, _STARTS))


def let_in(world: World, instance: Instance, daemon: ServedDaemon, devices: Sequence[str]) -> Optional[drains.Drain]:
    """Let clients through to a daemon whose limits were read back, unless the instance is drained; the drain then.

    A drain may begin at the same moment: it marks first and closes then, so the mark is looked at again. ``devices``
    are the daemon's, by UUID.

    :raises BadValue: if the host does not have the group that may connect, or a user who has a share.
    """
    found = desired_admission(instance, OPEN, "", daemon, devices)
    if drains.read(world, instance.name) is None:
        _write(world, instance.name, found)
    drained = drains.read(world, instance.name)
    if drained is not None:
        _write(world, instance.name, _drained(world, instance, daemon) or found)
    return drained


def close_for_drain(world: World, name: str, for_run: bool = False) -> Optional[Admission]:
    """Let nobody new in, as the drain's mark says; what stood before. Later connections of clients that were let in
    before go through. ``for_run``: whether it is open again should this run be killed."""
    before = admission.read(world.places, name)
    known = before or Admission(WAITING)
    drained = drains.read(world, name)
    state = CLOSED if drained is not None and drained.refuse else WAITING
    closed = replace(known, state=state, why=_told(drained), daemon=_alive(known.daemon))
    _write(world, name, replace(closed, for_run=for_run and _was_open(known)))
    return before


def close_for_end(
    world: World, name: str, refuse: bool, for_run: bool = False, bound_s: float = admission.BOUND_S
) -> Optional[Admission]:
    """Let nobody new in because the daemon is about to end; what stood before. With ``refuse`` nobody waits for the
    next one. ``for_run`` as in ``close_for_drain``.

    :raises Stuck: if the front door does not let go of a client within ``bound_s``.
    """
    before = admission.read(world.places, name)
    known = before or Admission(WAITING)
    if refuse:
        found = replace(known, state=CLOSED, why=_STOPPED)
    elif known.state == CLOSED:  # a drain that refuses outlasts a restart
        found = known
    else:
        found = replace(known, state=WAITING, why=_STARTS)
    found = replace(found, daemon=_alive(known.daemon))
    _write(world, name, replace(found, for_run=for_run and _was_open(known)), bound_s)
    return before


def _was_open(known: Admission) -> bool:
    """Whether what is closed for a run was open, or is closed for this run already."""
    return (known.state == OPEN or known.for_run) and known.daemon is not None


def is_left_closed(world: World, name: str) -> bool:
    """Whether a run that was killed, or still is at work, closed an instance, and nobody has opened it since."""
    found = admission.stored(world.places, name)
    return found is not None and found.for_run


def settle(world: World, name: str) -> bool:
    """By who has the host lock: what a run closed, that was killed, is open; whether a directory was opened for it.

    A directory is opened for the daemon alone that served there then: the next one is not open before its limits are in
    force.
    """
    found = admission.stored(world.places, name)
    if found is None or not found.for_run or (found.by_mode and _alive(found.daemon) is None):
        return False
    _write(world, name, replace(found, state=OPEN, why="", for_run=False), _SETTLE_S)
    return found.by_mode


def reopen(world: World, name: str, before: Optional[Admission]) -> None:
    """Bring back what stood before ``close_for_drain``, where that daemon still runs and nobody else has drained."""
    if before is None or before.daemon is None or _alive(before.daemon) is None:
        return
    if drains.read(world, name) is None:
        _write(world, name, before)


def tell_jobs(world: World, name: str) -> None:
    """Tell the front door the shares that jobs have now; all else stays as it was told.

    :raises Stuck: if the front door does not let go of a client within ``admission.BOUND_S``.
    """
    with jobs.locked(world):  # what stands there changes under it alone
        found = admission.stored(world.places, name)
        room = None if found is None else jobs.room(world.places, name, found.room)
        if found is not None and found.room != room:
            _put(world, name, replace(found, room=room), admission.BOUND_S)


def refuse_all(world: World, name: str) -> None:
    """The instance was stopped: whoever comes is told so at once."""
    known = admission.read(world.places, name) or Admission(CLOSED)
    _write(world, name, replace(known, state=CLOSED, why=_STOPPED, daemon=None, for_run=False), _REFUSE_ALL_S)


def _write(world: World, name: str, found: Admission, bound_s: float = admission.BOUND_S) -> None:
    """Have it in force, with the shares that jobs have at this moment."""
    if not jobs.are_told(world.places):
        _put(world, name, found, bound_s)
        return
    with jobs.locked(world, bound_s):
        _put(world, name, replace(found, room=jobs.room(world.places, name, found.room)), bound_s)


def _put(world: World, name: str, found: Admission, bound_s: float) -> None:
    """A daemon without a front door is opened before it is said to be, and closed before it is said to be closed."""
    before = admission.read(world.places, name)
    public = _without_door(world, name, found.daemon or (before.daemon if before is not None else None))
    found = replace(found, by_mode=public is not None)
    if public is not None and found.state == OPEN:
        without_door.open_to_everyone(public)
    elif public is not None and public.is_dir():
        without_door.close(public)
    admission.write(world.places, name, found, bound_s)


def _without_door(world: World, name: str, daemon: Optional[ServedDaemon]) -> Optional[Path]:
    """The public directory in which a daemon itself has its sockets, or None where it has a directory of its own."""
    directory = Path(daemon.pipe_directory) if daemon is not None else None
    if directory is None or directory == world.places.pipe(name) or pipe.is_former(directory):
        return None
    return None if (directory / pipe.PUBLIC_NAME).is_symlink() else directory  # a link: the front door stands again


def _drained(world: World, instance: Instance, daemon: Optional[ServedDaemon] = None) -> Optional[Admission]:
    found = drains.read(world, instance.name)
    if found is None:
        return None
    return desired_admission(instance, CLOSED if found.refuse else WAITING, _told(found), daemon)


def _told(drained: Optional[drains.Drain]) -> str:
    if drained is None:
        return _STARTS
    return f"drained since {drained.since}" + (f" ({drained.why})" if drained.why else "")


def _alive(daemon: Optional[ServedDaemon]) -> Optional[ServedDaemon]:
    return daemon if daemon is not None and procfs.started_at(daemon.pid) == daemon.started_at else None
