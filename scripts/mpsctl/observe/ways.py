"""What root reads, writes, runs and deletes here, and where others than root can change it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, Iterator

from mpsctl.adapters import hardware, trusted
from mpsctl.adapters.trusted import WeakPoint
from mpsctl.model.instance import Instance
from mpsctl.model.names import UNIT_FILES
from mpsctl.model.places import Places

_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")


def weak_points(places: Places, instances: Iterable[Instance] = ()) -> list[WeakPoint]:
    """Where others than root can change something, each once; ``instances`` are those whose public directories count.

    One that hides what lies behind it stands for all of that.
    """
    found: dict[Path, WeakPoint] = {}
    for path in _paths(places, instances):
        weak = trusted.weak_point(path)
        if weak is not None:
            found.setdefault(weak.place, weak)
    return list(found.values())


def _paths(places: Places, instances: Iterable[Instance]) -> Iterator[Path]:
    yield places.program
    yield places.root / "usr/bin/python3"
    for name in (hardware.CONTROL_DAEMON, hardware.SERVER):
        binary = hardware.binary(name)
        if binary is not None:
            yield binary
    yield from _inside(places.configuration)
    yield from _inside(places.cache)
    yield from _inside(places.state, depth=2)
    # A daemon's own directory is made anew by every start, and closed by every reload.
    made_anew = {places.pipe(name) for name in _names(places.host_lock.parent)}
    yield from (path for path in _inside(places.host_lock.parent, depth=2) if path not in made_anew)
    yield from _units(places)
    for instance in instances:
        yield Path(instance.pipe_directory)


def _inside(folder: Path, depth: int = 1) -> Iterator[Path]:
    """A folder and what is in it; a daemon's own sockets and files are no deeper than that."""
    yield folder
    try:
        entries = list(os.scandir(folder)) if depth else []
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _inside(folder / entry.name, depth - 1)
        else:
            yield folder / entry.name


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _units(places: Places) -> Iterator[Path]:
    """Our units, of which systemd also reads what the folders beside them say: of the template and of each instance."""
    for base in _UNIT_FOLDERS:
        folder = places.root / base
        if base.startswith("etc"):
            yield folder
        for name in _names(folder):
            unit, is_folder = (name[:-2], True) if name.endswith(".d") else (name, False)
            if _is_ours(unit):
                yield from _inside(folder / name) if is_folder else [folder / name]


def _is_ours(unit: str) -> bool:
    stem, kind = unit.rpartition(".")[::2]
    return f"{stem.partition('@')[0]}{'@' if '@' in stem else ''}.{kind}" in UNIT_FILES
