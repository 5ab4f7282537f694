"""The visitors who wait, in the order in which they came, and what the judge says of them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Callable, Iterator, Optional

from mpsctl.front_door.bounds import Bounds
from mpsctl.front_door.judge import Judge, LetIn, Refuse, Visitor
from mpsctl.front_door.poller import Poller, Watch
from mpsctl.store.admission import ServedDaemon

_SHARE_OF_LOOKS = 4
"""Looks at many who wait may take long: at least so many times as long is spent on other things."""


@dataclass(frozen=True)
class _Waiter:
    visitor: Visitor
    watches: tuple[Watch, ...]


class Waiting:
    """``pass_on`` is told who may come in, and says whether another one could be passed on now. While not ``free``
    nobody is. ``gone`` hears of a visitor that ended, and ``leave`` gets each who is done."""

    def __init__(
        self,
        judge: Judge,
        poller: Poller,
        clock: Callable[[], float],
        bounds: Bounds,
        pass_on: Callable[[Visitor, ServedDaemon], bool],
        gone: Callable[[Visitor], None],
        leave: Callable[[Visitor], None],
    ) -> None:
        self._judge = judge
        self._poller = poller
        self._clock = clock
        self._bounds = bounds
        self._pass_on = pass_on
        self._gone = gone
        self._leave = leave
        self._waiters: dict[int, _Waiter] = {}
        self._last_passed: dict[str, int] = {}
        self._look_s: Optional[float] = None
        self._paused_until_s = float("-inf")
        self.being_passed: Optional[Visitor] = None
        """Waits on if that fails, and is not judged meanwhile."""
        self.free = True

    def next_s(self) -> Optional[float]:
        return self._look_s

    def add(self, visitor: Visitor) -> None:
        watches = [self._poller.watch(visitor.connection.fileno(), lambda: self._heard(visitor))]
        if visitor.pidfd is not None:
            watches.append(self._poller.watch(visitor.pidfd, lambda: self.give_up(visitor)))
        self._waiters[visitor.number] = _Waiter(visitor, tuple(watches))
        if not self.free or self._clock() < self._paused_until_s:
            self._look_again()
            return
        verdict = self._judge.judge(visitor)
        if isinstance(verdict, LetIn) and len(self._waiters) > 1:
            self.look()  # who came before may come in by now as well
        elif isinstance(verdict, LetIn):
            self._pass_on(visitor, verdict.daemon)
        elif isinstance(verdict, Refuse):
            self.refuse(visitor, verdict.reason, verdict.text)
        self._look_again()

    def look(self, to_the_end: bool = False) -> None:
        """Ask the judge about everyone, until one is being passed on, or to the end."""
        began_s = self._clock()
        wait_s = self._judge.wait_s()
        may_pass = self.free
        for visitor in self._alternating():
            if visitor.since_s + wait_s <= began_s:
                self.refuse(visitor, "waited", f"it waited {wait_s:g} s")
                continue
            if not may_pass and not to_the_end:
                break
            verdict = self._judge.judge(visitor)
            if isinstance(verdict, Refuse):
                self.refuse(visitor, verdict.reason, verdict.text)
            elif isinstance(verdict, LetIn) and may_pass:
                may_pass = self._pass_first(visitor, verdict.daemon)
        self._look_again(_SHARE_OF_LOOKS * (self._clock() - began_s))

    def _pass_first(self, visitor: Visitor, daemon: ServedDaemon) -> bool:
        """This one may come in: pass it on, or who comes before it and was judged a moment too early; of each user the
        first is asked. Whether another one could be passed on now."""
        asked = set()
        for one in self._alternating():
            if one is visitor:
                break
            if one.uid not in asked:
                asked.add(one.uid)
                verdict = self._judge.judge(one)
                if isinstance(verdict, LetIn) and not (self._pass_on(one, verdict.daemon) and self.free):
                    return False
        return self._pass_on(visitor, daemon) and self.free

    def is_passed_on(self, visitor: Visitor) -> None:
        """The daemon has its credentials: it waits no more, and other users come before the next one of its user."""
        self.remove(visitor)
        waiting = {one.visitor.holder for one in self._waiters.values()}
        latest = max(self._last_passed.values(), default=0) + 1
        self._last_passed = {holder: last for holder, last in self._last_passed.items() if holder in waiting}
        self._last_passed[visitor.holder] = latest

    def due(self) -> None:
        if self._look_s is not None and self._look_s <= self._clock():
            self._look_s = None
            self.look(to_the_end=True)

    def look_soon(self) -> None:
        """In this round still."""
        self._look_s = self._clock()

    def pause(self) -> None:
        """Nobody can be passed on until the next look: newcomers do not make it come earlier."""
        self._paused_until_s = self._clock() + self._bounds.look_s
        self._look_again()

    def _look_again(self, at_least_s: float = 0.0) -> None:
        """At the next time, if somebody waits for it."""
        if next(self._unless_being_passed(), None) is None:
            self._look_s = None
        elif self._look_s is None or at_least_s:
            self._look_s = self._clock() + max(self._bounds.look_s, at_least_s)

    def _alternating(self) -> list[Visitor]:
        """Who came first comes first, of each user in turn: a client that stops in the middle holds the daemon for a
        second, and one user may have hundreds of them."""
        return sorted(self._unless_being_passed(), key=lambda one: (self._last_passed.get(one.holder, 0), one.number))

    def _unless_being_passed(self) -> Iterator[Visitor]:
        return (one.visitor for one in self._waiters.values() if one.visitor is not self.being_passed)

    def _heard(self, visitor: Visitor) -> None:
        try:
            data = visitor.connection.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._gone(visitor)
            self.refuse(visitor, "protocol", "it sent more than a CUDA client does")
        else:
            self.give_up(visitor)

    def give_up(self, visitor: Visitor) -> None:
        self._gone(visitor)
        self.remove(visitor)
        self._judge.gave_up(visitor, self.waited_s(visitor))
        self._leave(visitor)

    def refuse(self, visitor: Visitor, reason: str, text: str) -> None:
        self.remove(visitor)
        self._judge.refused(visitor, reason, text, self.waited_s(visitor))
        self._leave(visitor)

    def remove(self, visitor: Visitor) -> None:
        """Neither judge nor hear it any more."""
        for watch in self._waiters.pop(visitor.number).watches:
            self._poller.forget(watch)

    def make_room(self, holder: str, reason: str, text: str) -> bool:
        """Refuse the newest newcomer among a holder's; whether there was one."""
        newest_first = reversed(list(self._unless_being_passed()))
        newcomers = (one for one in newest_first if one.holder == holder and not self._judge.came_in_before(one))
        found = next(newcomers, None)
        if found is not None:
            self.refuse(found, reason, text)
        return found is not None

    def refuse_all(self, reason: str, text: str) -> None:
        """But for the one that is being passed on."""
        for visitor in list(self._unless_being_passed()):
            self.refuse(visitor, reason, text)
        self._look_s = None

    def waited_s(self, visitor: Visitor) -> float:
        return self._clock() - visitor.since_s
