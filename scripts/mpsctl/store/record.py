"""What this program remembers of a running instance, in /run/mps-fleet/<instance>: gone at a reboot.

The daemon's getters round, so they cannot tell 5120 MiB from 5500 MiB. What was last set, and on which
process, is therefore written down, and believed only together with what the getter shows.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from mpsctl.adapters import files, procfs
from mpsctl.store import remembered
from mpsctl.store.world import World

STABLE_AFTER_S = 60
"""A daemon that was in force this long before it ended did not crash in a loop."""


@dataclass(frozen=True)
class InForce:
    """What was set and read back on one daemon process, ``since_s`` seconds after boot.

    ``started_at`` (clock ticks since boot) tells the process from a later one with the same pid.
    """

    pid: int
    started_at: int
    since_s: float
    limits_mib: tuple[Optional[int], ...]
    thread_percentage: Optional[float]
    client_priority: Optional[int]


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "in-force.json"


def read(world: World, name: str, pid: Optional[int] = None) -> Optional[InForce]:
    """The record, or None if there is none, or it speaks of another process than ``pid``."""
    found = _fields(_path(world, name))
    try:
        record = InForce(**{**found, "limits_mib": tuple(found["limits_mib"])})
    except (TypeError, KeyError):
        return None
    if pid is not None and (record.pid, record.started_at) != (pid, procfs.started_at(pid)):
        return None
    return record


def instances(world: World) -> list[str]:
    """The instances that have run since boot, whether or not they have a file."""
    place = world.places.runtime("")
    return sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def write(world: World, name: str, record: InForce) -> None:
    files.write(_path(world, name), json.dumps(asdict(record)) + "\n", lasting=False)


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))


def _starts(world: World, name: str) -> Path:
    return world.places.runtime(name) / "starts.json"


def short_lives(world: World, name: str) -> Optional[int]:
    """How many starts in a row did not last, or None if there was none since boot or the last real stop."""
    found = _fields(_starts(world, name))
    count = found.get("short_lives")
    return count if isinstance(count, int) else None


def write_short_lives(world: World, name: str, count: int) -> None:
    files.write(_starts(world, name), json.dumps({"short_lives": count}) + "\n", lasting=False)


def forget_starts(world: World, name: str) -> None:
    files.remove(_starts(world, name))


def _fields(path: Path) -> dict[str, Any]:
    found = remembered.load(path)
    return found if isinstance(found, dict) else {}
