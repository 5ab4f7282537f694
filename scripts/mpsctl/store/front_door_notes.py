"""What the front door of an instance wrote down, in /run/mps-fleet/<instance>/front-door.json.

Who waits before it, whom it let in, and a daemon that it found jammed. The door writes it, all others read it. Whom it
lets in it adds to a second file before the daemon hears of him: a door that is killed right after has forgotten nobody.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Optional

from mpsctl.adapters import files, procfs
from mpsctl.model.errors import MpsctlError
from mpsctl.model.places import Places
from mpsctl.model.shares import Whose
from mpsctl.store import remembered


@dataclass(frozen=True)
class Waits:
    """A client before the door, ``since_s`` seconds after boot, and what for (a word of the door's); where it has no
    place, ``place`` is which one, as ``shares.places`` names it."""

    pid: int
    uid: int
    since_s: float
    why: str
    place: str = ""


@dataclass(frozen=True)
class LetIn:
    """A client that was passed on to a daemon, and the server that had it then; each ``started_at`` (clock ticks since
    boot) tells a process from a later one with the same pid. ``group`` and ``container`` are as in ``shares.Whose``."""

    pid: int
    started_at: int
    uid: int
    daemon_pid: int
    server_pid: int
    server_started_at: Optional[int]
    at_s: float
    group: str = ""
    container: str = ""

    @property
    def whose(self) -> Whose:
        return Whose(self.uid, self.group, self.container)

    @property
    def server_lives(self) -> bool:
        return procfs.lives(self.server_pid, self.server_started_at)


@dataclass(frozen=True)
class Jammed:
    """A daemon that took a client's credentials and gave no answer, ``since_s`` seconds after boot."""

    daemon_pid: int
    daemon_started_at: int
    since_s: float


@dataclass(frozen=True)
class Notes:
    """``greeting`` is what the daemon says first, in hexadecimal, where it was learned; ``unknown_greeting`` what it
    said and the door does not understand, as ``greeting``."""

    waiting: tuple[Waits, ...] = ()
    let_in: tuple[LetIn, ...] = ()
    jammed: Optional[Jammed] = None
    greeting: str = ""
    unknown_greeting: str = ""


def path(places: Places, instance: str) -> Path:
    return places.runtime(instance) / "front-door.json"


def read(places: Places, instance: str) -> Notes:
    """What was written last; nothing where it cannot be read. Who has ended meanwhile is left out."""
    added = tuple(_added(places, instance))  # first: from there they move into the file
    found = remembered.load(path(places, instance))
    try:
        waiting = tuple(Waits(**one) for one in found["waiting"])
        let_in = tuple(LetIn(**one) for one in found["let_in"])
        jammed = Jammed(**found["jammed"]) if found["jammed"] is not None else None
        notes = Notes(waiting, let_in, jammed, found["greeting"], found["unknown_greeting"])
    except (TypeError, KeyError):
        notes = Notes()
    every = sorted((*notes.let_in, *added), key=lambda one: one.at_s)
    let_in = tuple({(one.pid, one.started_at): one for one in every}.values())
    return Notes(
        tuple(one for one in notes.waiting if procfs.alive(one.pid)),
        tuple(one for one in let_in if procfs.started_at(one.pid) == one.started_at),
        notes.jammed,
        notes.greeting,
        notes.unknown_greeting,
    )


def add(places: Places, instance: str, one: LetIn) -> None:
    """Note one more that is let in, at once; ``write`` says it again.

    :raises OSError: if it cannot be noted.
    """
    path = _added_path(places, instance)
    descriptor = os.open(path, _APPEND, 0o600)
    try:
        with files.named(path):
            os.write(descriptor, b"\n" + json.dumps(asdict(one)).encode() + b"\n")  # behind one that was cut short
    finally:
        os.close(descriptor)


def set_aside(places: Places, instance: str) -> None:
    """Before what was added so far is written with the rest: what is added from now on is kept beyond that."""
    former = _former_path(places, instance)
    if not former.exists():  # else an earlier write failed
        with suppress(FileNotFoundError):
            _added_path(places, instance).rename(former)


def write(places: Places, instance: str, notes: Notes) -> None:
    """Write all notes, with everybody who was added before ``set_aside``.

    :raises OSError: if the disk takes no more.
    """
    files.write(path(places, instance), json.dumps(asdict(notes)) + "\n", lasting=False)
    files.remove(_former_path(places, instance))


def forget(places: Places, instance: str) -> None:
    for one in (path, _added_path, _former_path):
        files.remove(one(places, instance))


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def _added_path(places: Places, instance: str) -> Path:
    return path(places, instance).with_suffix(".let-in")


def _former_path(places: Places, instance: str) -> Path:
    return path(places, instance).with_suffix(".let-in-before")


def _added(places: Places, instance: str) -> Iterator[LetIn]:
    for one in (_added_path, _former_path):
        with suppress(OSError, MpsctlError):
            for line in (files.read_text(one(places, instance)) or "").splitlines():
                with suppress(ValueError, TypeError):  # the last one of a door that was killed may be cut short
                    yield LetIn(**json.loads(line))
