"""A cgroup for each boot of a host: the hosts' systemds keep apart, and none of their processes is lost sight of."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Optional

from mpslab.places import Places

_TOP = "mps-lab"


def hierarchy(mounts: str) -> Optional[Path]:
    """Where cgroup2 is mounted, by /proc/self/mounts; the supervisors mount it where the machine does not.

    The last one counts: theirs hides an older one below it.
    """
    found = None
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "cgroup2":
            found = Path(words[1])
    return found


def _of_lab(places: Places) -> Optional[Path]:
    top = hierarchy(Path("/proc/self/mounts").read_text())
    return top and top / _TOP / hashlib.sha256(str(places.base).encode()).hexdigest()[:12]


def create(places: Places, host: str, boot: int) -> Path:
    """A fresh cgroup: one that has had a systemd in it takes no new process at its top."""
    lab = _of_lab(places)
    assert lab is not None, "the supervisor mounts cgroup2"
    group = lab / f"{host}.{boot}"
    group.mkdir(parents=True)
    return group


def remove(places: Places, host: Optional[str] = None) -> None:
    """End what still runs in the cgroups of a host, or of the whole lab, and remove them."""
    lab = _of_lab(places)
    if lab is None or not lab.is_dir():
        return
    for group in lab.glob(f"{host}.*" if host else "*"):
        _empty(group)
        for path in [*_below(group), group]:
            with suppress(OSError):
                path.rmdir()
    for path in (lab, lab.parent):
        with suppress(OSError):
            path.rmdir()


def _below(group: Path) -> Iterator[Path]:
    """Deepest first, the order in which they can be removed."""
    for folder, _, _ in os.walk(group, topdown=False):
        if Path(folder) != group:
            yield Path(folder)


def _empty(group: Path, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        members = [
            int(pid)
            for path in [group, *_below(group)]
            if (path / "cgroup.procs").exists()
            for pid in (path / "cgroup.procs").read_text().split()
        ]
        if not members:
            return
        for pid in members:
            # 0 is a process that this namespace cannot see
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def any_lab() -> bool:
    """Whether hosts of any lab of this machine run."""
    top = hierarchy(Path("/proc/self/mounts").read_text())
    return top is not None and (top / _TOP).is_dir()
