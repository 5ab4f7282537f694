"""Journald's native protocol: entries with fields, so that whoever reads them matches no sentence.

Anybody may write an entry with any of our fields, but none with the fields of systemd's own, which begin with ``_`` and
say whose it is.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Mapping

from mpsctl.model.places import Places

ERROR, WARNING, NOTICE, INFO = "3", "4", "5", "6"
"""Priorities, as syslog has them."""


def socket_path(places: Places) -> Path:
    """Where journald takes datagrams."""
    return places.root / "run/systemd/journal/socket"


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


def send(places: Places, fields: Mapping[str, str]) -> None:
    """Write one entry, MESSAGE is the line for people. Nothing is waited for, and without journald nothing is said."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(encoded(fields), str(socket_path(places)))


def is_stdout() -> bool:
    """Whether standard output is this process's own connection to the journal, as systemd makes it for a unit."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        about = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(about.st_dev), str(about.st_ino))
