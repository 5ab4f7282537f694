"""What keeps a process from an instance: its variables, or the way to the pipe directory.

CUDA says nothing of either: no socket to connect to is a silent bypass of MPS (driver 580, H200).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Mapping, Optional, Sequence

from mpsctl.outside import pipe, procfs
from mpsctl.values import client_variable
from mpsctl.values.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES

TOP = Path("/")


@dataclass(frozen=True)
class User:
    """Whose permissions count. ``uid`` None stands for any user, or any member of ``gids`` where those are named."""

    uid: Optional[int]
    gids: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.uid is not None:
            return f"user {self.uid}"
        return f"a member of group {', '.join(map(str, self.gids))}" if self.gids else "every user"

    def may(self, about: os.stat_result, bit: int) -> bool:
        """Whether the mode gives the user ``bit``: 4 to read, 2 to write, 1 to enter."""
        if self.uid == 0:
            return True
        mode = stat.S_IMODE(about.st_mode)
        if self.uid is not None and about.st_uid == self.uid:
            return bool(mode & bit << 6)
        if about.st_gid in self.gids:
            return bool(mode & bit << 3)
        return bool(mode & bit)


def myself() -> User:
    return User(os.geteuid(), (os.getegid(), *os.getgroups()))


def of_process(pid: int) -> Optional[User]:
    """The user of a process, or None if it is gone."""
    uid = procfs.uid(pid)
    return None if uid is None else User(uid, procfs.groups(pid))


def wrong_variables(environment: Mapping[str, str], public: Path, devices: Sequence[str]) -> Optional[str]:
    """What a client of the instance on ``public`` has in its environment, and should not.

    ``devices`` are the instance's by UUID, in the order of their ordinals.
    """
    directory = environment.get(PIPE_DIRECTORY)
    if directory is None or os.path.normpath(directory) != str(public):
        return f"{PIPE_DIRECTORY}={directory or '(none)'} instead of {public}"
    if environment.get(VISIBLE_DEVICES) is not None and client_variable.visible(environment, devices) == 0:
        return f"{VISIBLE_DEVICES}={environment[VISIBLE_DEVICES]}, which names no GPU of this instance"
    return None


def closed_directory(path: Path, user: User, root: Path = TOP, top: Path = TOP) -> Optional[str]:
    """The first directory on the way from ``top`` to ``path`` that the user may not enter, with mode and owner.

    ``root`` is where the process's own file tree lies. What is not there ends the walk.

    :raises OSError: if it may not be looked at.
    """
    for directory in _way(path, top):
        try:
            about = os.stat(_below(root, directory))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(about.st_mode) and not user.may(about, 1):
            return (
                f"{directory}, on the way to the pipe directory, may not be entered by {user}"
                f" (mode {stat.S_IMODE(about.st_mode):04o}, owner {_owner(about)})"
            )
    return None


def closed_socket(public: Path, user: User, root: Path = TOP) -> Optional[str]:
    """Why the user may not connect to the gate's socket; None if it may, or there is none.

    :raises OSError: if it may not be looked at.
    """
    socket = public / pipe.PUBLIC_NAMES[0]
    try:
        about = os.stat(_below(root, socket))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if user.may(about, 2):
        return None
    return f"{user} may not connect to {socket} (mode {stat.S_IMODE(about.st_mode):04o}, owner {_owner(about)})"


def absent(public: Path, root: Path) -> bool:
    """Whether a process with this root directory does not have the pipe directory.

    :raises OSError: if it may not be looked at.
    """
    try:
        os.stat(_below(root, public))
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _below(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _way(path: Path, top: Path) -> Iterable[Path]:
    return (one for one in reversed([path, *path.parents]) if one == top or top in one.parents)


def _owner(about: os.stat_result) -> str:
    return procfs.user(about.st_uid) or str(about.st_uid)
