"""Whether a client of a user would come in at an instance now, and if not, why.

The judgements are those of every look (``report``), as far as they speak of who comes next; what is added here is the
user: his way to the socket, the group, other users' clients, and a free place.

Others than root are told little of a daemon. What they cannot be told is said, and counts against nothing; root is told
all, and what he is not told keeps an instance from being ready.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import asdict, dataclass
from typing import Any, Iterator, Optional

from mpsctl.adapters import control_groups, procfs
from mpsctl.checks import door_word, free_places, report, waits, words
from mpsctl.checks.judgement import STATUS
from mpsctl.model.finding import CRITICAL, UNKNOWN, Check
from mpsctl.model.foreign import pasted
from mpsctl.model.shares import Whose
from mpsctl.observe import reachability, room
from mpsctl.observe.door_facts import ANOTHER_USER, Waiting
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.host import HostFacts, look
from mpsctl.observe.reachability import User
from mpsctl.store import configuration
from mpsctl.store.world import World

_OF_HOST = "gpus-answer"
_DRAIN, _DOOR = "drain", "front-door"
_DECISIVE = (
    "configuration",
    "unit-active",
    _DRAIN,
    "main-process",
    "daemon-answers",
    _DOOR,
    "gpus-present",
    "gpus-served",
    "compute-mode",
    "memory-limit",
    "thread-percentage",
    "client-priority",
    "server-state",
    "client-count",
    "gpu-memory",
)
"""The judgements of who comes next, those first that explain others."""
CLOSED, WAY, GROUP, PLACE = "front-door-closed", "way", "group", "place"
"""What keeps a client out beside those, as words; and ``ANOTHER_USER``, as the front door has it."""


@dataclass(frozen=True)
class Why:
    """What keeps a client out: ``cause`` is the id of a check or a word of the above; ``line`` and ``remedy`` are for
    people."""

    cause: str
    line: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.line}; {self.remedy}" if self.remedy else self.line


@dataclass(frozen=True)
class Ready:
    """What was found for a user at an instance; ``untold`` are lines of what could not be told."""

    instance: str
    uid: int
    why_not: Optional[Why]
    untold: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "uid": self.uid,
            "ready": self.why_not is None,
            "why": None if self.why_not is None else asdict(self.why_not),
            "untold": list(self.untold),
        }


def why_not(world: World, name: str, uid: int, clients: int = 1, group: str = "", container: str = "") -> Optional[Why]:
    """Why ``clients`` more of a user would not come in now; None where they would.

    :raises BadValue: as ``of_user``.
    """
    return of_user(world, name, uid, clients, group, container).why_not


def of_user(world: World, name: str, uid: int, clients: int = 1, group: str = "", container: str = "") -> Ready:
    """Whether ``clients`` more of a user would come in now, one that has all groups of the user database. ``group`` is
    the control group in which they will be (``/system.slice/api.service``), or ``container`` the id of their container,
    where that is known: shares go by them. Changes nothing.

    :raises BadValue: if there is no such instance, or its file is refused.
    """
    return _look(world, name, _user(uid), Whose(uid, group, container), clients)


def of_caller(world: World, name: str) -> Ready:
    """As ``of_user`` for one client of this process's user, groups and control group."""
    user = reachability.myself()
    return _look(world, name, user, control_groups.whose(os.getpid(), os.geteuid()), 1)


def _user(uid: int) -> User:
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return User(uid)
    return User(uid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _look(world: World, name: str, user: User, whose: Whose, clients: int) -> Ready:
    configuration.load(world, name)
    return _in_look(look(world, [name], isolated=True), name, user, whose, clients)


def in_look(host: HostFacts, name: str, whose: Whose, clients: int) -> Ready:
    """As ``of_user``, by a look at the host that has the instance."""
    return _in_look(host, name, _user(whose.uid), whose, clients)


def _in_look(host: HostFacts, name: str, user: User, whose: Whose, clients: int) -> Ready:
    one = host.instances[name]
    found, untold = _judged(host, name)
    why = found or next(_of_user(host, one, user, whose, clients), None)
    untold += tuple(_untold_of_user(one, whose))
    if why is None and untold and host.is_root:
        why = Why(UNKNOWN, f"it cannot be told: {untold[0]}", f"see `mpsctl verify {pasted(name)}`")
    return Ready(name, whose.uid, why, untold)


def _judged(host: HostFacts, name: str) -> tuple[Optional[Why], tuple[str, ...]]:
    """What keeps everyone out, and what cannot be told of that."""
    judged = report.report(host, STATUS)
    of_host = judged.check(None, _OF_HOST)
    found = {check.name: check for check in judged.instances[name]}
    checks = [found[id_] for id_ in _DECISIVE if id_ in found]
    for check in (*checks, of_host):
        if _keeps_out(check):
            return _why(check), ()
    one = host.instances[name]
    # What is told to everyone: by it a user who may not ask systemd knows what the front door does.
    closed = _closed(one) if host.systemd_unread else None
    untold = [check.found for check in (*checks, of_host) if check.level == UNKNOWN]
    return closed, tuple(untold[:1])  # it explains the others


def _keeps_out(check: Check) -> bool:
    if check.name == _DRAIN:
        return check.amiss
    # A door that judges by what was desired before lets clients in all the same.
    by_before = check.name == _DOOR and {one.cause for one in check.reasons} == {"not-as-desired"}
    return check.level == CRITICAL and not by_before


def _why(check: Check) -> Why:
    return Why(check.name, check.found, check.remedy)


def _closed(one: InstanceFacts) -> Optional[Why]:
    """Why the front door lets nobody in, by what it was told."""
    line = door_word.closed(one.door.admission if one.door is not None else None)
    return None if line is None else Why(CLOSED, line, f"see `systemctl status {pasted(one.unit.name)}`")


def _of_user(host: HostFacts, one: InstanceFacts, user: User, whose: Whose, clients: int) -> Iterator[Why]:
    """What keeps this user's clients out where others come in."""
    public, uid = one.public, whose.uid
    who = words.who(procfs.user(uid), uid)
    told = one.door.admission if one.door is not None else None
    if public is not None:
        obstacle = reachability.closed_directory(public, user, top=host.places.root)
        obstacle = obstacle or reachability.closed_socket(public, user)
        if obstacle is not None:
            reason = words.obstacle(obstacle)
            yield Why(WAY, reason.line, reason.remedy)
    gid = told.gid if told is not None else one.group_id
    if gid is not None and not user.is_in(gid):
        line = f"{who} is not in the group {gid} that may use this instance"
        yield Why(GROUP, line, f"add {who} to it, and begin a new session")
    if told is not None and not told.multi_user:
        before = sorted(_served_before(one, uid))
        if before:
            wait = Waiting(0, uid, "", why=ANOTHER_USER, behind=tuple(before))
            yield Why(ANOTHER_USER, f"a client of {who} {waits.line(one, wait)}", waits.of(wait).remedy)
    counted = room.counted(one, host.now_s)
    place = counted.no_place(whose, clients) if counted is not None else None
    if place is not None:
        remedy = waits.WAITS[waits.NO_PLACE].remedy.replace("INSTANCE", pasted(one.name))
        yield Why(PLACE, free_places.line(place, clients), remedy)


def _served_before(one: InstanceFacts, uid: int) -> set[int]:
    """The other users that have clients, or wait for their turn already."""
    served = {server.uid for server in one.servers if server.clients}
    return {other for other in (*served, *(each.uid for each in one.waiting)) if other not in (None, uid)}


def _untold_of_user(one: InstanceFacts, whose: Whose) -> Iterator[str]:
    told = one.door.admission if one.door is not None else None
    if one.answer.complete or told is None:
        return
    if told.room is not None:
        yield "whether a place is free"
    if not told.multi_user:
        yield f"whether another user's clients are served, behind whom {words.who(None, whose.uid)} would wait"
