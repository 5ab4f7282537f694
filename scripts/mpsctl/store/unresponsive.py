"""Which daemon answered nothing at the last look for health, in /run/mps-fleet/<instance>: gone at a reboot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files
from mpsctl.store.world import World


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "silent.json"


def remembered(world: World, name: str, pid: int, started_at: Optional[int]) -> bool:
    """Whether this very process (``started_at`` in clock ticks since boot) was silent at the last look."""
    try:
        found = json.loads(files.read_text(_path(world, name)) or "null")
    except ValueError:
        return False
    return bool(found == {"pid": pid, "started_at": started_at})


def remember(world: World, name: str, pid: int, started_at: Optional[int]) -> None:
    text = json.dumps({"pid": pid, "started_at": started_at}) + "\n"
    files.write(_path(world, name), text, lasting=False)


def forget(world: World, name: str) -> None:
    _path(world, name).unlink(missing_ok=True)
