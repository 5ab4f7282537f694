"""A mark that a daemon is being told of a client: what the next process of the door finds if this one is killed then.

A daemon whose connection is closed after a client's credentials and before its answer is jammed for good (driver 580,
H200). The door closes it only when it dies. So the next one looks at that daemon before anything else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Optional

from mpsctl.adapters import files
from mpsctl.model.places import Places
from mpsctl.store.admission import ServedDaemon


class Telling:
    """The mark of one instance. It lies in memory, and making it costs some microseconds."""

    def __init__(self, places: Places, instance: str) -> None:
        self._path = places.runtime(instance) / "front-door.telling"
        self._number: Optional[int] = None

    def begin(self, number: int, daemon: ServedDaemon) -> None:
        """``number`` is the visitor's. Where the mark cannot be made, the visitor is passed on all the same."""
        self._number = number
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, _said(daemon))
            finally:
                os.close(descriptor)

    def end(self, number: int) -> None:
        """The daemon has answered the visitor with this number; nothing where it was not that one's turn."""
        if number == self._number:
            self._number = None
            with suppress(OSError):
                files.remove(self._path)

    def was_cut(self, daemon: ServedDaemon) -> bool:
        """Whether an earlier process of the door died while it told this daemon of a client."""
        try:
            return self._path.read_bytes() == _said(daemon)
        except OSError:
            return False


def _said(daemon: ServedDaemon) -> bytes:
    return f"{daemon.pid} {daemon.started_at}\n".encode()
