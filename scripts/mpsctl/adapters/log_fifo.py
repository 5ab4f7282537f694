"""Who can write into a control daemon's `log`, and so into the journal under the daemon's name.

The daemon makes `log`, a FIFO that everybody may write (0777, at each start; control daemons 535, 550, 555, driver
580), and prints in the foreground what it reads there: its own lines and its servers'. The journal cannot tell them
from lines of others: they have the daemon's user, process id and invocation. So the journal of its unit is evidence
only where nobody else could open the FIFO: in a directory that nobody else can enter, and with the mode 0600 before
that directory is opened for the servers. Who opened it earlier keeps writing, whatever the mode is afterwards.

What a user can do all the same is to have the daemon write lines of its own: each client that comes and goes makes
some, 37,000 in 10 s by one user. They are true. The daemon has no bound for them; what this program reads of the
journal has one (``adapters/systemd.py``).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

from mpsctl.adapters import bounded, procfs
from mpsctl.model.errors import NotReady

NAME = "log"
_SCAN_S = 5.0
_NO_FILE = ("socket:", "pipe:", "anon_inode:", "/dev/", "/memfd:", "net:", "mnt:", "user:", "pid:")
"""What an open descriptor is that cannot be a FIFO with a name."""


def is_closed(pipe_directory: Path, owner: int = 0) -> Optional[bool]:
    """Whether nobody but ``owner`` can open the FIFO now, by modes and owners; None where that cannot be looked at.

    The group of the directory is root's too where it may enter: servers of other users keep it, users do not have it.
    """
    try:
        directory, log = pipe_directory.stat(), (pipe_directory / NAME).lstat()
    except OSError:
        return None
    if not stat.S_ISFIFO(log.st_mode):
        return False
    for_others = directory.st_mode & 0o007 or (directory.st_mode & 0o070 and directory.st_gid != 0)
    return not for_others and not log.st_mode & 0o077 and directory.st_uid == log.st_uid == owner


def written_by_root_alone(pipe_directory: Path, daemon: int) -> Optional[bool]:
    """Whether every process that has the FIFO open for writing now is root's, the daemon ``daemon`` or its server.

    One look at every process. None where it was not finished in 5 s, or not all of it may be read. A descriptor that
    is on its way through a socket is in no process: only a directory that was closed from before the daemon's start
    proves that there is none.
    """
    try:
        about = (pipe_directory / NAME).stat()
        return bounded.call(
            lambda: _root_alone((about.st_dev, about.st_ino), daemon), _SCAN_S, "the look at who writes to the log"
        )
    except (OSError, NotReady):
        return None


def _root_alone(fifo: tuple[int, int], daemon: int) -> Optional[bool]:
    unread = False
    for pid in procfs.pids():
        uid = procfs.uid(pid)
        if uid in (None, 0) or (daemon and daemon in (pid, procfs.parent(pid))):
            continue
        writes = _writes(pid, fifo)
        if writes:
            return False
        unread = unread or writes is None
    return None if unread else True


def _writes(pid: int, fifo: tuple[int, int]) -> Optional[bool]:
    """Whether a process has the FIFO open for writing; None where that may not be read."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return any(_is_written(f"/proc/{pid}/fd/{descriptor}", fifo) for descriptor in descriptors)


def _is_written(link: str, fifo: tuple[int, int]) -> bool:
    try:
        if os.readlink(link).startswith(_NO_FILE):
            return False
        about = os.stat(link)
        if (about.st_dev, about.st_ino) != fifo:
            return False
        return bool(os.lstat(link).st_mode & stat.S_IWUSR)  # the link's own mode is that of the descriptor: proc(5)
    except OSError:
        return False
