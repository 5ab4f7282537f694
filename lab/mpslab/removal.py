"""Removing a folder of the lab, and never a file beyond it.

A build that was killed could leave the machine's own /dev/shm mounted below; whatever is mounted there is unmounted,
not emptied.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from mpslab import processes
from mpslab.errors import LabError


def mounts_below(path: Path, mountinfo: str) -> list[Path]:
    """What is mounted at or below a path, deepest first, by /proc/self/mountinfo."""
    points = [_decoded(line.split()[4]) for line in mountinfo.splitlines()]
    found = {point for point in points if point == str(path) or point.startswith(f"{path}/")}
    return [Path(point) for point in sorted(found, key=len, reverse=True)]


def remove(path: Path, timeout_s: float = 5.0) -> None:
    """Remove a folder, if it is there.

    :raises LabError: if something is still mounted below, or if it does not go.
    """
    # overlay's work folder takes a moment to be let go
    deadline = time.monotonic() + timeout_s
    while os.path.lexists(path):
        _unmount_below(path)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            if time.monotonic() > deadline:
                raise LabError(f"{path} cannot be removed: see what uses it with `grep {path.name} /proc/*/mountinfo`")
            time.sleep(0.05)


def _unmount_below(path: Path) -> None:
    info = Path("/proc/self/mountinfo")
    for point in mounts_below(path, info.read_text()):
        processes.run(["umount", point])
    left = mounts_below(path, info.read_text())
    if left:
        raise LabError(f"{left[0]} is still mounted below {path}, which was to be removed; run `umount {left[0]}`")


def _decoded(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
