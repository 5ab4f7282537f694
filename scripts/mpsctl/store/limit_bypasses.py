"""When a client was first seen to have shaken off its limit, in /run/mps-fleet/<instance>: gone at a reboot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterable, Optional

from mpsctl.adapters import files
from mpsctl.store.world import World


@dataclass(frozen=True)
class Escape:
    """One process, told from a later one with the same pid by ``started_at`` (clock ticks since boot).

    ``first_seen_s`` counts from boot. ``terminated`` is whether the daemon was told to end it and did.
    """

    pid: int
    started_at: Optional[int]
    first_seen_s: float
    terminated: bool = False


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "escapes.json"


def read(world: World, name: str) -> dict[int, Escape]:
    """What is remembered of an instance, by pid."""
    try:
        rows = json.loads(files.read_text(_path(world, name)) or "[]")
        return {escape.pid: escape for escape in (Escape(**row) for row in rows)}
    except (ValueError, TypeError):
        return {}


def remember(world: World, name: str, escapes: Iterable[Escape]) -> None:
    """Keep these and no others; nothing is written where nothing is new."""
    wished = {escape.pid: escape for escape in escapes}
    if wished == read(world, name):
        return
    if wished:
        text = json.dumps([asdict(escape) for escape in wished.values()]) + "\n"
        files.write(_path(world, name), text, lasting=False)
    else:
        forget(world, name)


def forget(world: World, name: str) -> None:
    _path(world, name).unlink(missing_ok=True)
