"""Connections to a daemon that gave no answer, which are kept open for a while.

To close one jams the daemon for good (driver 580, H200); perhaps it is only slow. Its answer has no receiver any more:
the client was told.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Callable, Optional

from mpsctl.front_door import handshake
from mpsctl.front_door.poller import Poller, Watch


@dataclass(eq=False)
class _Kept:
    connection: socket.socket
    until_s: float
    watch: Optional[Watch] = None


class KeptOpen:
    """Each is kept until the daemon says something or closes it, ``bound_s`` seconds at most."""

    def __init__(self, poller: Poller, clock: Callable[[], float], bound_s: float) -> None:
        self._poller = poller
        self._clock = clock
        self._bound_s = bound_s
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, connection: socket.socket) -> None:
        kept = _Kept(connection, self._clock() + self._bound_s)
        self._kept.append(kept)
        kept.watch = self._poller.watch(connection.fileno(), lambda: self._heard(kept))

    def next_s(self) -> Optional[float]:
        return self._kept[0].until_s if self._kept else None

    def due(self) -> None:
        while self._kept and self._kept[0].until_s <= self._clock():
            self._close(self._kept[0])

    def _heard(self, kept: _Kept) -> None:
        try:
            message = handshake.hear_daemon(kept.connection)
        except BlockingIOError:
            return
        if message is not None:
            message.close_descriptors()
        self._close(kept)

    def _close(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        if kept.watch is not None:
            self._poller.forget(kept.watch)
        handshake.part(kept.connection)
