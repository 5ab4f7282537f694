"""Files that are written whole or not at all."""

from __future__ import annotations

import glob
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Optional, Union

from mpsctl.adapters import procfs, trusted
from mpsctl.model.errors import NoRight, NotAFile, TooLarge, Unreadable
from mpsctl.model.pattern import Pattern

_TEMPORARY = Pattern(r"\..+\.(?P<pid>[0-9]+)\.new")


_ALIKE = 8
"""How many bytes of a half are compared: our texts begin alike, whatever they say."""

MOST_BYTES = 1 << 20
"""What is read of a file that is text: ours have a few thousand bytes."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_text(path: Path, most_bytes: int = MOST_BYTES, believed: bool = True) -> Optional[str]:
    """The file's text, or None where there is no such file. Bytes that are no UTF-8 become lone surrogates.

    :raises Unreadable: as ``read_bytes``.
    """
    data = read_bytes(path, most_bytes, believed)
    return None if data is None else data.decode("utf-8", "surrogateescape")


def read_bytes(path: Path, most_bytes: int, believed: bool = True) -> Optional[bytes]:
    """The file's content, or None where there is no such file, or a link leads to none. Never waits for a writer.

    What is not to be ``believed``, only shown or compared, may be of anybody.

    :raises Untrusted: if root is to believe what others can change.
    :raises NotAFile: if there is a folder, a FIFO, a socket or a device; only a file is ever opened.
    :raises TooLarge: if it has more than ``most_bytes``.
    :raises NoRight: if this user may not read it.
    :raises Unreadable: if the disk or the file system does not give it.
    """
    if believed:
        trusted.require(path)
    try:
        descriptor = open_file(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise NoRight(str(path)) from None
    except OSError as error:
        raise Unreadable(str(path), f"cannot be read ({error.strerror})") from None
    if len(data) > most_bytes:
        raise TooLarge(str(path), most_bytes)
    return data


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file, following links; the descriptor. ``flags`` and ``mode`` are open(2)'s.

    A device is never opened, for to open one may do something. What takes the place of a file meanwhile is not waited
    for: O_NONBLOCK means nothing to a file.

    :raises NotAFile: if something else is there.
    :raises OSError: as os.open.
    """
    with suppress(FileNotFoundError):
        _expect_file(path, os.stat(path).st_mode)
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        _expect_file(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _expect_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFile(str(path), _kind(mode))


def _kind(mode: int) -> str:
    return next((what for is_one, what in _KINDS if is_one(mode)), "no file")


def remove(path: Path) -> bool:
    """Remove a file, or whatever else but a folder has its name; whether there was one.

    :raises Untrusted: if others can change its folder.
    """
    trusted.require(path.parent)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    return True


def remove_tree(path: Path, ignore_errors: bool = False) -> None:
    """Remove a folder with all that is in it, as ``shutil.rmtree`` does."""
    import shutil  # seldom needed, and it imports four compressors

    shutil.rmtree(path, ignore_errors=ignore_errors)


def write(path: Path, content: Union[str, bytes], mode: int = 0o644, lasting: bool = True) -> None:
    """Replace ``path`` in one step: readers see the old or the new content, after a power cut as well.

    ``lasting`` syncs to disk; it is left out for files of /run.

    :raises NotAFile: if a folder has the file's name, or a file has its folder's.
    :raises Untrusted: if others can change its folder.
    :raises OSError: if the disk takes no more, with the file's name.
    """
    make_directory(path.parent)
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    for left in partial_files(path.parent, glob.escape(path.name)):
        if left == temporary or _begin_alike(left, data):
            left.unlink(missing_ok=True)
    with named(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
                os.replace(temporary, path)  # still open: by that partial_files tells it from what was left
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, IsADirectoryError):
                raise NotAFile(str(path), "a folder") from None
            raise
    if lasting:
        sync_directory(path.parent)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """What the system says in the block, it says of ``path``: write() and fsync() know no name, and open() and
    replace() name a temporary one.

    :raises OSError: with the file's name.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _begin_alike(left: Path, data: bytes) -> bool:
    """Whether a half is one of this file: it begins as the whole does, as far as it was written."""
    try:
        with os.fdopen(open_file(left, os.O_RDONLY), "rb") as file:
            begun = file.read(_ALIKE)
    except (OSError, NotAFile):
        return False
    return data.startswith(begun)


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
    told = ((path, _TEMPORARY.fullmatch(path.name)) for path in found if path.is_file())
    return [path for path, match in told if match and not procfs.has_open(int(match["pid"]), path)]


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Make a directory and its parents with this mode whatever the umask; an existing one is left as it is.

    :raises NotAFile: if something else has its name.
    :raises Untrusted: if others can change it, or what is on the way.
    """
    trusted.require(path)
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            what = "a link to nothing" if path.is_symlink() and not path.exists() else _kind(path.stat().st_mode)
            raise NotAFile(str(path), "a file" if path.is_file() else what, "a folder") from None
        return
    path.chmod(mode)


def partial_link(link: Path) -> Path:
    """What a call of ``replace_symlink`` that was interrupted leaves."""
    return link.with_name(f".{link.name}.new")


def replace_symlink(link: Path, target: str) -> None:
    """Point ``link`` at ``target`` in one step.

    :raises NotAFile: if a folder has the link's name.
    :raises Untrusted: if others can change its folder.
    """
    trusted.require(link.parent)
    temporary = partial_link(link)
    try:
        with named(link):
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            os.replace(temporary, link)
    except IsADirectoryError:
        raise NotAFile(str(temporary if temporary.is_dir() else link), "a folder", "a link") from None
