"""Who has a place in an instance, where the number of its clients is held.

A process takes its place when it is let in. It keeps it while its server lists it, which it does as long as the
process has a context (driver 580, H200: not yet after cuInit, no more after the last context is destroyed), and until a
list that was asked for after its end is without it. Each new context comes to the door, so who gave his place away
is judged anew then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import AbstractSet, Optional, Tuple

from mpsctl.adapters import control_groups, procfs
from mpsctl.front_door.judge import Visitor
from mpsctl.front_door.notebook import Notebook
from mpsctl.front_door.readiness import Lists
from mpsctl.model import shares
from mpsctl.model.shares import ARRIVING_S, PLACE_HOLDS_S, Room, Whose
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.front_door_notes import LetIn
from mpsctl.store.world import World

_LOOK_S, _SHARE_OF_LOOKS = 0.05, 10
"""Between two looks at all processes, and more where one takes long: at least so many times as long."""
_NOBODY = -1
_Key = Tuple[int, Optional[int]]


@dataclass
class _Member:
    """One process that has a place: it was let in, or a server lists it. ``ended_s`` is when it was seen to have
    ended."""

    whose: Whose
    at_s: float
    server_pid: int
    server_started_at: Optional[int]
    was_listed: bool = False
    ended_s: Optional[float] = None


class Census:
    """The processes of one instance's daemon. The loop alone uses it.

    ``_without`` are those who gave their places away, with the moment at which they were let in last.
    """

    def __init__(self, world: World, notebook: Notebook) -> None:
        self._world, self._notebook = world, notebook
        self._members: dict[_Key, _Member] = {}
        self._without: dict[_Key, float] = {}
        self._ended_s: Optional[float] = None
        self._daemon: Optional[ServedDaemon] = None
        self._next_s = 0.0
        self._version, self._lists_s = -1, -1.0
        self._counted: Optional[tuple[Room, Counter[str]]] = None

    def no_place(self, visitor: Visitor, whose: Whose, room: Room, lists: Lists) -> Optional[str]:
        """Which place a visitor's process does not find, as ``shares.places`` names it; None where it has a place or
        finds one. ``lists`` are what the daemon said last of its clients."""
        self._look(lists)
        if (visitor.pid, visitor.started_at) in self._members:
            return None
        if self._counted is None or self._counted[0] != room:
            self._counted = room, shares.count(room, (one.whose for one in self._members.values()))
        return shares.over(room, self._counted[1], whose)

    def waits_for_lists_since(self) -> Optional[float]:
        """The moment after which the daemon is to be asked for its clients, because somebody ended; None where nobody
        did since it was."""
        return self._ended_s

    def _look(self, lists: Lists) -> None:
        """At everybody, as of a moment ago; at who came in since, as of now."""
        now_s = self._world.now_s()
        if self._daemon != lists.daemon:
            self._members.clear()
            self._without.clear()
            self._daemon, self._next_s = lists.daemon, now_s
        version = self._notebook.version
        due = now_s >= self._next_s or self._lists_s != lists.at_s
        if not due and version == self._version:
            return
        self._counted, self._version, self._lists_s = None, version, lists.at_s
        let_in = {(noted.pid, noted.started_at): noted for noted in self._notebook.let_in_to(lists.daemon)}
        for key, noted in let_in.items():
            self._meet(key, noted)
        if due:
            self._without = {key: at_s for key, at_s in self._without.items() if key in let_in}
            self._judge_all(lists, let_in.keys())
            taken_s = self._world.now_s() - now_s
            self._next_s = now_s + max(_LOOK_S, _SHARE_OF_LOOKS * taken_s)

    def _meet(self, key: _Key, noted: LetIn) -> None:
        """Who was let in has a place, but one that gave it away since."""
        found = self._members.get(key)
        if self._without.get(key) == noted.at_s or (found is not None and found.at_s == noted.at_s):
            return
        whose = noted.whose or control_groups.whose(noted.pid, noted.uid)
        self._members[key] = _Member(whose, noted.at_s, noted.server_pid, noted.server_started_at)

    def _judge_all(self, lists: Lists, let_in: AbstractSet[_Key]) -> None:
        listed = self._listed(lists)
        for key, member in list(self._members.items()):
            self._judge(key, member, lists, key in let_in, key in listed)
        ends = [one.ended_s for one in self._members.values() if one.ended_s is not None]
        self._ended_s = max(ends, default=None)

    def _listed(self, lists: Lists) -> set[_Key]:
        """Who is listed; one who did not come by this door, or of whom it knows nothing any more, becomes known."""
        by_pid: dict[int, _Key] = {key[0]: key for key in self._members}
        found: set[_Key] = set()
        for server in lists.servers:
            for pid in server.clients:
                started_at = procfs.started_at(pid)
                key = (pid, started_at) if started_at is not None else by_pid.get(pid, (pid, None))
                found.add(key)
                if key not in self._members:
                    uid = procfs.uid(pid)
                    whose = control_groups.whose(pid, _NOBODY if uid is None else uid)
                    self._members[key] = _Member(whose, lists.at_s, server.pid, server.started_at)
        return found

    def _judge(self, key: _Key, member: _Member, lists: Lists, noted: bool, listed: bool) -> None:
        """Whether it has its place still."""
        pid, started_at = key
        if listed:
            member.was_listed = member.was_listed or lists.at_s > member.at_s  # else for what it had before
            return
        serves = procfs.lives(member.server_pid, member.server_started_at)
        if not procfs.lives(pid, started_at):
            if member.ended_s is None:
                member.ended_s = self._world.now_s()
            if lists.at_s > member.ended_s or not serves:
                del self._members[key]
                if started_at is not None:
                    self._notebook.has_ended(pid, started_at)
        elif not serves:  # through another server it does not come in
            self._gives_away(key, member)
        elif not noted and not member.was_listed:
            del self._members[key]  # it was about to be passed on, and was not
        elif lists.at_s >= member.at_s + (ARRIVING_S if member.was_listed else PLACE_HOLDS_S):
            self._gives_away(key, member)

    def _gives_away(self, key: _Key, member: _Member) -> None:
        del self._members[key]
        self._without[key] = member.at_s
