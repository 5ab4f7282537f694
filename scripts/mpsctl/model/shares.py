"""How many clients of one unit, container or user an instance takes at once, beside how many it takes in all.

Limits of MPS hold for one process, never for a service, a user or a container (driver 580, H200: so do the percentage
and the memory limit). So what bounds those is their number of clients: a share of N has N times the limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Optional

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted, written
from mpsctl.model.pattern import Pattern

UNIT, USER, CONTAINER = "unit", "user", "container"
KINDS = (UNIT, USER, CONTAINER)
_EACH = "each-"
_LISTS = {UNIT: "units", USER: "users"}
"""The variable's keys with a share for each name; a container has no name that outlasts it."""
_UNIT_NAME = Pattern(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|scope|slice)")
_USER_NAME = Pattern(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|0|[1-9][0-9]{0,9}")
_UNIT_ENDS = (".service", ".scope", ".slice")
_COUNT = Pattern(r"[0-9]{1,4}")
_TEXT = Pattern(r"(unit|user):(\S+)=([0-9]+)|each-(unit|user|container)=([0-9]+)")
_MOST_NAMES = 200
_EXAMPLE = "write for example {units: {api.service: 4}, each_user: 2}"


@dataclass(frozen=True)
class Share:
    """``clients`` at once of the unit or user ``name``, or where that is None of each one that has no share of its
    own. 0 keeps them out."""

    kind: str
    name: Optional[str]
    clients: int

    def __str__(self) -> str:
        return f"{_EACH}{self.kind}={self.clients}" if self.name is None else f"{self.key}={self.clients}"

    @property
    def key(self) -> str:
        """What names it: ``unit:api.service``, ``each-user``."""
        return f"{_EACH}{self.kind}" if self.name is None else f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Shares:
    """All shares of an instance, each name once, in the order of their text."""

    every: tuple[Share, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.every))

    def __iter__(self) -> Iterator[Share]:
        return iter(self.every)

    def __bool__(self) -> bool:
        return bool(self.every)


def check_shares(value: object) -> Shares:
    """The shares as the role's variable has them, or as the text of an instance's file.

    :raises BadValue: if they are neither, or a name stands twice.
    """
    found = tuple(_of_text(value)) if isinstance(value, str) else tuple(_of_mapping(value))
    keys = [share.key for share in found]
    for key in keys:
        if keys.count(key) > 1:
            raise BadValue(f"{key} twice", "each share once", "remove one")
    if len(found) > _MOST_NAMES:
        raise BadValue(f"{len(found)} shares", f"at most {_MOST_NAMES}", "give them to slices, or to each unit or user")
    return Shares(tuple(sorted(found, key=lambda share: (share.name is None, share.key))))


def _of_text(text: str) -> Iterator[Share]:
    for word in text.split():
        found = _TEXT.fullmatch(word)
        if found is None:
            raise BadValue(quoted(word), "unit:NAME=N, user:NAME=N or each-unit=N", "let the role write the file")
        kind, name, count, each, each_count = found.groups()
        yield _share(kind or each, name, count or each_count)


def _of_mapping(value: object) -> Iterator[Share]:
    if not isinstance(value, Mapping):
        raise BadValue(quoted(value), "shares of units, users and containers", _EXAMPLE)
    lists = {key: kind for kind, key in _LISTS.items()}
    defaults = {f"each_{kind}": kind for kind in KINDS}
    for key, inner in value.items():
        if key in defaults:
            yield _share(defaults[key], None, inner)
        elif key in lists and isinstance(inner, Mapping):
            for name, count in inner.items():
                yield _share(lists[key], name, count)
        elif key in lists:
            raise BadValue(f"{key}: {quoted(inner)}", "names with a number of clients each", _EXAMPLE)
        else:
            raise BadValue(quoted(key), f"one of {', '.join((*lists, *defaults))}", _EXAMPLE)


def _share(kind: str, name: Any, count: Any) -> Share:
    where = f"{_EACH}{kind}" if name is None else f"{kind} {quoted(name)}"
    text = written(count) if isinstance(count, (int, str)) and not isinstance(count, bool) else ""
    if not _COUNT.fullmatch(text):
        raise BadValue(f"{where}: {quoted(count)}", "a whole number of clients, 0 to 9999", "write for example 4")
    if name is None:
        return Share(kind, None, int(text))
    known = written(name) if isinstance(name, (int, str)) and not isinstance(name, bool) else ""
    if kind == UNIT and not _UNIT_NAME.fullmatch(known):
        raise BadValue(where, "a unit's whole name, .service, .scope or .slice", "write for example api.service")
    if kind == USER and not _USER_NAME.fullmatch(known):
        raise BadValue(where, "a user's name or number", "write for example alice or 1000")
    return Share(kind, known, int(text))


# -- who counts in which share


@dataclass(frozen=True)
class Room:
    """How many clients an instance takes at once: ``clients`` in all (None: as many as come), and by ``shares``, whose
    users are numbers. Who finds no place is refused at once with ``refuse``, and waits without."""

    clients: Optional[int] = None
    shares: Shares = Shares()
    refuse: bool = False


@dataclass(frozen=True)
class Whose:
    """Whose a process is: its user, and its control group as far as root made it (``/system.slice/api.service``), empty
    where that was not told; ``container`` is the container that this group is, empty where it is none."""

    uid: int
    group: str = ""
    container: str = ""


ALL = "clients"
"""What everybody counts in."""


def places(room: Room, whose: Whose) -> Iterator[tuple[str, int]]:
    """What a process counts in, by name, and how many that takes.

    A share of a slice takes all units below it. A unit that has a share of its own or lies in such a slice has no
    default, and neither has a container's: that counts as the container.
    """
    if room.clients is not None:
        yield ALL, room.clients
    own = {share.key: share.clients for share in room.shares}
    user = f"{USER}:{whose.uid}"
    if user in own:
        yield user, own[user]
    elif _EACH + USER in own:
        yield user, own[_EACH + USER]
    units = [part for part in whose.group.split("/") if part.endswith(_UNIT_ENDS)]
    named = [f"{UNIT}:{unit}" for unit in units if f"{UNIT}:{unit}" in own]
    for key in named:
        yield key, own[key]
    if whose.container:
        if _EACH + CONTAINER in own:
            yield f"{CONTAINER}:{whose.container}", own[_EACH + CONTAINER]
    elif not named and _EACH + UNIT in own:
        last = next((unit for unit in units if not unit.endswith(".slice")), None)
        if last is not None:
            yield f"{UNIT}:{last}", own[_EACH + UNIT]


def over(room: Room, counted: Mapping[str, int], whose: Whose) -> Optional[str]:
    """The first place that one more of these would not find, by name; None where there is room. ``counted`` is how many
    there are by name, as ``count`` gives it."""
    return next((name for name, most in places(room, whose) if counted.get(name, 0) >= most), None)


def count(room: Room, every: Iterable[Whose]) -> Counter[str]:
    """How many of these count in each place."""
    return Counter(name for whose in every for name, _ in places(room, whose))
