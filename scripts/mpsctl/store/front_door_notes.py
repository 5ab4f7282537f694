"""What the front door of an instance wrote down, in /run/mps-fleet/<instance>/front-door.json.

Who waits before it, whom it let in, and a daemon that it found jammed. The door writes it, all others read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, procfs
from mpsctl.model.places import Places
from mpsctl.store import remembered


@dataclass(frozen=True)
class Waits:
    """A client before the door, ``since_s`` seconds after boot, and what for (a word of the door's)."""

    pid: int
    uid: int
    since_s: float
    why: str


@dataclass(frozen=True)
class LetIn:
    """A client that was passed on to a daemon; ``started_at`` (clock ticks since boot) tells it from a later process
    with the same pid."""

    pid: int
    started_at: int
    uid: int
    daemon_pid: int
    at_s: float


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
    found = remembered.load(path(places, instance))
    try:
        waiting = tuple(Waits(**one) for one in found["waiting"])
        let_in = tuple(LetIn(**one) for one in found["let_in"])
        jammed = Jammed(**found["jammed"]) if found["jammed"] is not None else None
        notes = Notes(waiting, let_in, jammed, found["greeting"], found["unknown_greeting"])
    except (TypeError, KeyError):
        return Notes()
    return Notes(
        tuple(one for one in notes.waiting if procfs.alive(one.pid)),
        tuple(one for one in notes.let_in if procfs.started_at(one.pid) == one.started_at),
        notes.jammed,
        notes.greeting,
        notes.unknown_greeting,
    )


def write(places: Places, instance: str, notes: Notes) -> None:
    files.write(path(places, instance), json.dumps(asdict(notes)) + "\n", lasting=False)


def forget(places: Places, instance: str) -> None:
    files.remove(path(places, instance))
