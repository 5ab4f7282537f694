"""Where clients find the instances of this host, and found them before, in /var/lib/mps-fleet/public-directories.

Another pipe root may be desired while an instance is down, or a run be killed before the directory that was left is
removed. A directory is removed by this record, and by no name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator

from mpsctl.adapters import files
from mpsctl.store import remembered
from mpsctl.store.world import World

_SUFFIX = ".json"


def directory(world: World) -> Path:
    return world.places.state / "public-directories"


def _path(world: World, name: str) -> Path:
    return directory(world) / f"{name}{_SUFFIX}"


def read(world: World, name: str) -> tuple[Path, ...]:
    """The public directories of an instance, oldest first."""
    found = remembered.load(_path(world, name))
    if not isinstance(found, list) or not all(isinstance(one, str) and one.startswith("/") for one in found):
        return ()
    return tuple(map(Path, found))


def every(world: World) -> Iterator[tuple[str, Path]]:
    """All of them, each with the name of its instance."""
    place = directory(world)
    for path in sorted(place.glob(f"*{_SUFFIX}")) if place.is_dir() else ():
        name = path.name[: -len(_SUFFIX)]
        yield from ((name, public) for public in read(world, name))


def note(world: World, name: str, public: Path) -> None:
    """Write down that clients find an instance there from now on."""
    known = read(world, name)
    if public not in known:
        _write(world, name, (*known, public))


def forget(world: World, name: str, public: Path) -> None:
    known = read(world, name)
    if public in known:
        _write(world, name, tuple(one for one in known if one != public))


def _write(world: World, name: str, publics: tuple[Path, ...]) -> None:
    if publics:
        files.write(_path(world, name), json.dumps([str(one) for one in publics]) + "\n")
    else:
        files.remove(_path(world, name))
