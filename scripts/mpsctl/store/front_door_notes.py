"""What the front door of an instance wrote down, in /run/mps-fleet/<instance>/front-door.json.

Who waits before it, whom it let in, and a daemon that it found jammed. The door writes it, all others read it. Whom it
lets in it adds to a second file before the daemon hears of him: a door that is killed right after has forgotten nobody.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Mapping, Optional, TypeVar, get_args, get_type_hints

from mpsctl.adapters import files, procfs
from mpsctl.model.errors import MpsctlError
from mpsctl.model.places import Places
from mpsctl.model.shares import Whose
from mpsctl.store import remembered

LET_IN, REFUSED, GAVE_UP, TURNED_AWAY, JAMMED = "let-in", "refused", "gave-up", "turned-away", "jammed"
"""What becomes of a client, as a word; the last is what becomes of a daemon."""

Counts = Mapping[str, Mapping[str, int]]
"""How many came to each of these ends since boot, by the reason; "" is the reason of those that were let in."""


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
    """A client that was passed on to a daemon, and the server that had it then, 0 where that was not written down; each
    ``started_at`` (clock ticks since boot) tells a process from a later one with the same pid, and ``stack``
    (``procfs.stack``) its program from a later one, 0 where that is not known. ``group``, ``container`` and ``job`` are
    as in ``shares.Whose``."""

    pid: int
    started_at: int
    uid: int
    daemon_pid: int
    at_s: float
    server_pid: int = 0
    server_started_at: Optional[int] = None
    stack: int = 0
    group: str = ""
    container: str = ""
    job: str = ""

    @property
    def whose(self) -> Optional[Whose]:
        """Whose it was when it came, None where that was not told then."""
        if not self.group and not self.job:
            return None
        return Whose(self.uid, self.group, self.container, job=self.job)

    @property
    def server_lives(self) -> bool:
        return procfs.lives(self.server_pid, self.server_started_at)

    def is_of(self, daemon_pid: int, daemon_started_at: int) -> bool:
        """Whether it was this very daemon: an earlier process may have had its pid, but not in this one's life."""
        began_s = (daemon_started_at - 1) / os.sysconf("SC_CLK_TCK")
        return self.daemon_pid == daemon_pid and self.at_s >= began_s


@dataclass(frozen=True)
class Jammed:
    """A daemon that took a client's credentials and gave no answer, ``since_s`` seconds after boot."""

    daemon_pid: int
    daemon_started_at: int
    since_s: float


@dataclass(frozen=True)
class Notes:
    """``greeting`` is what the daemon says first, in hexadecimal, where it was learned; ``unknown_greeting`` what it
    said and the door does not understand, as ``greeting``. ``whole`` is whether nothing of it was lost since boot: else
    somebody may have been let in who is not among ``let_in``. ``counts`` may lack who came in the last moment before
    the door was killed."""

    waiting: tuple[Waits, ...] = ()
    let_in: tuple[LetIn, ...] = ()
    jammed: Optional[Jammed] = None
    greeting: str = ""
    unknown_greeting: str = ""
    whole: bool = True
    counts: Counts = field(default_factory=dict)


NAME = "front-door.json"


def path(places: Places, instance: str) -> Path:
    return places.runtime(instance) / NAME


def read(places: Places, instance: str) -> Notes:
    """What was written last, as far as it can be read. Who has ended meanwhile is left out.

    Another release may have written it: what that does not know is left out or as if nobody had noted it.
    """
    added, whole = _added(places, instance)  # first: from there they move into the file
    place = path(places, instance)
    found = remembered.load(place)
    if not isinstance(found, dict):
        whole = whole and not os.path.lexists(place)
        found = {}
    waiting, _ = _each(Waits, found.get("waiting"))
    let_in, read_all = _each(LetIn, found.get("let_in", [] if not found else None))
    every = sorted((*let_in, *added), key=lambda one: one.at_s)
    newest = {(one.pid, one.started_at): one for one in every}.values()
    return Notes(
        tuple(one for one in waiting if procfs.alive(one.pid)),
        tuple(one for one in newest if procfs.started_at(one.pid) == one.started_at),
        _one(Jammed, found.get("jammed")),
        str(found.get("greeting") or ""),
        str(found.get("unknown_greeting") or ""),
        whole and read_all and found.get("whole", True) is True,
        _counts(found.get("counts")),
    )


def _counts(found: Any) -> Counts:
    """What can be read of them; a number that is none is left out."""
    each = found.items() if isinstance(found, dict) else ()
    return {
        event: {reason: count for reason, count in reasons.items() if _fits(count, (int,)) and count >= 0}
        for event, reasons in each
        if isinstance(reasons, dict)
    }


T = TypeVar("T", Waits, LetIn, Jammed)


def _each(kind: type[T], found: Any) -> tuple[tuple[T, ...], bool]:
    """The entries of a list that can be read, and whether all can."""
    if not isinstance(found, list):
        return (), False
    read = [_one(kind, entry) for entry in found]
    return tuple(one for one in read if one is not None), None not in read


def _one(kind: type[T], found: Any) -> Optional[T]:
    """One entry, or None where it lacks something, or has something else there than belongs there."""
    fields: Any = kind  # mypy takes no dataclass for hashable
    kinds = _kinds(fields)
    known = {key: value for key, value in found.items() if key in kinds} if isinstance(found, dict) else {}
    try:
        return kind(**known) if all(_fits(value, kinds[key]) for key, value in known.items()) else None
    except TypeError:
        return None


@cache
def _kinds(kind: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    """The kinds of value that each field takes; a number of JSON's is an integer where it has no fraction."""
    kinds = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    return {name: (*some, int) if float in some else some for name, some in kinds.items()}


def _fits(value: Any, kinds: tuple[type[Any], ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


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
    """Forget all but who was let in and lives: an instance of that name may be there again before such a process ends,
    and at its servers that one would have no limit."""
    survivors = Notes(let_in=read(places, instance).let_in)
    if survivors.let_in:
        files.write(path(places, instance), json.dumps(asdict(survivors)) + "\n", lasting=False)
    for one in (_added_path, _former_path, *([] if survivors.let_in else [path])):
        files.remove(one(places, instance))


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def _added_path(places: Places, instance: str) -> Path:
    return path(places, instance).with_suffix(".let-in")


def _former_path(places: Places, instance: str) -> Path:
    return path(places, instance).with_suffix(".let-in-before")


def _added(places: Places, instance: str) -> tuple[list[LetIn], bool]:
    """Who was added, and whether all lines can be read. One that is cut short, as on a full disk, is somebody too."""
    found: list[LetIn] = []
    whole = True
    for one in (_added_path, _former_path):
        try:
            lines = (files.read_text(one(places, instance)) or "").splitlines()
        except (OSError, MpsctlError):
            whole = False
            continue
        for line in filter(None, lines):
            entry = None
            with suppress(ValueError):
                entry = _one(LetIn, remembered.parsed(line))
            found += [] if entry is None else [entry]
            whole = whole and entry is not None
    return found, whole
