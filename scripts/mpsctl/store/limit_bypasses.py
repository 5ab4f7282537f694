"""When a client was first seen to have shaken off its limit, in /run/mps-fleet/<instance>: gone at a reboot."""

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
    return world.places.runtime(name) / "escapes.json"


def read(world: World, name: str) -> dict[int, LimitBypass]:
    """What is remembered of an instance, by pid."""
    try:
        rows = remembered.load(_path(world, name)) or []
        return {limit_bypass.pid: limit_bypass for limit_bypass in (LimitBypass(**row) for row in rows)}
    except TypeError:
        return {}


def remember(world: World, name: str, limit_bypasses: Iterable[LimitBypass]) -> None:
    """Keep these and no others; nothing is written where nothing is new."""
    desired = {limit_bypass.pid: limit_bypass for limit_bypass in limit_bypasses}
    if desired == read(world, name):
        return
    if desired:
        text = json.dumps([asdict(limit_bypass) for limit_bypass in desired.values()]) + "\n"
        files.write(_path(world, name), text, lasting=False)
    else:
        forget(world, name)


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))
