"""The door's notes, kept as it works and written down by its scribe; they outlive the door's process.

The loop and the worker both note something, so each change is made under a lock, and the scribe alone writes.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import Optional

from mpsctl.adapters import procfs
from mpsctl.front_door import words
from mpsctl.front_door.judge import Visitor
from mpsctl.front_door.servers import Seen
from mpsctl.front_door.worker import Worker
from mpsctl.model.shares import ARRIVING_S, Whose
from mpsctl.store import front_door_notes
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.front_door_notes import Jammed, LetIn, Notes, Waits
from mpsctl.store.world import World

_PACE_S, _PACE_OF_ONE_S = 0.1, 0.0001
"""Between two writes, and more of it for each client that is noted."""
_PRUNE_S = 5.0


class Notebook:
    """The notes of one instance; what an earlier process of the door wrote is read at the start. ``version`` is another
    one whenever somebody was let in, or was not after all."""

    def __init__(self, world: World, instance: str, scribe: Worker) -> None:
        self._world, self._instance, self._scribe = world, instance, scribe
        self._lock = threading.Lock()
        self.version = 0
        found = front_door_notes.read(world.places, instance)
        self._let_in = {(one.pid, one.started_at): one for one in sorted(found.let_in, key=lambda one: one.at_s)}
        self._waiting: dict[int, Waits] = {}
        self._rest = replace(found, waiting=(), let_in=(), counts={})
        self._counts = {event: dict(reasons) for event, reasons in found.counts.items()}
        for event, reasons in words.COUNTED.items():  # a series that begins at 0 is seen to rise
            self._counts[event] = {**dict.fromkeys(reasons, 0), **self._counts.get(event, {})}
        self._written_s = self._pruned_s = world.now_s() - _PRUNE_S
        if found.waiting:  # before the process that ended: they were told no with it
            self._order()

    @property
    def greeting(self) -> str:
        return self._rest.greeting

    @property
    def jammed(self) -> Optional[Jammed]:
        return self._rest.jammed

    def waits(self, visitor: Visitor, since_s: float, why: str, place: str = "") -> None:
        """``since_s`` is in seconds since boot."""
        noted = Waits(visitor.pid, visitor.uid, since_s, why, place)
        if self._waiting.get(visitor.number) != noted:
            with self._lock:
                self._waiting[visitor.number] = noted
            self._order()

    def waits_no_more(self, visitor: Visitor) -> None:
        if visitor.number in self._waiting:
            with self._lock:
                del self._waiting[visitor.number]
            self._order()

    def lets_in(self, visitor: Visitor, whose: Whose, daemon: ServedDaemon, server: Seen) -> LetIn:
        """Note that a visitor is passed on; on disk before the daemon hears of it. Where the disk takes no more, it is
        passed on all the same."""
        key = (visitor.pid, visitor.started_at)
        noted = LetIn(
            *key,
            visitor.uid,
            daemon.pid,
            self._world.now_s(),
            server.pid,
            server.started_at,
            visitor.stack,
            whose.group,
            whose.container,
            whose.job,
        )
        with self._lock:
            self.version += 1
            self._let_in.pop(key, None)  # the newest stand last
            self._let_in[key] = noted
            with suppress(OSError):
                front_door_notes.add(self._world.places, self._instance, noted)
        self._order()
        return noted

    def did_not_let_in(self, noted: LetIn) -> None:
        """What ``lets_in`` noted did not come about; another connection of the process may have come in since."""
        with self._lock:
            if self._let_in.get((noted.pid, noted.started_at)) is noted:
                del self._let_in[noted.pid, noted.started_at]
                self.version += 1
        self._order()

    def has_ended(self, pid: int, started_at: int) -> None:
        """Forget a process that ended: of one without a daemon nothing is ever asked."""
        with self._lock:
            self._let_in.pop((pid, started_at), None)

    def noted(self, visitor: Visitor) -> Optional[LetIn]:
        """Where the visitor's process was let in, if it was. A program that it became since by exec(2) was not: it
        knows nothing of the server of the one before."""
        noted = self._let_in.get((visitor.pid, visitor.started_at))
        if noted is not None and noted.stack and visitor.stack and noted.stack != visitor.stack:
            return None
        return noted

    def let_in_to(self, daemon: ServedDaemon) -> list[LetIn]:
        """Who was let in to this very daemon, and had not ended when that was looked at last."""
        with self._lock:
            every = list(self._let_in.values())
        return [noted for noted in every if noted.is_of(daemon.pid, daemon.started_at)]

    def arriving(self, daemon: ServedDaemon) -> frozenset[int]:
        """The users of processes that were let in a moment ago and live: their server may not list them yet."""
        oldest_s = self._world.now_s() - ARRIVING_S
        with self._lock:  # the scribe forgets who has ended meanwhile
            let_in = list(self._let_in.values())
        found = set()
        for noted in reversed(let_in):
            if noted.at_s < oldest_s:
                break
            if noted.daemon_pid == daemon.pid and procfs.started_at(noted.pid) == noted.started_at:
                found.add(noted.uid)
        return frozenset(found)

    def count(self, event: str, reason: str, number: int) -> None:
        """Count what became of ``number`` clients."""
        with self._lock:
            reasons = self._counts.setdefault(event, {})
            reasons[reason] = reasons.get(reason, 0) + number
        self._order()

    def found_jammed(self, jammed: Optional[Jammed]) -> None:
        self._change(replace(self._rest, jammed=jammed))

    def learned(self, greeting: str, understood: bool) -> None:
        """``greeting`` in hexadecimal, as in the notes."""
        self._change(replace(self._rest, greeting=greeting, unknown_greeting="" if understood else greeting))

    def _change(self, rest: Notes) -> None:
        with self._lock:
            changed = rest != self._rest
            self._rest = rest
        if changed:
            self._order()

    def _order(self) -> None:
        pace_s = _PACE_S + _PACE_OF_ONE_S * len(self._let_in)
        self._scribe.order("notes", self.write, self._written_s + pace_s)

    def write(self) -> None:
        """By the scribe, or once that has ended.

        :raises OSError: if the disk takes no more; it is tried again.
        """
        now_s = self._world.now_s()
        if now_s - self._pruned_s >= _PRUNE_S:
            self._pruned_s = now_s
            self._prune()
        with self._lock:
            front_door_notes.set_aside(self._world.places, self._instance)
            notes = replace(
                self._rest,
                waiting=tuple(self._waiting.values()),
                let_in=tuple(self._let_in.values()),
                counts={event: dict(reasons) for event, reasons in self._counts.items()},
            )
        self._written_s = now_s
        try:
            front_door_notes.write(self._world.places, self._instance, notes)
        except OSError:
            self._order()
            raise

    def _prune(self) -> None:
        """Forget who has ended: of a process without a daemon nothing is ever asked."""
        with self._lock:
            noted = list(self._let_in.items())
        ended = [key for key, _ in noted if procfs.started_at(key[0]) != key[1]]
        with self._lock:
            for key in ended:
                self._let_in.pop(key, None)
