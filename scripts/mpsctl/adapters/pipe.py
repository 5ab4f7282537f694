"""The two directories of an instance: the public one, which clients name, and the daemon's own.

The public one, ``/run/nvidia-mps/<instance>``, belongs to the front door's socket unit and lives until the instance is
removed, so that a bind mount of it stays good. In it lies the door's socket; the name that CUDA looks for, ``control``,
is a relative link to it. The control daemon serves a directory of its own, ``/run/mps-fleet/<instance>/pipe``, to which
only root and the daemon's servers come: they keep root's group whatever their user (control daemons 535, 550, 555;
driver 580, H200).

Release 0.2.0 had the daemon's directory inside the public one, under a name that could not be guessed. A daemon that
was started so serves there until it ends.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Iterable, Optional

from mpsctl.adapters import control_daemon, files, procfs, trusted
from mpsctl.model.errors import NotAFile

DOOR, PUBLIC_NAME, LOCK = "front-door", "control", "control_lock"
"""The socket, the name that clients look for, and what keeps a daemon that is started by hand from taking its place:
where a directory has the lock's name it ends (control daemons 535, 550, 555)."""

VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
SOCKET, PRIVILEGED = "control", "control_privileged"

MADE = (SOCKET, PRIVILEGED, LOCK, "log", "nvidia-cuda-mps-control.pid")
"""All that a daemon makes in its directory (control daemons 535, 550, 555; driver 580)."""

_MADE_KINDS = {
    SOCKET: stat.S_IFSOCK,
    PRIVILEGED: stat.S_IFSOCK,
    LOCK: stat.S_IFREG,
    "log": stat.S_IFIFO,
    "nvidia-cuda-mps-control.pid": stat.S_IFREG,
}
_FORMER_NAME_BYTES = 12
_FORMER_LINKS = (SOCKET, PRIVILEGED)
_CLOSED, _OPENED = 0o700, 0o710
_MODES = {SOCKET: 0o660}
_MODE = 0o600
"""Of all else that the daemon makes: its log, lock and pid file, and the socket for root's commands. Servers of other
users connect to ``control`` alone; clients and servers write to no other (driver 580, H200)."""


def make(directory: Path) -> None:
    """Make the daemon's own directory anew, empty and closed to everyone but root, for one start.

    The daemon makes its log for everyone to write; who opened it before could still forge it, so nobody may come there
    before ``close`` is done.

    :raises NotAFile: if a link has its name.
    """
    files.make_directory(directory.parent)
    if directory.is_symlink():
        raise NotAFile(str(directory), "a link", "a folder")
    if directory.is_dir():
        files.remove_tree(directory)
    else:
        files.remove(directory)
    directory.mkdir(_CLOSED)
    directory.chmod(_CLOSED)


def remove(directory: Path) -> None:
    """Remove the daemon's own directory with what it left there.

    :raises Untrusted: if others can change it, or what is on the way.
    """
    trusted.require(directory)
    if not directory.is_symlink():
        files.remove_tree(directory, ignore_errors=True)


def close(directory: Path) -> bool:
    """Give what the running daemon made there to root alone, and then let its servers pass; whether something was to be
    done. Who is connected stays."""
    return set_modes(directory, [entry.name for entry in os.scandir(directory)], _MODES[SOCKET], _OPENED)


def set_modes(directory: Path, names: Iterable[str], of_socket: int, of_directory: int) -> bool:
    """Give ``control`` and then the directory these modes, and all else that is named to root alone; whether something
    was to be done.

    A directory in which others can make files is closed first: what they put there meanwhile is no way for ``chmod``.

    :raises Untrusted: if the directory is another user's, or others can change what is on the way.
    """
    trusted.require(directory.parent)
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != 0:
        trusted.require(directory)
    changed = bool(about.st_mode & 0o022)
    if changed:
        directory.chmod(_CLOSED)
    for path in (directory / name for name in names):
        mode = of_socket if path.name == SOCKET else _MODE
        try:
            about = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(about.st_mode) or stat.S_ISDIR(about.st_mode):
            continue
        if stat.S_IMODE(about.st_mode) != mode:
            path.chmod(mode)
            changed = True
    if stat.S_IMODE(directory.stat().st_mode) != of_directory:
        directory.chmod(of_directory)
        changed = True
    return changed


def is_closed(directory: Path) -> bool:
    """Whether only root and the daemon's servers come to the directory, and only root to its log.

    :raises OSError: if it may not be looked at.
    """
    about = directory.stat()
    if about.st_uid != 0 or about.st_gid != 0 or stat.S_IMODE(about.st_mode) & ~_OPENED:
        return False
    for entry in os.scandir(directory):
        if stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & ~_MODES.get(entry.name, _MODE):
            return False
    return True


def leads_to_door(public: Path) -> bool:
    """Whether clients that look for the daemon find the front door's socket."""
    try:
        found = os.stat(public / PUBLIC_NAME)
        door = os.lstat(public / DOOR)
    except OSError:
        return False
    return stat.S_ISSOCK(door.st_mode) and (found.st_dev, found.st_ino) == (door.st_dev, door.st_ino)


def somebody_listens(public: Path) -> bool:
    """Whether the front door's socket is open, and no mere file of one that was closed; nobody there notices the look.

    The kernel compares the types before it connects: a socket of another type is refused with EPROTOTYPE by one that is
    open, and with ECONNREFUSED where nobody has it (Linux 6.1, 6.18). Where that may not be asked it is taken for open.
    """
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)) as asking:
        try:
            return asking.connect_ex(os.fsencode(public / DOOR)) not in (errno.ECONNREFUSED, errno.ENOENT)
        except OSError:  # a path that is too long for a socket
            return False


def former_directories(public: Path) -> list[Path]:
    """The directories of daemons that release 0.2.0 started."""
    if not public.is_dir():
        return []
    return sorted(entry for entry in public.iterdir() if entry.is_dir() and is_former(entry))


def is_former(directory: Path) -> bool:
    """Whether a directory has the form of name that release 0.2.0 gave to a daemon's."""
    name = directory.name
    return name.startswith(".") and len(name) == _FORMER_NAME_BYTES and not directory.is_symlink()


def remove_former(public: Path) -> None:
    """Remove what release 0.2.0 left in a public directory: folders of daemons, and what is in them, by what lies in
    them and not by their names. A folder with anything else in it stays whole.

    A daemon whose directory is gone lives on, answers nobody and keeps its GPU (control daemon 550).

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(public)
    directories = former_directories(public)
    served = _served(public).values() if directories else ()
    for directory in directories:
        if directory not in served and _is_a_daemons(directory):
            remove_made(directory)
            with suppress(OSError):
                directory.rmdir()
    if not leads_to_door(public):
        return
    privileged = public / PRIVILEGED
    if privileged.is_symlink():
        privileged.unlink(missing_ok=True)


def _is_a_daemons(directory: Path) -> bool:
    """Whether a folder is root's and holds what a control daemon makes, all of it of the daemon's kinds, and nothing
    else; or it is empty, and a name that clients look for leads into it."""
    if trusted.weak_point(directory) is not None:
        return False
    found = list(os.scandir(directory))
    if not found:
        links = (directory.parent / name for name in _FORMER_LINKS)
        return any(link.is_symlink() and Path(os.readlink(link)).parent.name == directory.name for link in links)
    kinds = {entry.name: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) for entry in found}
    return all(_MADE_KINDS.get(name) == kind for name, kind in kinds.items())


def remove_name(public: Path) -> None:
    """Take away the name that clients look for; whoever came before is still answered.

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(public)
    if (public / PUBLIC_NAME).is_symlink():
        (public / PUBLIC_NAME).unlink(missing_ok=True)


def remove_public(public: Path) -> None:
    """Remove what is ours of a public directory, and it where nothing else is in it.

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(public)
    if not public.is_dir() or public.is_symlink():
        return
    remove_door(public)
    remove_made(public)
    with suppress(OSError):
        public.rmdir()


def remove_door(public: Path) -> None:
    """Remove from a public directory what the front door and release 0.2.0 have there.

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(public)
    for name in _FORMER_LINKS:
        if (public / name).is_symlink():
            (public / name).unlink(missing_ok=True)
        files.partial_link(public / name).unlink(missing_ok=True)
    remove_former(public)
    with suppress(OSError):
        if stat.S_ISSOCK((public / DOOR).lstat().st_mode):
            (public / DOOR).unlink()
    with suppress(OSError):
        (public / LOCK).rmdir()


def remove_made(directory: Path) -> bool:
    """Remove what a daemon that has ended left in a directory, each by its name and its kind; whether it had left
    something.

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(directory)
    left = []
    for name, kind in _MADE_KINDS.items():
        with suppress(OSError):
            if stat.S_IFMT((directory / name).lstat().st_mode) == kind:
                left.append(directory / name)
    for path in left:
        path.unlink(missing_ok=True)
    return bool(left)


def daemons_on(public: Path, own: Optional[Path] = None) -> list[int]:
    """Control daemons that serve this directory, one inside it, or ``own``, of root's, by their environment.

    Others cannot serve there, and anybody can have a process of that name and environment.
    """
    return list(_served(public, own))


def _served(public: Path, own: Optional[Path] = None) -> dict[int, Path]:
    """The directory that each of these daemons serves, by its process id."""
    found = {}
    for pid in control_daemon.daemons():
        served = Path((procfs.environment(pid) or {}).get(VARIABLE, "") or "/nowhere")
        if (served in (public, own) or public in served.parents) and procfs.is_roots(pid):
            found[pid] = served
    return found
