"""When a client was first seen without its limit, in /run/mps-fleet/<instance>: gone at a reboot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterable, Optional

from mpsctl.adapters import files
from mpsctl.store import remembered
from mpsctl.store.world import World


@dataclass(frozen=True)
class LimitBypass:
    """One process, told from a later one with the same pid by ``started_at`` (clock ticks since boot).

    ``first_seen_s`` counts from boot. ``terminated`` is whether the daemon was told to end it and did.
    """

    pid: int
    started_at: Optional[int]
    first_seen_s: float
    terminated: bool = False


def _path(world: World, name: str) -> Path:
    """The file has the name that 0.2.0 gave it, so that a grace time runs on over an upgrade."""
    return world.places.runtime(name) / "escapes.json"


def read(world: World, name: str) -> dict[int, LimitBypass]:
    """What is remembered of an instance, by pid."""
    try:
        rows = remembered.load(_path(world, name)) or []
        return {one.pid: one for one in (LimitBypass(**row) for row in rows)}
    except TypeError:
        return {}


def remember(world: World, name: str, limit_bypasses: Iterable[LimitBypass]) -> None:
    """Keep these and no others; nothing is written where nothing is new."""
    kept = {one.pid: one for one in limit_bypasses}
    if kept == read(world, name):
        return
    if kept:
        text = json.dumps([asdict(one) for one in kept.values()]) + "\n"
        files.write(_path(world, name), text, lasting=False)
    else:
        forget(world, name)


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))
