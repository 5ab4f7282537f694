"""One visitor handed to the daemon, which serves one connection at a time.

The daemon is jammed for good when its connection is closed after a client's second message and before its answer
(driver 580, H200). So all that can fail is done before that message, and from then on the daemon's end stays open
until the answer is there, whatever becomes of the client. Closed at any other moment, it does no harm.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Callable, Optional, Protocol

from mpsctl.adapters import procfs
from mpsctl.front_door import handshake
from mpsctl.front_door.bounds import Bounds
from mpsctl.front_door.judge import Judge, Visitor
from mpsctl.front_door.kept_open import KeptOpen
from mpsctl.front_door.poller import Poller, Watch
from mpsctl.store.admission import ServedDaemon


class Held(Protocol):
    """The admission, which nobody changes until this is closed."""

    def close(self) -> None: ...


class Outcome(Enum):
    NOT_NOW = "nobody can be passed on at this moment"
    WAITS_ON = "this visitor cannot"
    GONE = "the visitor ended before it was answered"
    REFUSED = "the kernel does not let this process speak for the visitor"
    PASSED = "the daemon's answer was handed over"
    UNANSWERED = "the daemon has the visitor's credentials and did not answer"


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True)
class Means:
    """What each passing works with. ``hold`` gives the admission, or None while somebody changes it."""

    poller: Poller
    clock: Callable[[], float]
    bounds: Bounds
    judge: Judge
    hold: Callable[[], Optional[Held]]
    kept_open: KeptOpen


class Passing:
    """``told`` is called when the daemon has the visitor's credentials: from then on only this module hears the
    visitor. ``ended`` is called with the result, but for one that ``begin`` gives back."""

    def __init__(
        self,
        visitor: Visitor,
        daemon: ServedDaemon,
        means: Means,
        told: Callable[[Visitor], None],
        ended: Callable[[Passing, Result], None],
    ) -> None:
        self.visitor = visitor
        self.daemon = daemon
        self.until_s = 0.0
        self.is_told = False
        self._means = means
        self._told = told
        self._ended = ended
        self._held: Optional[Held] = None
        self._end: Optional[socket.socket] = None
        self._watch: Optional[Watch] = None
        self._overdue: Callable[[], None] = self._no_greeting

    def begin(self) -> Optional[Result]:
        """Connect to the daemon; None if its greeting is awaited now."""
        try:
            self._held = self._means.hold()
            if self._held is None:
                return Result(Outcome.NOT_NOW)
            problem = self._has_changed()
            if problem is None:
                self._connect()
                return None
        except OSError:  # nobody listens, its backlog is full, or there is no descriptor left
            problem = Result(Outcome.NOT_NOW)
        self._close()
        return problem

    def due(self) -> None:
        if self._means.clock() >= self.until_s:
            self._overdue()

    def cancel(self) -> None:
        """The visitor is gone. Only while the daemon was told nothing."""
        assert not self.is_told, "the daemon's end stays open"
        self._close()

    def see_out(self) -> None:
        """Wait for the end of it, without the loop: this process ends, and would close the daemon's end."""
        self._ended = _nobody_hears
        while self._watch is not None:
            poll = select.poll()
            poll.register(self._watch.descriptor, select.POLLIN)
            left_s = max(0.0, self.until_s - self._means.clock())
            if poll.poll(left_s * 1000):
                self._watch.act()
            else:
                self._overdue()

    def _has_changed(self) -> Optional[Result]:
        """Why the visitor must not be passed on; None if what was true when it was let in still is."""
        if not self._means.judge.still(self.visitor, self.daemon):
            return Result(Outcome.WAITS_ON)
        visitor = self.visitor
        if (
            handshake.is_over(visitor.connection)
            or handshake.has_ended(visitor.pidfd)
            or procfs.started_at(visitor.pid) != visitor.started_at
        ):
            return Result(Outcome.GONE)
        return None

    def _connect(self) -> None:
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._end.connect(str(Path(self.daemon.pipe_directory) / "control"))
        self._await(self._end, self._greeted, self._means.bounds.daemon_greeting_s, self._no_greeting)

    def _await(
        self, connection: socket.socket, act: Callable[[], None], bound_s: float, overdue: Callable[[], None]
    ) -> None:
        self._forget()
        self._watch = self._means.poller.watch(connection.fileno(), act)
        self.until_s = self._means.clock() + bound_s
        self._overdue = overdue

    def _greeted(self) -> None:
        try:
            message = self._hear()
        except BlockingIOError:
            return
        if message is None:
            self._finish(Result(Outcome.NOT_NOW))
            return
        message.close_descriptors()
        if message.data != self._means.judge.greeting():
            self._means.judge.not_understood(self.daemon, message.data)
            self._finish(Result(Outcome.NOT_NOW))
            return
        problem = self._has_changed() or self._tell()
        if problem is not None:
            # It would be tried again at once, and connect to the daemon each time.
            self._finish(Result(Outcome.NOT_NOW) if problem.outcome is Outcome.WAITS_ON else problem)
            return
        self.is_told = True
        self._await(self._daemon_end(), self._answered, self._means.bounds.answer_s, self._no_answer)
        self._told(self.visitor)

    def _no_greeting(self) -> None:
        self._means.judge.not_understood(self.daemon, b"")
        self._finish(Result(Outcome.NOT_NOW))

    def _tell(self) -> Optional[Result]:
        """Both messages in the visitor's name, one right after the other; None if the daemon has them."""
        self._means.judge.tells(self.visitor, self.daemon)
        try:
            for message in self.visitor.messages:
                handshake.say(self._daemon_end(), message, _credentials(self.visitor))
        except ProcessLookupError:
            return Result(Outcome.GONE)
        except OSError as problem:
            if handshake.is_not_allowed(problem):
                return Result(Outcome.REFUSED, f"the front door may not speak for its process: {problem.strerror}")
            return Result(Outcome.NOT_NOW)  # the daemon closed
        return None

    def _answered(self) -> None:
        try:
            message = self._hear()
        except BlockingIOError:
            return
        if message is None:
            self._finish(Result(Outcome.UNANSWERED, "the daemon closed the connection without an answer"))
        elif (message.data, len(message.descriptors), message.whole) == (handshake.DESCRIPTOR, 1, True):
            self._hand_over(message)
        else:
            message.close_descriptors()
            said = f"{message.data.hex()} with {len(message.descriptors)} descriptors"
            self._give_up(f"the daemon answered {said}, which is unknown")

    def _no_answer(self) -> None:
        self._give_up(f"the daemon did not answer within {self._means.bounds.answer_s:g} s")

    def _give_up(self, problem: str) -> None:
        """The visitor's connection may be closed, the daemon's end not."""
        self._forget()
        self._means.kept_open.keep(self._daemon_end())
        self._end = None
        self._finish(Result(Outcome.UNANSWERED, problem))

    def _hand_over(self, message: handshake.Message) -> None:
        try:
            handshake.say(self.visitor.connection, message.data, descriptor=message.descriptors[0])
        except OSError:
            self._finish(Result(Outcome.GONE))
            return
        finally:
            message.close_descriptors()
        self._await(self.visitor.connection, self._last_message, self._means.bounds.last_message_s, self._passed)

    def _last_message(self) -> None:
        """The client's last word is the daemon's to read; from here on nothing that fails does harm."""
        try:
            message = handshake.hear_client(self.visitor.connection)
            if message is not None and message.whole:
                handshake.say(self._daemon_end(), message.data, _credentials(self.visitor))
        except BlockingIOError:
            return
        except OSError:
            pass
        self._passed()

    def _passed(self) -> None:
        self._finish(Result(Outcome.PASSED))

    def _hear(self) -> Optional[handshake.Message]:
        return handshake.hear_daemon(self._daemon_end())

    def _daemon_end(self) -> socket.socket:
        assert self._end is not None
        return self._end

    def _finish(self, result: Result) -> None:
        self._close()
        self._ended(self, result)

    def _close(self) -> None:
        self._forget()
        if self._end is not None:
            handshake.part(self._end)
            self._end = None
        if self._held is not None:
            self._held.close()
            self._held = None

    def _forget(self) -> None:
        if self._watch is not None:
            self._means.poller.forget(self._watch)
            self._watch = None


def _credentials(visitor: Visitor) -> handshake.Credentials:
    return handshake.Credentials(visitor.pid, visitor.uid, visitor.gid)


def _nobody_hears(passing: Passing, result: Result) -> None:
    """The judge's side is not asked any more."""
