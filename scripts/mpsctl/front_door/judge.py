"""What the socket's side of the front door asks of the side that knows the instance.

The socket's side accepts, greets, reads who comes and passes clients on. It knows no instance, no server and no
setting: for each client it asks a judge, which never blocks, and tells it what became of the client.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Optional, Protocol, Union

from mpsctl.store.admission import ServedDaemon


@dataclass(eq=False)
class Visitor:
    """One connection of a process that said that it is a CUDA client.

    ``pid``, ``uid`` and ``gid`` are the kernel's, of the connection (SO_PEERCRED), as the host numbers them.
    ``started_at`` (clock ticks since boot) tells the process from a later one with the same pid, and ``stack``
    (``procfs.stack``) its program from a later one of the same process, 0 where that is not known. ``since_s`` is when
    its second message was read, on the door's clock; ``number`` counts the connections of this door. ``pidfd`` becomes
    readable when the process ends. ``holder`` is among whose connections this one counts.
    """

    connection: socket.socket
    pid: int
    uid: int
    gid: int
    started_at: int
    since_s: float
    number: int
    pidfd: Optional[int] = None
    messages: tuple[bytes, bytes] = field(default=(b"", b""))
    stack: int = 0
    holder: str = ""


@dataclass(frozen=True)
class LetIn:
    """It may pass, to this daemon, whose server for it is ready."""

    daemon: ServedDaemon


@dataclass(frozen=True)
class Wait:
    """Not yet. ``why`` is a word: what it waits for; ``place`` is the one that it does not find, where that is why."""

    why: str
    place: str = ""


@dataclass(frozen=True)
class Refuse:
    """It is greeted, and the connection closed: its CUDA reports error 805. ``reason`` is a word, ``text`` a line."""

    reason: str
    text: str


Verdict = Union[LetIn, Wait, Refuse]


class Judge(Protocol):
    """Who knows the instance. No method blocks."""

    def fileno(self) -> int:
        """A descriptor that is readable when a verdict may have changed; ``woken`` empties it."""

    def woken(self) -> None:
        """The descriptor was readable."""

    def judge(self, visitor: Visitor) -> Verdict:
        """What becomes of a visitor now. Asked again at each wake, and every 50 ms while somebody waits, in the order
        in which the visitors came."""

    def still(self, visitor: Visitor, daemon: ServedDaemon) -> bool:
        """Whether a verdict to let in still holds. Asked last before the daemon hears of the client, with the
        instance's admission held; if not, the visitor waits on."""

    def came_in_before(self, visitor: Visitor) -> bool:
        """Whether this is a later connection of a process that was let in: it makes room for nobody."""

    def tells(self, visitor: Visitor, daemon: ServedDaemon) -> None:
        """The daemon is told of the visitor right after this. ``passed``, ``gave_up`` or ``unanswered`` says what came
        of it, but where the daemon could not be told."""

    def passed(self, visitor: Visitor, waited_s: float) -> None:
        """The daemon's answer was handed to the visitor."""

    def unanswered(self, visitor: Visitor, daemon: ServedDaemon, problem: str) -> None:
        """The daemon took the visitor's credentials and closed, or gave no answer within the bound: it may be
        jammed."""

    def not_understood(self, daemon: ServedDaemon, said: bytes) -> None:
        """The daemon greeted with something else than ``greeting``, or with nothing within the bound (empty). It was
        told nothing; the visitor waits on."""

    def refused(self, visitor: Visitor, reason: str, text: str, waited_s: float) -> None:
        """The visitor was told no."""

    def gave_up(self, visitor: Visitor, waited_s: float) -> None:
        """The visitor closed its connection, or ended, before it was passed on."""

    def turned_away(self, pid: int, uid: int, reason: str, text: str, count: int) -> None:
        """A connection that never became a visitor was greeted and closed: it said something else than a CUDA client
        says, nothing within the bound, or was one too many of its user.

        Of many alike the first few are told one by one, ``count`` 1; the others later and together, ``pid`` and
        ``text`` of the last."""

    def greeting(self) -> bytes:
        """What is said to everyone who connects."""

    def wait_s(self) -> float:
        """How long a visitor may wait, in seconds."""
