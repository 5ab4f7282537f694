"""Lines with fields for the journal, by journald's native protocol, so that whoever reads them matches no sentence."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Mapping

from mpsctl.model import foreign
from mpsctl.model.places import Places


def encoded(fields: Mapping[str, str]) -> bytes:
    """The datagram: ``NAME=value`` lines; a value of several lines is preceded by its length in bytes."""
    pieces = []
    for name, value in fields.items():
        data = value.encode("utf-8", "backslashreplace")
        if b"\n" in data:
            pieces.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            pieces.append(name.encode() + b"=" + data + b"\n")
    return b"".join(pieces)


class Journal:
    """Where the lines go: journald's socket, and standard error where there is none. It never waits.

    A line that journald has no room for is dropped, and the next one says how many were.
    """

    def __init__(self, places: Places) -> None:
        self._path = str(places.root / "run/systemd/journal/socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._dropped = 0

    def write(self, fields: Mapping[str, str]) -> None:
        """``fields`` are one entry; MESSAGE is the line for people."""
        told = {**fields, "MPS_DROPPED_LINES": str(self._dropped)} if self._dropped else fields
        try:
            self._socket.sendto(encoded(told), self._path)
            self._dropped = 0
        except BlockingIOError:
            self._dropped += 1
        except OSError:
            with suppress(OSError, ValueError):
                print(foreign.line(fields["MESSAGE"]), file=sys.stderr, flush=True)

    def close(self) -> None:
        self._socket.close()
