"""The pipe directory of an instance, and the front door before it.

The daemon does not serve the public directory ``/run/nvidia-mps/<instance>`` itself. It gets a directory
inside it whose name cannot be guessed, new at every start, and the public names ``control`` and
``control_privileged`` are symbolic links that are made once the limits are in force. Before that, nobody
finds a socket: no root client, and no container that has the public directory mounted, which sees the
links appear because they are relative. The server, which may run under another user, inherits the daemon's
own path and passes through it (mode 0711).

Where only a group may connect, the daemon's own directory is closed to all others (0710): systemd would undo
another mode of the public one before every command of the unit. The daemon is a member of that group, and its
servers keep its groups.

Measured on an H200 with driver 580: a client and a command need nothing but the ``control`` link,
setters ``control_privileged`` as well; a client that runs is not disturbed when the links go.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Optional

from mpsctl.adapters import control_daemon, files, procfs
from mpsctl.model.checked_values import PRIVATE_NAME_BYTES

PUBLIC_NAMES = ("control", "control_privileged")
VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


def new_private(public: Path, gid: Optional[int] = None) -> Path:
    """Make the daemon's own directory for one start, and the public one where it is missing.

    ``gid`` is the one group whose members may connect beside root, or None: everyone may.
    """
    files.make_directory(public)
    unguessable = base64.urlsafe_b64encode(os.urandom(9)).decode()[: PRIVATE_NAME_BYTES - 1]
    private = public / f".{unguessable}"
    private.mkdir()
    restrict(private, gid)
    return private


def restrict(private: Path, gid: Optional[int]) -> bool:
    """Let the members of one group in, or everyone; whether anything had to be done. Whoever is connected stays."""
    if not is_restricted_as(private, gid):
        os.chown(private, -1, 0 if gid is None and os.geteuid() == 0 else -1 if gid is None else gid)
        private.chmod(0o711 if gid is None else 0o710)
        return True
    return False


def is_restricted_as(private: Path, gid: Optional[int]) -> bool:
    """Whether just the members of a group, or everyone, may pass through the daemon's own directory."""
    about = private.stat()
    if gid is None:
        return about.st_mode & 0o777 == 0o711
    return (about.st_mode & 0o777, about.st_gid) == (0o710, gid)


def open_door(public: Path, private: Path) -> bool:
    """Let clients in; whether anything had to be done."""
    changed = False
    for name in PUBLIC_NAMES:
        target = f"{private.name}/{name}"
        link = public / name
        if not link.is_symlink() or str(link.readlink()) != target:
            files.replace_symlink(link, target)
            changed = True
    return changed


def close_door(public: Path) -> None:
    """Let no new client in. Clients that are connected stay.

    Only links are ours: a socket of that name belongs to a daemon that serves the public directory itself,
    and without it nobody could ask that daemon to quit.
    """
    for name in PUBLIC_NAMES:
        if (public / name).is_symlink():
            (public / name).unlink(missing_ok=True)


def behind_door(public: Path) -> Optional[Path]:
    """The daemon's own directory to which the open front door leads, or None while it is closed."""
    link = public / PUBLIC_NAMES[0]
    if not link.is_symlink():
        return None
    return public / link.readlink().parent


def private_directories(public: Path) -> list[Path]:
    """The directories of this and earlier starts."""
    if not public.is_dir():
        return []
    return sorted(entry for entry in public.iterdir() if _is_private(entry))


def _is_private(path: Path) -> bool:
    return (
        path.name.startswith(".") and len(path.name) == PRIVATE_NAME_BYTES and path.is_dir() and not path.is_symlink()
    )


def remove_private(public: Path) -> None:
    """Remove the directories of earlier starts. Only ours: their names have our form; and none that is served.

    A daemon whose directory is gone lives on, answers nobody and keeps its GPU, and its lock no longer keeps a second
    one away (control daemon 550).
    """
    import shutil

    directories = private_directories(public)
    served = _served(public).values() if directories else ()
    for directory in directories:
        if directory not in served:
            shutil.rmtree(directory, ignore_errors=True)


def daemons_on(public: Path) -> list[int]:
    """Control daemons that serve this directory or one inside it, by their environment, never by a title."""
    return list(_served(public))


def _served(public: Path) -> dict[int, Path]:
    """The directory that each of these daemons serves, by its process id."""
    found = {}
    for pid in control_daemon.daemons():
        served = (procfs.environment(pid) or {}).get(VARIABLE, "")
        if served and (Path(served) == public or public in Path(served).parents):
            found[pid] = Path(served)
    return found
