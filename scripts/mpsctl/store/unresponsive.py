"""Which daemon answered nothing at the last look for health, in /run/mps-fleet/<instance>: gone at a reboot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files
from mpsctl.store import remembered as remembered_file
from mpsctl.store.world import World


def _path(world: World, name: str) -> Path:
    """The file has the name that 0.2.0 gave it, so that an upgrade between two looks forgets nothing."""
    return world.places.runtime(name) / "silent.json"


def remembered(world: World, name: str, pid: int, started_at: Optional[int]) -> bool:
    """Whether this very process (``started_at`` in clock ticks since boot) answered nothing at the last look."""
    return bool(remembered_file.load(_path(world, name)) == {"pid": pid, "started_at": started_at})


def remember(world: World, name: str, pid: int, started_at: Optional[int]) -> None:
    text = json.dumps({"pid": pid, "started_at": started_at}) + "\n"
    files.write(_path(world, name), text, lasting=False)


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))
