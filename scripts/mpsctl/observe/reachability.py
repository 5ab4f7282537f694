"""What keeps a process, or a user, from an instance: its variables, or the way to the pipe directory.

CUDA says nothing of either: no socket to connect to is a silent bypass of MPS (driver 580, H200).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import pipe, procfs
from mpsctl.model import client_variable
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.observe import process_facts
from mpsctl.observe.process_facts import Obstacle

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

    def is_in(self, gid: int) -> bool:
        """Whether it is of a group, or root, who may what any group may."""
        return self.uid == 0 or gid in self.gids

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
    """The user of a process with all its groups, or None if it is gone."""
    uid = procfs.uid(pid)
    return None if uid is None else User(uid, procfs.groups(pid))


def wrong_variables(environment: Mapping[str, str], public: Path, devices: Sequence[str]) -> Optional[Obstacle]:
    """What a client of the instance on ``public`` has in its environment, and should not.

    ``devices`` are the instance's by UUID, in the order of their ordinals.
    """
    directory = environment.get(PIPE_DIRECTORY)
    if not directory:
        return Obstacle(process_facts.UNSET, expected=(str(public),))
    if os.path.normpath(directory) != str(public):
        return _other(directory, [public])
    chosen = environment.get(VISIBLE_DEVICES)
    if chosen is not None and client_variable.visible(environment, devices) == 0:
        return Obstacle(process_facts.NO_GPU_OF_IT, named=chosen)
    return None


def closed_directory(path: Path, user: User, root: Path = TOP, top: Path = TOP) -> Optional[Obstacle]:
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
            return _closed_as(process_facts.DIRECTORY_CLOSED, directory, user, about)
    return None


def closed_socket(public: Path, user: User, root: Path = TOP) -> Optional[Obstacle]:
    """Why the user may not connect to the front door's socket; None if it may, or there is none.

    :raises OSError: if it may not be looked at.
    """
    socket = public / pipe.PUBLIC_NAME
    try:
        about = os.stat(_below(root, socket))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if user.may(about, 2) else _closed_as(process_facts.SOCKET_CLOSED, socket, user, about)


def _closed_as(kind: str, path: Path, user: User, about: os.stat_result) -> Obstacle:
    owner = procfs.user(about.st_uid) or str(about.st_uid)
    return Obstacle(kind, path, str(user), stat.S_IMODE(about.st_mode), owner)


def absent(public: Path, root: Path) -> bool:
    """Whether a process with this root directory does not have the pipe directory.

    :raises OSError: if it may not be looked at.
    """
    try:
        os.stat(_below(root, public))
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def obstacles(
    pid: int,
    environment: Mapping[str, str],
    publics: Sequence[Path],
    devices: Optional[Sequence[str]],
    daemon_pid: int = 0,
    top: Path = TOP,
) -> list[Obstacle]:
    """What keeps a process from being a client of one of the instances on ``publics``, what lies deepest first.

    ``devices`` are those of its instance by UUID and ``daemon_pid`` that one's daemon, None and 0 where they are not
    known; the way to the pipe directory begins at ``top``.
    """
    try:
        first = _directory(pid, environment, publics, top)
    except OSError as error:
        first = Obstacle(process_facts.CANNOT_LOOK, words=error.strerror or "")
    found = [first] if first else []
    chosen = environment.get(VISIBLE_DEVICES)
    if chosen is not None and devices is not None and client_variable.visible(environment, devices) == 0:
        found.append(Obstacle(process_facts.NO_GPU_OF_IT, named=chosen))
    mine, the_daemons = procfs.started_at(pid), procfs.started_at(daemon_pid) if daemon_pid else None
    if not found and mine is not None and the_daemons is not None and mine < the_daemons:
        found.append(Obstacle(process_facts.STARTED_BEFORE))
    return found


def _directory(pid: int, environment: Mapping[str, str], publics: Sequence[Path], top: Path) -> Optional[Obstacle]:
    named = environment.get(PIPE_DIRECTORY)
    if not named:
        return Obstacle(process_facts.UNSET, expected=tuple(map(str, publics)))
    seen, root = Path(os.path.normpath(named)), procfs.root(pid)
    other = _other(named, publics) if publics and seen not in publics else None
    try:
        gone = absent(seen, root)
    except OSError:
        if other is None:
            raise
        return other
    # Mounted on another place it is the same directory.
    public = next((public for public in publics if _is_same(_below(root, seen), public)), None)
    # Not the daemon's: its unit is sandboxed, and has mounts of its own.
    apart = _is_apart(pid, 1)
    if gone:
        contained = apart and (other is None or procfs.container(pid) is not None or not _is_same(root, TOP))
        if contained:
            return Obstacle(process_facts.NOT_MOUNTED, seen, named=named, expected=other.expected if other else ())
        return other or Obstacle(process_facts.DIRECTORY_ABSENT, seen)
    if other and public is None:
        return other
    if public is None and publics and apart and os.path.isdir(seen):
        return Obstacle(process_facts.OTHER_MOUNT, seen)
    return _closed(pid, seen, root, top) or _no_socket(seen, publics, root)


def _is_apart(pid: int, other: int) -> bool:
    """Whether a process is known to have other mounts than another one."""
    mine, others = procfs.namespace(pid, "mnt"), procfs.namespace(other, "mnt")
    return procfs.container(pid) is not None or (None not in (mine, others) and mine != others)


def _closed(pid: int, seen: Path, root: Path, top: Path) -> Optional[Obstacle]:
    user = of_process(pid)
    if user is None:
        return None
    return closed_directory(seen, user, root, top) or closed_socket(seen, user, root)


def _no_socket(seen: Path, publics: Sequence[Path], root: Path) -> Optional[Obstacle]:
    if publics or os.path.lexists(_below(root, seen / pipe.PUBLIC_NAME)):
        return None
    return Obstacle(process_facts.NO_SOCKET, seen)


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one directory, through another root or a bind mount as well."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _other(named: str, publics: Sequence[Path]) -> Obstacle:
    return Obstacle(process_facts.OTHER_DIRECTORY, named=named, expected=tuple(map(str, publics)))


def _below(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _way(path: Path, top: Path) -> Iterable[Path]:
    return (one for one in reversed([path, *path.parents]) if one == top or top in one.parents)
