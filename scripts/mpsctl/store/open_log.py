"""That a daemon's `log` was open to others during its life, in /run/mps-fleet/<instance>: gone at a reboot.

A stop leaves it: what the journal has of that daemon may still be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, log_fifo, pipe
from mpsctl.model.errors import NoRight
from mpsctl.store import remembered
from mpsctl.store.world import World


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "open-log.json"


def noted(world: World, name: str, pid: int = 0, started_at: Optional[int] = None) -> bool:
    """Whether it was so of this very process (``started_at`` in clock ticks since boot), or with ``pid`` 0 of the last
    one that was noted.

    :raises NoRight: if this user may not read it.
    """
    found = remembered.load(_path(world, name))
    return bool(found) if not pid else bool(found == {"pid": pid, "started_at": started_at})


def note(world: World, name: str, pid: int, started_at: Optional[int]) -> None:
    """Note it for as long as this process lives."""
    if not noted(world, name, pid, started_at):
        text = json.dumps({"pid": pid, "started_at": started_at}) + "\n"
        files.write(_path(world, name), text, lasting=False)


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))


def trusted(
    world: World, name: str, pipe_directory: Optional[Path], pid: int, started_at: Optional[int]
) -> Optional[bool]:
    """Whether only the daemon and its servers can have written what the journal has of this start of the unit.

    ``pid`` is 0 where none runs: then the last one counts. None where it cannot be told.
    """
    try:
        if noted(world, name, pid, started_at):
            return False
    except NoRight:
        return None
    if not pid or pipe_directory is None:
        return None
    public = pipe_directory != world.places.pipe(name) and not pipe.is_former(pipe_directory)
    return log_fifo.is_closed(pipe_directory, public=public)
