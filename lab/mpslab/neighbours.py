"""What all labs of one machine share: the loopback addresses, and one setting of the kernel.

A list of the labs' directories under /run, which lasts as long as both do; a lab counts while it has hosts.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from mpslab.places import Places

_LIST = Path("/run/mps-lab-directories")


@contextmanager
def alone(places: Places) -> Iterator[list[Places]]:
    """Hold off all other labs for a moment; yields those that have hosts, this one not among them.

    This lab is on the list afterwards if it has hosts by then; an empty list leaves no file.
    """
    handle = _locked()
    try:
        listed = [Places(Path(line)) for line in _LIST.read_text().splitlines() if line]
        others = [other for other in listed if other != places and _has_hosts(other)]
        try:
            yield others
        finally:
            kept = [*others, places] if _has_hosts(places) else others
            if kept:
                os.ftruncate(handle, 0)
                os.pwrite(handle, "".join(f"{lab.base}\n" for lab in kept).encode(), 0)
            else:
                _LIST.unlink()
    finally:
        os.close(handle)


def _locked() -> int:
    """The list, locked: the file at that place, not one that was removed while we waited for its lock."""
    while True:
        handle = os.open(_LIST, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(handle), os.stat(_LIST)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


def _has_hosts(lab: Places) -> bool:
    return any(lab.hosts.glob("*/host.json"))
