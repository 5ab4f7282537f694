"""What interrupted runs and earlier desired states left on this host: halves of files, public directories where clients
found an instance before, and folders in which releases up to this one carried the program.

Each carries a mark of ours: a content that we alone write, or a line in our own record. A name alone decides nothing.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Iterable, Iterator

from mpsctl.adapters import files, procfs, trusted
from mpsctl.model.errors import NotAFile
from mpsctl.model.names import UNIT_FILES
from mpsctl.model.places import FINGERPRINT
from mpsctl.store import public_directories, saved_compute_modes
from mpsctl.store.world import World

TRANSPORT_VARIABLE = "MPSCTL_TRANSPORT"
"""Names the folder where the transport that sent this program put it in earlier releases."""

_TRANSPORT = "ansible-tmp-mps-"
_PROGRAM = "mpsctl"
_OF_TEXT, _OF_PROGRAM = FINGERPRINT.encode(), b"#!/usr/bin/python3 -IS\nPK\x03\x04"
"""How what we write begins: every text, and the program, which is a zip archive behind a line for the kernel."""


@dataclass(frozen=True)
class Remains:
    """``public`` are directories with the name of the instance whose clients found it there."""

    partial: tuple[Path, ...] = ()
    public: tuple[tuple[str, Path], ...] = ()
    transports: tuple[Path, ...] = ()

    @property
    def every(self) -> tuple[Path, ...]:
        return (*self.partial, *(path for _, path in self.public), *self.transports)


def look(world: World, in_use: Collection[Path]) -> Remains:
    """What is left. ``in_use`` are public directories where clients look, or a daemon serves. Changes nothing."""
    return Remains(
        tuple(_partial_files(world)),
        tuple((name, path) for name, path in public_directories.every(world) if _stays(path, in_use)),
        tuple(_transports(world)),
    )


def _stays(path: Path, in_use: Collection[Path]) -> bool:
    try:
        return path not in in_use and path.is_dir() and not path.is_symlink()
    except OSError:  # it may lie where this user sees nothing, or a file system's server is gone
        return False


def _partial_files(world: World) -> Iterator[Path]:
    """Beside our files in directories that others use as well, by how they begin; in ours all."""
    places = world.places
    for name in UNIT_FILES:
        yield from _begun(files.partial_files(places.units, name), _OF_TEXT)
    yield from _begun(files.partial_files(places.program.parent, places.program.name), _OF_PROGRAM)
    for pattern in ("*.conf", "*.env"):
        yield from _begun(files.partial_files(places.configuration, pattern), _OF_TEXT)
    yield from _begun(files.partial_files(places.cdi.parent, places.cdi.name), _OF_TEXT)
    for folder in (places.units, places.user_units):
        for path in sorted(folder.glob("*.d")):
            yield from _begun(files.partial_files(path, "mps-fleet*.conf"), _OF_TEXT)
    for directory in (
        places.state,
        saved_compute_modes.directory(world),
        public_directories.directory(world),
        places.cache,
    ):
        yield from files.partial_files(directory)


def _begun(paths: Iterable[Path], mark: bytes) -> Iterator[Path]:
    return (path for path in paths if _begins(path, mark))


def _begins(path: Path, mark: bytes) -> bool:
    """Whether a file holds our mark, or as much of it as was written. One in which nothing is can be nobody's loss."""
    try:
        descriptor = files.open_file(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(len(mark))
    except (OSError, NotAFile):
        return False
    return mark.startswith(data)


def _transports(world: World) -> Iterator[Path]:
    for base in dict.fromkeys(_bases(world)):
        if trusted.weak_point(base) is not None:
            continue  # whoever owns it could swap what lies there while it is removed
        with suppress(OSError):
            yield from sorted(path for path in base.glob(f"{_TRANSPORT}*") if is_transport(path))


def _bases(world: World) -> Iterator[Path]:
    with suppress(KeyError):
        home = pwd.getpwuid(os.geteuid()).pw_dir
        yield world.places.root / home.lstrip("/") / ".ansible/tmp"
    named = os.environ.get(TRANSPORT_VARIABLE, "")
    if named.startswith("/"):
        yield Path(named)


def is_transport(path: Path) -> bool:
    """Whether a folder is one that was left: this user's alone, with the program or as much of it as had arrived, and
    nobody is at work with it."""
    try:
        about = path.lstat()
        held = sorted(entry.name for entry in os.scandir(path))
    except OSError:
        return False
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    if not private or held not in ([], [_PROGRAM]):
        return False
    if held and not _begins(path / _PROGRAM, _OF_PROGRAM):
        return False
    # A run of an earlier release has the beginning of the name in its words, or the whole of it.
    return not any(_TRANSPORT in procfs.title(pid) for pid in procfs.pids())


def remove_transport(path: Path) -> None:
    """Remove such a folder, as long as it is one.

    :raises Untrusted: if others can change what is on the way to it.
    """
    trusted.require(path.parent)
    if is_transport(path):
        (path / _PROGRAM).unlink(missing_ok=True)
        path.rmdir()
