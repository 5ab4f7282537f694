"""The control group of a process, as far as root made it.

A user may name groups as he likes below one that was given to him (a user's own service manager, a unit with
``Delegate=``), and so may who is root in a container. What is below those tells nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Mapping, Optional

from mpsctl.adapters import job_steps, procfs
from mpsctl.model.shares import Whose

_ROOT = Path("/sys/fs/cgroup")
_MOUNTS = ((_ROOT, ""), (_ROOT / "unified", ""), (_ROOT / "systemd", "name=systemd"))
"""Where the groups lie, and the hierarchy by its name in /proc/PID/cgroup: of version 2, the same beside version 1, and
systemd's own of version 1 (cgroups(7))."""


def whose(pid: int, uid: int) -> Whose:
    """The process by its user, its control group and its batch job. Where the group cannot be read though the process
    lives, as with one that a user nested too deep, ``group_untold`` says so; a process in no group of its own has
    none."""
    paths = procfs.control_groups(pid)
    job = job_steps.job_of(pid, paths or {})
    if paths is None:
        return Whose(uid, group_untold=procfs.alive(pid), job=job)
    own = _own(paths)
    if own is None:
        return Whose(uid, job=job)
    mount, path = own
    container = procfs.container_in(path)
    end = len(path) if container is None else container[1]
    group = _made_by_root(mount, path[:end])
    whole = container is not None and len(group) >= len(path[:end].rstrip("/"))
    return Whose(uid, _as_units(group), container[0] if container is not None and whole else "", job=job)


def paths(pid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the groups that a process is in, the outermost first: all of them, and those that root made."""
    own = _own(procfs.control_groups(pid) or {})
    if own is None:
        return (), ()
    mount, path = own
    whole, made = _as_units(path), _as_units(_made_by_root(mount, path))
    return tuple(filter(None, whole.split("/"))), tuple(filter(None, made.split("/")))


def _own(paths: Mapping[str, str]) -> Optional[tuple[Path, str]]:
    """The hierarchy in which a process has a group of its own, by its mount, and the group's path; None for none."""
    for mount, name in _MOUNTS:
        path = paths.get(name, "/")
        first = path.strip("/").partition("/")[0]
        # Of the first part alone: a user may name what is below as long as he likes, and take it away again.
        if first and os.path.isdir(mount / first):
            return mount, path
    return None


def _as_units(group: str) -> str:
    """The path with the names of units: systemd puts ``_`` before one that the kernel could take for its own file, as
    cpu.service, or that begins with ``_`` itself (systemd 252)."""
    return "/".join(part[1:] if part.startswith("_") else part for part in group.split("/"))


def _made_by_root(mount: Path, path: str) -> str:
    """As much of the path as lies in folders that only root can write."""
    made, folder = "", mount
    for part in filter(None, path.split("/")):
        if part == ".." or not _only_root_writes(folder):
            break
        made, folder = f"{made}/{part}", folder / part
    return made


def _only_root_writes(folder: Path) -> bool:
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
