"""Whose a user id is that somebody got beside his own, for the users of his user namespaces (subuid(5)).

Of whatever uid a process is that came out of such a namespace, it is the work of one person. Only /etc/subuid is read:
hosts that give such ids by another service (``subid`` in nsswitch.conf) are not asked, for that may take any time.
"""

from __future__ import annotations

import bisect
import os
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files
from mpsctl.model.errors import Unreadable

PATH = Path("/etc/subuid")
_ROOTS = ("root", "0")
"""What root gives away belongs to whom it is given: containers of different people."""


class SubordinateIds:
    """The file is read anew when it has changed."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path
        self._as_of: Optional[tuple[int, int, int]] = None
        self._begins: list[int] = []
        self._ranges: list[tuple[int, int, str]] = []

    def owner(self, uid: int) -> Optional[str]:
        """The login name or number of whose id it is, as the file has it; None where it is nobody's beside root's."""
        self._read()
        place = bisect.bisect_right(self._begins, uid) - 1
        if place < 0:
            return None
        begin, count, owner = self._ranges[place]
        return owner if uid < begin + count else None

    def _read(self) -> None:
        try:
            found = os.stat(self._path)
            as_of = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            as_of = None
        if as_of == self._as_of:
            return
        self._as_of = as_of
        try:
            text = files.read_text(self._path) or ""
        except Unreadable:
            text = ""
        self._ranges = sorted(_ranges(text))
        self._begins = [begin for begin, _, _ in self._ranges]


def _ranges(text: str) -> list[tuple[int, int, str]]:
    found = []
    for line in text.splitlines():
        owner, _, rest = line.partition(":")
        begin, _, count = rest.partition(":")
        if owner and owner not in _ROOTS and begin.isdecimal() and count.isdecimal():
            found.append((int(begin), int(count), owner))
    return found
