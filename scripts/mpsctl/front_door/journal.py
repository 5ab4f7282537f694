"""The door's lines for the journal, which it never waits for."""

from __future__ import annotations

import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Callable, Mapping

from mpsctl.adapters import journal
from mpsctl.model import foreign
from mpsctl.model.places import Places

_MOST_KEPT = 1000


class Journal:
    """Where the lines go: journald's socket, and standard error where there is none. It never waits.

    A burst fills journald's queue (10 datagrams by the kernel's default, 512 by systemd's). What does not go in is
    kept, and ``retry`` is called, with what is to be called a little later. Beyond 1000 lines they are dropped, and the
    next one says how many were. Both threads of the door write here.
    """

    def __init__(self, places: Places, retry: Callable[[Callable[[], None]], None]) -> None:
        self._path = str(journal.socket_path(places))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._retry = retry
        self._lock = threading.Lock()
        self._kept: deque[Mapping[str, str]] = deque()
        self._dropped = 0

    def write(self, fields: Mapping[str, str]) -> None:
        """``fields`` are one entry; MESSAGE is the line for people."""
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                self._dropped += 1
            else:
                told = {**fields, "MPS_DROPPED_LINES": str(self._dropped)} if self._dropped else fields
                self._dropped = 0
                self._kept.append(told)
        self.send()

    def send(self) -> None:
        """Send what is kept, as far as journald takes it."""
        with self._lock:
            while self._kept and self._sent(self._kept[0]):
                self._kept.popleft()
            left = bool(self._kept)
        if left:
            self._retry(self.send)

    def _sent(self, fields: Mapping[str, str]) -> bool:
        try:
            self._socket.sendto(journal.encoded(fields), self._path)
        except BlockingIOError:
            return False
        except OSError:
            with suppress(OSError, ValueError):
                print(foreign.line(fields["MESSAGE"]), file=sys.stderr, flush=True)
        return True

    def close(self) -> None:
        self.send()
        self._socket.close()
