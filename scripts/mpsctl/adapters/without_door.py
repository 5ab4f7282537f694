"""The public directory of an instance without a front door: the daemon's own sockets stand in it.

It is root's alone while the daemon starts, then open to the daemon's servers, and once the limits are in force to
everyone: clients and servers of root and of uid 65534 work and log with a directory of 0711, ``control`` 0666 and all
else 0600 (driver 580, H200). Closed again it ends nobody's work, for a client that works has no connection open.

Whoever comes while it is closed may not go to the socket, and runs outside MPS. No mode keeps out a process of root's
that has its rights over files (CAP_DAC_OVERRIDE): it comes in at any time, also before the limits are in force.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mpsctl.adapters import files, pipe, trusted
from mpsctl.model.errors import NotAFile, NotReady

_STARTING, _SERVERS_ALONE, _EVERYONE = 0o700, 0o710, 0o711
_OF_SERVERS, _OF_EVERYONE = 0o660, 0o666
_USUAL = 0o755


def make(public: Path) -> None:
    """Have the directory empty and closed to everyone but root, for one start of a daemon.

    It stays the one that it was, for containers that have it mounted. What is ours in it goes: the front door, and what
    an earlier daemon left.

    :raises NotAFile: if a link has its name.
    :raises NotReady: if something lies there that is not ours.
    :raises Untrusted: if others can change it, or what is on the way.
    """
    trusted.require(public)
    files.make_directory(public.parent)
    if public.is_symlink():
        raise NotAFile(str(public), "a link", "a folder")
    public.mkdir(_STARTING, exist_ok=True)
    pipe.remove_former(public)
    theirs = _not_ours(public)
    if theirs:
        raise NotReady(f"found {theirs[0]}, expected nothing in {public} that is not mps-fleet's; move it away")
    os.chown(public, os.geteuid(), os.getegid())
    public.chmod(_STARTING)
    pipe.remove_door(public)
    pipe.remove_made(public)


def _not_ours(public: Path) -> list[Path]:
    """What is neither a daemon's nor the front door's, whose lock is an empty folder."""
    names = {*pipe.MADE, pipe.DOOR, files.partial_link(public / pipe.SOCKET).name}
    lock = public / pipe.LOCK
    found = list(lock.iterdir()) if lock.is_dir() else []
    for path in public.iterdir():
        folder = path.is_dir() and not path.is_symlink() and path != lock
        if folder or path.name not in names:
            found.append(path)
    return sorted(found)


def open_to_everyone(public: Path) -> bool:
    """Let clients come; whether something was to be done."""
    return pipe.set_modes(public, pipe.MADE, _OF_EVERYONE, _EVERYONE)


def close(public: Path) -> bool:
    """Let nobody come but root and the daemon's servers, which keep root's group; whether something was to be done."""
    return pipe.set_modes(public, pipe.MADE, _OF_SERVERS, _SERVERS_ALONE)


def guard(public: Path) -> bool:
    """Give all but ``control`` to root alone, and leave open what is open; whether something was to be done."""
    return open_to_everyone(public) if _is_open(public) else close(public)


def _is_open(public: Path) -> bool:
    return bool(public.stat().st_mode & stat.S_IXOTH)


def is_guarded(public: Path) -> bool:
    """Whether everyone but root comes to ``control`` at most.

    :raises OSError: if it may not be looked at.
    """
    about = public.stat()
    if about.st_uid != 0 or about.st_gid != 0 or stat.S_IMODE(about.st_mode) & ~_EVERYONE:
        return False
    for name in pipe.MADE:
        most = _OF_EVERYONE if name == pipe.SOCKET else 0o600
        try:
            mode = (public / name).lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_IMODE(mode) & ~most:
            return False
    return True


def has_sockets(public: Path) -> bool:
    """Whether a daemon's own socket has the name that clients look for."""
    name = public / pipe.PUBLIC_NAME
    return name.exists() and not name.is_symlink()


def leave(public: Path, for_door: bool) -> None:
    """Remove what a daemon that has ended left, and with ``for_door`` give the directory back the mode with which the
    front door has it; else it is root's alone until the next start.

    :raises Untrusted: if others can change the directory, or what is on the way.
    """
    trusted.require(public)
    if not public.is_dir() or public.is_symlink():
        return
    left = pipe.remove_made(public)
    closed = stat.S_IMODE(public.stat().st_mode) == _STARTING
    if not for_door:
        public.chmod(_STARTING)
    elif left or closed:
        public.chmod(_USUAL)
