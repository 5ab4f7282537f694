"""Since when an instance lets no new client in, in /run/mps-fleet/<instance>.

The mark outlasts a crash of the daemon, its restart, a reload, a stop and every run of the role, and ends with
`undrain`. It is gone at a reboot: that ends every client and takes every restart that a drain was waiting for, and an
instance that stayed closed after it would be closed without anybody who remembers why. To keep an instance down over
a reboot its unit is disabled.

A run that drains for a restart of its own leaves its process in the mark. Where that process is gone, killed or cut
off half way, the mark is void, and the next run lets clients in again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, login, procfs
from mpsctl.model.errors import NotAFile, Unreadable
from mpsctl.store import remembered
from mpsctl.store.world import World


@dataclass(frozen=True)
class Drain:
    """``since`` is the local time, for people. ``run_pid`` and ``run_started_at`` name the process of a run that
    drains for as long as it needs; None where an operator drains. ``by`` is who drained and ``why`` what for, empty
    where that was not written down. ``refuse`` is whether clients that come are refused at once, not made to wait."""

    since: str
    run_pid: Optional[int] = None
    run_started_at: Optional[int] = None
    by: str = ""
    why: str = ""
    refuse: bool = False


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "drained.json"


def read(world: World, name: str) -> Optional[Drain]:
    """The mark that is in force, or None. Whatever has its name keeps the front door closed, a folder as well."""
    try:
        text = files.read_text(_path(world, name))
        if text is None:
            return None
        found = Drain(**remembered.parsed(text))
    except (Unreadable, ValueError, TypeError):
        return Drain("an unknown time")
    if found.run_pid is not None and procfs.started_at(found.run_pid) != found.run_started_at:
        return None
    return found


def mark(world: World, name: str, of_this_run: bool = False, why: str = "", refuse: bool = False) -> Drain:
    """Mark an instance as drained, and by whom. A mark that is in force stays, and refuses from now on where that is
    asked for; only `undrain` takes it back."""
    known = read(world, name)
    if known is not None and (of_this_run or known.run_pid is None):
        if refuse and not known.refuse:
            known = replace(known, refuse=True)
            files.write(_path(world, name), json.dumps(asdict(known)) + "\n", lasting=False)
        return known
    pid = os.getpid() if of_this_run else None
    made = Drain(
        since=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        run_pid=pid,
        run_started_at=None if pid is None else procfs.started_at(pid),
        by=login.user(),
        why=why,
        refuse=refuse,
    )
    files.write(_path(world, name), json.dumps(asdict(made)) + "\n", lasting=False)
    return made


def forget(world: World, name: str) -> bool:
    """Take the mark away; whether there was one.

    :raises NotAFile: if it is a folder, which is none of ours.
    """
    path = _path(world, name)
    gone = files.remove(path)
    if not gone and path.is_dir():
        raise NotAFile(str(path), "a folder")
    return gone


def forget_of_this_run(world: World, name: str) -> None:
    """Take away what this run marked; an operator's mark stays."""
    known = read(world, name)
    if known is not None and known.run_pid == os.getpid():
        forget(world, name)
