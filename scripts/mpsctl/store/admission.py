"""Whether the front door lets clients through to the daemon, in /run/mps-fleet/<instance>/admission.json.

The unit's commands, drains and reloads write it; the front door reads it before each client that it passes on. Whoever
closes it has to know that nobody is being passed on under the old word: a write waits for the client that is being
passed on at this moment, and the front door's read keeps it away until that client is through.

There are two locks. The kernel gives a lock that is free to whoever asks first, and in a rush of clients the front door
asks again within microseconds. So a write takes the entry first, which lets no reader through any more, and then waits
for the readers that are inside.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Optional

from mpsctl.adapters import files, locks, procfs
from mpsctl.adapters.background import Background
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.names import door_service
from mpsctl.model.places import Places
from mpsctl.model.shares import Room, read_told
from mpsctl.store import remembered

OPEN, WAITING, CLOSED = "open", "waiting", "closed"
STATES = (OPEN, WAITING, CLOSED)
_NEWER = ("for_run", "by_mode", "room", "judged_devices")
DEFAULT_WAIT_S = 60
BOUND_S = 30
"""Within which who is being passed on is through or given up: the daemon's greeting and answer take 16 s at most."""
_ENTRY, _INSIDE = ".entry.lock", ".lock"


class Stuck(NotReady):
    """The front door does not let go of what is in force."""


@dataclass(frozen=True)
class ServedDaemon:
    """A control daemon whose limits were read back: ``started_at`` (clock ticks since boot) tells it from a later
    process with the same pid; ``pipe_directory`` is the daemon's own."""

    pid: int
    started_at: int
    pipe_directory: str

    @property
    def lives(self) -> bool:
        return procfs.lives(self.pid, self.started_at)


@dataclass(frozen=True)
class Admission:
    """What the front door does with who comes, and why, for people.

    ``daemon`` is known while its limits are in force. Where the state is not ``open`` all the same, as in a drain, it
    says through which daemon the later connections of a client go that was let in before. ``wait_s`` is how long a
    client waits at most; ``gid`` the one group that may come beside root, None for everyone; ``multi_user`` whether one
    server serves all users. ``room`` is how many come in at once, None for as many as come. ``judged_devices`` are the
    instance's by UUID where a client is refused whose own variable would shake off its limit on them.

    ``for_run``: a run that changes this host closed the door, which was open. It is open again with the end of that
    run, should it be killed, and of what it had systemd do: ``read`` says so. ``by_mode``: without a front door the
    word is the mode of a directory, which somebody has to open then: the next run does, or health.
    """

    state: str
    why: str = ""
    daemon: Optional[ServedDaemon] = None
    wait_s: int = DEFAULT_WAIT_S
    gid: Optional[int] = None
    multi_user: bool = False
    for_run: bool = False
    by_mode: bool = False
    room: Optional[Room] = None
    judged_devices: tuple[str, ...] = ()


_FIELDS = frozenset(field.name for field in fields(Admission))


def path(places: Places, instance: str) -> Path:
    return places.runtime(instance) / "admission.json"


def read(places: Places, instance: str) -> Optional[Admission]:
    """What is in force, or None where nothing that can be read was written."""
    found = stored(places, instance)
    return None if found is None else in_force(places, found)


def in_force(places: Places, found: Admission) -> Admission:
    """What holds now by what was written."""
    if found.for_run and not found.by_mode and not locks.is_taken(places.host_lock):
        return replace(found, state=OPEN, why="", for_run=False)
    return found


def stored(places: Places, instance: str) -> Optional[Admission]:
    """What was written last, or None where nothing that can be read was."""
    found = remembered.load(path(places, instance))
    try:
        daemon, room = found.pop("daemon"), found.pop("room", None)
        found["judged_devices"] = tuple(found.get("judged_devices", ()))
        read = Admission(
            **{name: value for name, value in found.items() if name in _FIELDS},  # a later build may know more
            daemon=ServedDaemon(**daemon) if daemon is not None else None,
            room=None if room is None else Room(room["clients"], read_told(room["shares"]), room["refuse"]),
        )
    except (TypeError, KeyError, AttributeError, BadValue):
        return None
    return read if read.state in STATES else None


def write(places: Places, instance: str, admission: Admission, bound_s: float = BOUND_S) -> bool:
    """Put it in force, once nobody is being passed on under what stood before; whether it says something else.

    :raises Stuck: if somebody still is after ``bound_s``: nothing was written.
    """
    with _locked(places, instance, fcntl.LOCK_EX, bound_s):
        if stored(places, instance) == admission:
            return False
        files.write(path(places, instance), json.dumps(_fields(admission)) + "\n", lasting=False)
        return True


def _fields(admission: Admission) -> dict[str, Any]:
    """As they are written. A door's service of a build before this one may still run, which knows none of the newer
    ones: where they say nothing they are left out."""
    written = asdict(admission)
    if admission.room is not None:
        written["room"]["shares"] = str(admission.room.shares)
    return {name: value for name, value in written.items() if name not in _NEWER or value}


def forget(places: Places, instance: str) -> None:
    with _locked(places, instance, fcntl.LOCK_EX):
        files.remove(path(places, instance))


@contextmanager
def held(places: Places, instance: str) -> Iterator[Optional[Admission]]:
    """What is in force, and stays so for the length of the block."""
    with _locked(places, instance, fcntl.LOCK_SH):
        yield read(places, instance)


class Held:
    """Nobody writes until this is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Optional[int] = descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def try_hold(places: Places, instance: str) -> Optional[Held]:
    """Keep what is in force until the answer is closed, without waiting; None while somebody writes, or wants to.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        with _lock(places, instance, _ENTRY, fcntl.LOCK_SH | fcntl.LOCK_NB, 0):
            descriptor = _opened(places, instance, _INSIDE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BaseException:
                os.close(descriptor)
                raise
            return Held(descriptor)
    except BlockingIOError:
        return None


def is_held(places: Places, instance: str) -> bool:
    """Whether somebody is being passed on, or somebody writes, at this moment.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        with _lock(places, instance, _INSIDE, fcntl.LOCK_EX | fcntl.LOCK_NB, 0):
            return False
    except BlockingIOError:
        return True


@contextmanager
def _locked(places: Places, instance: str, kind: int, bound_s: float = BOUND_S) -> Iterator[None]:
    end_s = time.monotonic() + bound_s
    with ExitStack() as entry:
        entry.enter_context(_lock(places, instance, _ENTRY, kind, end_s))
        with _lock(places, instance, _INSIDE, kind, end_s):
            if kind == fcntl.LOCK_SH:
                entry.close()  # readers stand beside one another: a writer may come to the entry meanwhile
            yield


@contextmanager
def _lock(places: Places, instance: str, name: str, kind: int, end_s: float) -> Iterator[None]:
    descriptor = _opened(places, instance, name)
    try:
        _take(descriptor, kind, instance, end_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, kind: int, instance: str, end_s: float) -> None:
    """The kernel keeps a queue of those who wait, and none of those who ask again and again: they would starve."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        if kind & fcntl.LOCK_NB:
            raise
    try:
        Background(partial(fcntl.flock, descriptor, kind)).result(max(0.0, end_s - time.monotonic()))
    except TimeoutError:  # the caller closes the file: a lock that is given later is given back at once
        raise Stuck(
            f"the front door of {instance} does not let go of its admission: its service may be stopped (see"
            f" `systemctl status {door_service(instance)}`); in state T, `systemctl kill -s KILL` of it ends that"
        ) from None


def open_directory(places: Places, instance: str) -> Optional[Path]:
    """The daemon's own directory, for its commands, while clients are let in; None while they are not."""
    found = read(places, instance)
    return Path(found.daemon.pipe_directory) if found and found.state == OPEN and found.daemon else None


def _opened(places: Places, instance: str, name: str) -> int:
    """The locks lie beside the file, whose place is taken by each write."""
    lock = path(places, instance).with_suffix(name)
    files.make_directory(lock.parent)
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
