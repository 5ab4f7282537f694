"""A file of ours in a folder that somebody else owns, such as the one from which a node exporter reads.

Root must not be led by whoever owns a folder on the way: he may put a link in its place. So no link is followed, on
the whole way, and the file is made, renamed and removed by the folder's descriptor. What he can bring about is that
the file lies elsewhere inside of his own folder.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from mpsctl.model.errors import NotAFile

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """The folder, by a descriptor.

    :raises FileNotFoundError: if it is not there.
    :raises NotAFile: if a link or something else is on the way.
    :raises OSError: as os.open.
    """
    descriptor = os.open("/", _FOLDER)
    try:
        done = Path("/")
        for part in folder.relative_to("/").parts:
            done = done / part
            try:
                below = os.open(part, _FOLDER, dir_fd=descriptor)
            except NotADirectoryError:
                raise NotAFile(str(done), "a link or a file", "a folder") from None
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def write(folder: int, name: str, text: str) -> None:
    """Replace a file in one step, readable by everyone; ``name`` never names half of it.

    :raises OSError: if the disk takes no more.
    """
    temporary = f".{name}.{os.getpid()}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def begins_with(folder: int, name: str, text: str) -> bool:
    """Whether there is a file that begins so."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return is_file and file.read(len(text.encode())) == text.encode()


def remove(folder: int, name: str) -> None:
    """Remove a file, and halves of it that killed processes left; what is not there is removed already."""
    halves = [one for one in _names(folder) if one.startswith(f".{name}.") and one.endswith(".new")]
    for one in (name, *halves):
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(one, dir_fd=folder)


def _names(folder: int) -> list[str]:
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.listdir(readable)
    finally:
        os.close(readable)
