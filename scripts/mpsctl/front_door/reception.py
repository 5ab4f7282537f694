"""Who connects: accepted, greeted, counted, and heard until it has said that it is a CUDA client.

A client that is accepted and not greeted runs outside MPS if this process ends then (driver 580). So few are accepted
at a time, and each is greeted before anything else is done.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import Callable, Optional

from mpsctl.adapters import procfs
from mpsctl.adapters.subordinate_ids import SubordinateIds
from mpsctl.front_door import handshake
from mpsctl.front_door.bounds import Bounds, connections_that_fit
from mpsctl.front_door.holders import Holders
from mpsctl.front_door.judge import Judge, Visitor
from mpsctl.front_door.poller import Poller, Watch
from mpsctl.front_door.turned_away import TurnedAway
from mpsctl.model import foreign

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_OF_ONE_CONNECTION = (errno.ECONNABORTED, errno.EPERM, errno.EINTR)
_DEBUGGED = (
    "it says that it is under a debugger: a daemon ends its server for such a one, and does not answer it; debug it"
    " outside MPS"
)


_MADE_ROOM = "made_room", "the front door has no place left, its user had most of them, and another user came"


@dataclass(eq=False)
class _Caller:
    """A connection that has not said yet who it is. ``until_s`` is when its time is over."""

    connection: socket.socket
    who: handshake.Credentials
    holder: str
    number: int
    until_s: float
    messages: list[bytes] = field(default_factory=list)
    watch: Optional[Watch] = None


class Reception:
    """``arrived`` gets each visitor; whoever has it gives its connection back with ``leave``. ``make_room`` is given a
    holder (and a reason and a line), turns the newest visitor of that one away, and says whether there was one."""

    def __init__(
        self,
        listener: socket.socket,
        judge: Judge,
        poller: Poller,
        clock: Callable[[], float],
        bounds: Bounds,
        arrived: Callable[[Visitor], None],
        make_room: Callable[[str, str, str], bool],
    ) -> None:
        listener.setblocking(False)
        handshake.expect_credentials(listener)
        self._listener = listener
        self._judge = judge
        self._poller = poller
        self._clock = clock
        self._bounds = bounds
        self._arrived = arrived
        self._visitor_makes_room = make_room
        self._most = connections_that_fit(bounds.connections)
        self._turned_away = TurnedAway(judge, clock, bounds.told_each_s)
        self._holders = Holders(SubordinateIds())
        self._callers: dict[int, _Caller] = {}
        self._number = 0
        self._accept_again_s: Optional[float] = None
        self._watch: Optional[Watch] = poller.watch(listener.fileno(), self.accept)

    @property
    def connections(self) -> int:
        """How many are open, of visitors as well."""
        return self._holders.total

    def next_s(self) -> Optional[float]:
        """When ``due`` has something to do, on the clock; None if nothing."""
        first = next(iter(self._callers.values()), None)
        times = (first.until_s if first else None, self._accept_again_s, self._turned_away.next_s)
        return min((one for one in times if one is not None), default=None)

    def due(self) -> None:
        now_s = self._clock()
        for caller in list(self._callers.values()):  # all have the same time, so the first one's is over first
            if caller.until_s > now_s:
                break
            self._send_away(caller, "silent", f"it did not say who it is within {self._bounds.silent_s:g} s")
        if self._accept_again_s is not None and self._accept_again_s <= now_s:
            self._accept_again_s = None
            self._watch = self._poller.watch(self._listener.fileno(), self.accept)
        if self._turned_away.next_s is not None and self._turned_away.next_s <= now_s:
            self._turned_away.sum_up()

    def accept(self) -> None:
        """Greet those who are in the backlog, some of them."""
        greeting = self._judge.greeting()
        for _ in range(self._bounds.accepted_at_once):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in _OF_ONE_CONNECTION:
                    continue
                if problem.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                self._pause()
                return
            try:
                handshake.say(connection, greeting)
            except OSError:  # it is gone already
                connection.close()
                continue
            self._take(connection)

    def _pause(self) -> None:
        """The listener stays readable while nobody can be accepted; clients wait in its backlog."""
        self._stop_accepting()
        self._accept_again_s = self._clock() + self._bounds.accept_pause_s

    def _stop_accepting(self) -> None:
        if self._watch is not None:
            self._poller.forget(self._watch)
            self._watch = None

    def _take(self, connection: socket.socket) -> None:
        who = handshake.peer(connection)
        holder = self._holders.holder(who.uid)
        self._number += 1
        if self._has_no_place(who, holder, connection):
            return
        connection.setblocking(False)
        handshake.expect_credentials(connection)
        self._holders.take(holder)
        caller = _Caller(connection, who, holder, self._number, self._clock() + self._bounds.silent_s)
        self._callers[caller.number] = caller
        caller.watch = self._poller.watch(connection.fileno(), lambda: self._hear(caller))

    def _has_no_place(self, who: handshake.Credentials, holder: str, connection: socket.socket) -> bool:
        mine = self._holders.count(holder)
        if who.pid <= 0:
            reason, text = "unknown_process", "this host's process ids do not name who connected"
        elif mine >= self._bounds.connections_of_a_user:
            also = "" if holder == str(who.uid) else f", as one of {foreign.shown(holder)}'s subordinate ids,"
            reason, text = "too_many_of_user", f"user {who.uid}{also} has {mine} connections to the front door already"
        elif self.connections >= self._most and not self._make_room(holder):
            reason, text = "too_many", f"the front door has {self._most} connections already"
        else:
            return False
        handshake.part(connection)
        self._turned_away.tell(who.pid, who.uid, reason, text)
        return True

    def _make_room(self, newcomer: str) -> bool:
        """Turn away a connection of whoever has most, if that is more than the newcomer's: whose is silent for longest,
        for a CUDA client speaks at once, or else the newest visitor. Whether there is a place now."""
        holder = self._holders.makes_room_for(newcomer)
        if not holder:
            return False
        caller = next((one for one in self._callers.values() if one.holder == holder), None)
        if caller is None:
            return self._visitor_makes_room(holder, *_MADE_ROOM)
        self._send_away(caller, *_MADE_ROOM)
        return True

    def _hear(self, caller: _Caller) -> None:
        while len(caller.messages) < 2:
            try:
                message = handshake.hear_client(caller.connection)
            except BlockingIOError:
                return
            if message is None:
                self._end(caller)
                return
            problem = _problem(message, caller.who, not caller.messages)
            if problem is not None:
                self._send_away(caller, *problem)
                return
            caller.messages.append(message.data)
        self._becomes_visitor(caller)

    def _becomes_visitor(self, caller: _Caller) -> None:
        who = caller.who
        pidfd = handshake.process(caller.connection, who.pid)
        # The pidfd first: if its process still runs after the look, the look was at that process.
        started_at = procfs.started_at(who.pid)
        visitor = Visitor(
            connection=caller.connection,
            pid=who.pid,
            uid=who.uid,
            gid=who.gid,
            started_at=started_at or 0,
            since_s=self._clock(),
            number=caller.number,
            pidfd=pidfd,
            messages=(caller.messages[0], caller.messages[1]),
            stack=procfs.stack(who.pid),
            holder=caller.holder,
        )
        self._forget(caller)
        if started_at is None or handshake.has_ended(pidfd):
            self.leave(visitor)
        else:
            self._arrived(visitor)

    def leave(self, visitor: Visitor) -> None:
        """The end of a visitor's connection."""
        if visitor.pidfd is not None:
            os.close(visitor.pidfd)
            visitor.pidfd = None
        self._close(visitor.connection, visitor.holder)

    def stop(self) -> None:
        """Accept nobody any more, and close the connections of those who have not said who they are."""
        self._stop_accepting()
        self._accept_again_s = None
        for caller in list(self._callers.values()):
            self._end(caller)
        self._turned_away.sum_up()

    def _send_away(self, caller: _Caller, reason: str, text: str) -> None:
        self._end(caller)
        self._turned_away.tell(caller.who.pid, caller.who.uid, reason, text)

    def _end(self, caller: _Caller) -> None:
        self._forget(caller)
        self._close(caller.connection, caller.holder)

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.number]
        if caller.watch is not None:
            self._poller.forget(caller.watch)

    def _close(self, connection: socket.socket, holder: str) -> None:
        handshake.part(connection)
        self._holders.give_back(holder)


def _problem(message: handshake.Message, who: handshake.Credentials, first: bool) -> Optional[tuple[str, str]]:
    """Why a message is not what a CUDA client says, as a word and a line; None if it is."""
    if not message.whole:
        return "truncated", "it sent a message that is too long, or descriptors"
    said = message.credentials
    if said is None or (said.pid, said.uid) != (who.pid, who.uid):
        shown = "no credentials" if said is None else f"the credentials of process {said.pid} of user {said.uid}"
        return "credentials", f"it sent {shown}; the connection is of process {who.pid} of user {who.uid}"
    if first:
        if message.data != handshake.CREDENTIALS:
            return "not_a_client", f"its first message is {message.data.hex()}; a CUDA client says OUTBCRED"
    elif message.data == handshake.DEBUGGED_CUDA_CLIENT:
        return "debugged", _DEBUGGED
    elif message.data != handshake.CUDA_CLIENT:
        other = handshake.SAYS_WHO.get(message.data, f"{message.data.hex()}, which is unknown")
        return "not_a_client", f"it says that it is {other}; only CUDA clients pass the front door"
    return None
