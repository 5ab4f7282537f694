"""How many clients of one unit, container or user an instance takes at once, beside how many it takes in all.

Limits of MPS hold for one process, never for a service, a user or a container (driver 580, H200: so do the percentage
and the memory limit). So what bounds those is their number of clients: a share of N has N times the limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Optional

from mpsctl.model.checked_values import check_server_user
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted, shown, written
from mpsctl.model.pattern import Pattern

UNIT, USER, CONTAINER = "unit", "user", "container"
KINDS = (UNIT, USER, CONTAINER)
JOB = "job"
"""A job of a batch system. Its share is nobody's desire: it is told when the job begins, and gone with it."""
_EACH = "each-"
_LISTS = {"units": UNIT, "users": USER}
"""The variable's keys with a share for each name; a container has no name that outlasts it."""
_DEFAULTS = {f"each_{kind}": kind for kind in KINDS}
_UNIT_NAME = Pattern(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]{0,239}\.(?:service|scope|slice)")
_SLICE_NAME = Pattern(r"[A-Za-z0-9:_.\\]+(?:-[A-Za-z0-9:_.\\]+)*\.slice")
_UNIT_ENDS = (".service", ".scope", ".slice")
_COUNT = Pattern(r"0|[1-9][0-9]{0,3}")
_TEXT = Pattern(r"(unit|user):(\S+)=(\S*)|each-(unit|user|container)=(\S*)")
_TOLD_TEXT = Pattern(r"(unit|user|job):(\S+)=(\S*)|each-(unit|user|container|job)=(\S*)")
_JOB_ID = Pattern(r"[1-9][0-9]{0,18}")
_MOST_SHARES, _MOST_TOLD = 200, 400
_EXAMPLE = "write for example {units: {api.service: 4}, each_user: 2}"


@dataclass(frozen=True)
class Share:
    """``clients`` at once of the unit or user ``name``, or where that is None of each one that has no share of its
    own. 0 keeps them out."""

    kind: str
    name: Optional[str]
    clients: int

    def __str__(self) -> str:
        return f"{self.key}={self.clients}"

    @property
    def key(self) -> str:
        """What names it: ``unit:api.service``, ``each-user``."""
        return f"{_EACH}{self.kind}" if self.name is None else f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Shares:
    """All shares of an instance, each key once, in one order; ``of`` makes them."""

    every: tuple[Share, ...] = ()

    @classmethod
    def of(cls, every: Iterable[Share], most: int = _MOST_SHARES) -> Shares:
        """:raises BadValue: if one stands twice, or there are more than anybody would write."""
        found: dict[str, Share] = {}
        for share in every:
            if share.key in found:
                raise BadValue(f"{share.key} twice", "each share once", "remove one")
            if len(found) == most:
                expected = f"at most {most} shares"
                raise BadValue(f"more than {most}", expected, "give them to slices, or to each unit or user")
            found[share.key] = share
        return cls(tuple(sorted(found.values(), key=lambda share: (share.name is None, share.key))))

    def __str__(self) -> str:
        return " ".join(map(str, self.every))

    def __iter__(self) -> Iterator[Share]:
        return iter(self.every)

    def __bool__(self) -> bool:
        return bool(self.every)

    @property
    def largest(self) -> Optional[Share]:
        """The one with the most clients, None where there is none that lets somebody in."""
        most = max(self.every, key=lambda share: share.clients, default=None)
        return most if most is not None and most.clients > 0 else None

    @property
    def as_variable(self) -> dict[str, Any]:
        """As the role's variable has them."""
        found: dict[str, Any] = {}
        for share in self.every:
            if share.name is None:
                found[f"each_{share.kind}"] = share.clients
            else:
                found.setdefault(f"{share.kind}s", {})[share.name] = share.clients
        return found


NONE = Shares()


def check_shares(value: object) -> Shares:
    """The shares as the role's variable has them, or as the text of an instance's file.

    :raises BadValue: if they are neither, or one stands twice.
    """
    return Shares.of(_of_text(value) if isinstance(value, str) else _of_mapping(value))


def read_told(text: str) -> Shares:
    """The shares as a front door is told them, those of jobs among them.

    :raises BadValue: if they are none.
    """
    return Shares.of(_of_text(text, _TOLD_TEXT), _MOST_TOLD)


def with_jobs(shares: Shares, jobs: Mapping[str, int]) -> Shares:
    """The shares with those of these jobs, by their ids, and of no other: nobody else comes in by a job.

    :raises BadValue: if there are more than anybody would have.
    """
    kept = [share for share in shares if share.kind != JOB]
    told = [Share(JOB, None, 0), *(Share(JOB, job, clients) for job, clients in jobs.items())]
    return Shares.of([*kept, *told], _MOST_TOLD)


def _of_text(text: str, form: Pattern = _TEXT) -> Iterator[Share]:
    for word in text.split():
        found = form.fullmatch(word)
        if found is None:
            expected = "unit:NAME=N, user:NAME=N, or each-unit=N, each-user=N, each-container=N"
            raise BadValue(quoted(word), expected, "write for example unit:api.service=4 each-user=2")
        kind, name, count, each, each_count = found.groups()
        yield _each(each, each_count) if each else _named(kind, name, count)


def _of_mapping(value: object) -> Iterator[Share]:
    if not isinstance(value, Mapping):
        raise BadValue(quoted(value), "shares of units, users and containers", _EXAMPLE)
    for key, inner in value.items():
        if key in _DEFAULTS:
            yield _each(_DEFAULTS[key], inner)
        elif key in _LISTS and isinstance(inner, Mapping):
            for name, count in inner.items():
                yield _named(_LISTS[key], name, count)
        elif key in _LISTS:
            raise BadValue(f"{key}: {quoted(inner)}", "names with a number of clients each", _EXAMPLE)
        else:
            raise BadValue(quoted(key), f"one of {', '.join((*_LISTS, *_DEFAULTS))}", _EXAMPLE)


def _each(kind: str, count: object) -> Share:
    return Share(kind, None, _clients(f"{_EACH}{kind}", count))


def _named(kind: str, name: object, count: object) -> Share:
    known = _job(name) if kind == JOB else _unit(name) if kind == UNIT else _user(name)
    return Share(kind, known, _clients(f"{kind} {shown(known)}", count))


def _clients(where: str, count: object) -> int:
    text = written(count) if isinstance(count, (int, str)) and not isinstance(count, bool) else ""
    if not _COUNT.fullmatch(text):
        raise BadValue(f"{where}: {quoted(count)}", "a whole number of clients, 0 to 9999", "write for example 4")
    return int(text)


def _user(name: object) -> str:
    try:
        return check_server_user(name)  # the same: a user by name or number
    except BadValue as error:
        raise BadValue(f"user {error.found}", error.expected, "write for example alice or 1000") from None


def _job(name: object) -> str:
    if not isinstance(name, str) or not _JOB_ID.fullmatch(name):
        raise BadValue(f"job {quoted(name)}", "a job's id", "write for example 4711")
    return name


def _unit(name: object) -> str:
    """A unit that can have processes, by the name that its control group has."""
    where, example = f"unit {quoted(name)}", "write for example api.service"
    if not isinstance(name, str) or not _UNIT_NAME.fullmatch(name):
        raise BadValue(where, "a unit's whole name, .service, .scope or .slice", example)
    prefix, _, kind = name.rpartition(".")
    template, at, instance = prefix.partition("@")
    if at and not instance:
        expected = "a unit: no process is in a template"
        raise BadValue(where, expected, f"name its instances, {template}@1.{kind}, or their slice")
    if name == "-.slice":
        raise BadValue(where, "a part of all units: this slice has every process", "set mps_expected_clients")
    if kind == "slice" and not _SLICE_NAME.fullmatch(name):
        raise BadValue(
            where, "a slice's name: words with single dashes between them, no @", "write for example a-b.slice"
        )
    return name


# -- who counts in which share


@dataclass(frozen=True)
class Room:
    """How many clients an instance takes at once: ``clients`` in all (None: as many as come), and by ``shares``, whose
    users are numbers. Who finds no place is refused at once with ``refuse``, and waits without."""

    clients: Optional[int] = None
    shares: Shares = Shares()
    refuse: bool = False

    def __str__(self) -> str:
        told = [*([str(self.clients)] if self.clients is not None else []), *map(str, self.shares)]
        return f"{', '.join(told)}, the next one {'is refused' if self.refuse else 'waits'}"


@dataclass(frozen=True)
class Whose:
    """Whose a process is: its user, and its control group as far as root made it (``/system.slice/api.service``), empty
    where that was not told; ``container`` is the container that this group is, empty where it is none.
    ``group_untold`` is whether it could not be read: then nobody knows in which shares it counts. ``job`` is the id of
    the batch job that root's own processes say it is of, empty where it is of none."""

    uid: int
    group: str = ""
    container: str = ""
    group_untold: bool = False
    job: str = ""


ALL, NO_JOB = "clients", "no-job"
"""What everybody counts in; and, where jobs have shares, who is of none."""
ARRIVING_S, PLACE_HOLDS_S = 5.0, 120.0
"""A process that was let in has its place, listed or not, for the first of these; for the second where it was never
listed: it may load its data before it makes a context, and has no context without that."""


def places(room: Room, whose: Whose) -> Iterator[tuple[str, int]]:
    """What a process counts in, by name, and how many that takes.

    A share of a slice takes all units below it. A unit that has a share of its own or lies in such a slice has no
    default, and neither has a container's: that counts as the container.

    Where jobs have shares, a process of a job counts in that job's, whatever else it counts in, and one whose job has
    none finds no place. Who is of no job leaves the jobs' places free, and needs a share of another kind, or to be
    root.
    """
    if room.clients is not None:
        yield ALL, room.clients
    others = list(_places_by_name(room, whose))
    yield from others
    jobs = {share.name: share.clients for share in room.shares if share.kind == JOB}
    if whose.job and jobs:
        yield f"{JOB}:{whose.job}", jobs.get(whose.job, jobs.get(None, 0))
    elif jobs and not others and whose.uid != 0:
        yield NO_JOB, 0
    elif jobs and room.clients is not None:
        yield NO_JOB, max(0, room.clients - sum(jobs.values()))


def _places_by_name(room: Room, whose: Whose) -> Iterator[tuple[str, int]]:
    """The shares of its user, units and container."""
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
