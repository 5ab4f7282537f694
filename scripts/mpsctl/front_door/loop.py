"""The front door of an instance: one thread that waits for what happens and never for one client or the daemon."""

from __future__ import annotations

import socket
import time
from typing import Callable, Optional

from mpsctl.adapters.stop_request import Stop
from mpsctl.front_door.bounds import Bounds
from mpsctl.front_door.judge import Judge, Visitor
from mpsctl.front_door.kept_open import KeptOpen
from mpsctl.front_door.passing import Held, Means, Outcome, Passing, Result
from mpsctl.front_door.poller import Poller
from mpsctl.front_door.reception import Reception
from mpsctl.front_door.waiting import Waiting
from mpsctl.model.places import Places
from mpsctl.store import quiet
from mpsctl.store.admission import ServedDaemon


def serve(
    places: Places,
    instance: str,
    listener: socket.socket,
    judge: Judge,
    stop: Stop,
    outdated: Callable[[], bool] = lambda: False,
) -> None:
    """Serve who connects to ``listener``, until nobody did for a minute or a stop is requested.

    Once ``outdated`` says that another program is installed by now, it ends at the first moment without a connection:
    systemd starts the new one for the next.

    The listener is systemd's, and stays: its backlog keeps who comes later. A stop takes as long as the daemon needs
    for the client that is being passed on, 40 s at most.

    :raises OSError: if the listener cannot be used.
    """
    FrontDoor(listener, judge, quiet.Courtesy(places, instance).hold, stop, outdated=outdated).serve()


class FrontDoor:
    """``hold`` keeps the instance's admission as it is, or gives None while somebody changes it, or asks the daemon."""

    def __init__(
        self,
        listener: socket.socket,
        judge: Judge,
        hold: Callable[[], Optional[Held]],
        stop: Stop,
        clock: Callable[[], float] = time.monotonic,
        bounds: Optional[Bounds] = None,
        outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        self._judge = judge
        self._outdated = outdated
        self._stop = stop
        self._clock = clock
        self._bounds = bounds or Bounds()
        self._poller = Poller()
        self._kept_open = KeptOpen(self._poller, clock, self._bounds.kept_open_s)
        self._means = Means(self._poller, clock, self._bounds, judge, hold, self._kept_open)
        self._reception = Reception(listener, judge, self._poller, clock, self._bounds, self._arrived, self._make_room)
        self._waiting = Waiting(
            judge, self._poller, clock, self._bounds, self._pass_on, self._gone, self._reception.leave
        )
        self._passing: Optional[Passing] = None
        self._stopping = False
        self._idle_s: Optional[float] = clock() + self._bounds.idle_s
        self._poller.watch(judge.fileno(), self._woken)
        self._poller.watch(stop.fileno(), self._asked_to_stop)

    def serve(self) -> None:
        try:
            while self.step(self._wait_s()):
                pass
        except BaseException:
            if self._passing is not None and self._passing.is_told:
                self._passing.see_out()
            raise
        finally:
            self.close()

    def close(self) -> None:
        self._poller.close()

    def step(self, wait_s: float = 0.0) -> bool:
        """See to what happens within ``wait_s`` seconds, and to what is due; whether there will be more to do."""
        self._poller.round(wait_s)
        self._reception.due()
        self._waiting.due()
        if self._passing is not None:
            self._passing.due()
        self._kept_open.due()
        if self._stopping:
            return bool(self._passing or self._kept_open)
        return not self._is_idle()

    def _wait_s(self) -> float:
        """Until something is due, in seconds; negative if nothing is."""
        times = [self._reception.next_s(), self._waiting.next_s(), self._kept_open.next_s(), self._idle_s]
        if self._passing is not None:
            times.append(self._passing.until_s)
        first = min((one for one in times if one is not None), default=None)
        return -1.0 if first is None else max(0.0, first - self._clock())

    def _is_idle(self) -> bool:
        """Whether nobody has been connected for the length of idleness, or is now, where the program is outdated."""
        if self._reception.connections or self._kept_open:
            self._idle_s = None
            return False
        if self._idle_s is None:
            self._idle_s = self._clock() + self._bounds.idle_s
        if self._idle_s <= self._clock() or self._outdated():
            self._reception.accept()  # a last look at the backlog
            if not self._reception.connections:
                self._reception.stop()
                return True
            self._idle_s = None
        return False

    def _woken(self) -> None:
        self._judge.woken()
        self._waiting.look(to_the_end=True)

    def _asked_to_stop(self) -> None:
        self._stop.rearm()
        self._stopping = True
        self._idle_s = None
        self._reception.stop()
        self._refuse_who_waits()

    def _refuse_who_waits(self) -> None:
        self._waiting.refuse_all("stopping", "the front door is being stopped")

    def _make_room(self, holder: str, reason: str, text: str) -> bool:
        return self._waiting.make_room(holder, reason, text)

    def _arrived(self, visitor: Visitor) -> None:
        self._waiting.add(visitor)

    def _pass_on(self, visitor: Visitor, daemon: ServedDaemon) -> bool:
        passing = Passing(visitor, daemon, self._means, self._waiting.is_passed_on, self._ended)
        result = passing.begin()
        if result is None:
            self._passing = passing
            self._waiting.being_passed, self._waiting.free = visitor, False
            return False
        self._settle(passing, result)
        return result.outcome is not Outcome.NOT_NOW

    def _ended(self, passing: Passing, result: Result) -> None:
        self._make_free()
        self._settle(passing, result)
        if self._stopping:
            self._refuse_who_waits()
        elif result.outcome is not Outcome.NOT_NOW:
            self._waiting.look()

    def _gone(self, visitor: Visitor) -> None:
        if self._passing is not None and self._passing.visitor is visitor:
            self._passing.cancel()
            self._make_free()
            self._waiting.look_soon()

    def _make_free(self) -> None:
        self._passing = None
        self._waiting.being_passed, self._waiting.free = None, True

    def _settle(self, passing: Passing, result: Result) -> None:
        """What became of a visitor: the judge hears of it, and its connection ends unless it waits on."""
        visitor, daemon = passing.visitor, passing.daemon
        waited_s = self._waiting.waited_s(visitor)
        if result.outcome is Outcome.NOT_NOW:
            self._waiting.pause()
        elif passing.is_told:
            if result.outcome is Outcome.PASSED:
                self._judge.passed(visitor, waited_s)
            elif result.outcome is Outcome.UNANSWERED:
                self._judge.unanswered(visitor, daemon, result.text)
            else:
                self._judge.gave_up(visitor, waited_s)
            self._reception.leave(visitor)
        elif result.outcome is Outcome.GONE:
            self._waiting.give_up(visitor)
        elif result.outcome is Outcome.REFUSED:
            self._waiting.refuse(visitor, "credentials", result.text)
