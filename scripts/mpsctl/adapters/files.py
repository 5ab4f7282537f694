"""Files that are written whole or not at all."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Optional, Union

from mpsctl.adapters import procfs

_TEMPORARY = re.compile(r"\..+\.(?P<pid>[0-9]+)\.new")


def read_text(path: Path) -> Optional[str]:
    """The file's text, or None where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: Path, content: Union[str, bytes], mode: int = 0o644, lasting: bool = True) -> None:
    """Replace ``path`` in one step: readers see the old or the new content, after a power cut as well.

    ``lasting`` syncs to disk; it is left out for files of /run.
    """
    make_directory(path.parent)
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    for left in partial_files(path.parent, glob.escape(path.name)):
        left.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
            os.replace(temporary, path)  # still open: by that cut_off tells it from what was left
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk is told by write() or fsync(), which know no name, and replace() names the temporary one.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if lasting:
        sync_directory(path.parent)


def can_replace(path: Path) -> bool:
    """Whether ``write`` may put a file of the user's choice there: not in the place of a device, a link or a folder."""
    try:
        taken = path.is_symlink() or (path.exists() and not path.is_file())
        return path.parent.is_dir() and os.access(path.parent, os.W_OK) and not taken
    except OSError:  # no name that this file system takes
        return False


def partial_files(directory: Path, names: str = "*") -> list[Path]:
    """What calls of ``write`` that were interrupted left in a directory, for files whose names match a pattern.

    What a living process still writes is not among them.
    """
    found = sorted(directory.glob(f".{names}.*.new")) if directory.is_dir() else []
    told = ((path, _TEMPORARY.fullmatch(path.name)) for path in found)
    return [path for path, match in told if match and not procfs.has_open(int(match["pid"]), path)]


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Make a directory and its parents with this mode whatever the umask; an existing one is left as it is."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        return
    path.chmod(mode)


def partial_link(link: Path) -> Path:
    """What a call of ``replace_symlink`` that was interrupted leaves."""
    return link.with_name(f".{link.name}.new")


def replace_symlink(link: Path, target: str) -> None:
    """Point ``link`` at ``target`` in one step."""
    temporary = partial_link(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
