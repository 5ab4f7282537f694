"""Who can write into a control daemon's `log`, and so into the journal under the daemon's name.

The daemon makes `log`, a FIFO that everybody may write (0777, at each start; control daemons 535, 550, 555, driver
580), and prints in the foreground what it reads there: its own lines and its servers'. The journal cannot tell them
from lines of others: they have the daemon's user, process id and invocation. So the journal of its unit is evidence
only where nobody else could open the FIFO: in a directory that nobody else can enter, and with the mode 0600 before
that directory is opened for the servers, or for everyone where there is no front door. Who opened it earlier keeps
writing, whatever the mode is afterwards.

What a user can do all the same is to have the daemon write lines of its own: each client that comes and goes makes
some, 37,000 in 10 s by one user. They are true. The daemon has no bound for them; what this program reads of the
journal has one (``adapters/systemd.py``).
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Optional

NAME = "log"


def is_closed(pipe_directory: Path, owner: int = 0, public: bool = False) -> Optional[bool]:
    """Whether nobody but ``owner`` can open the FIFO now, by modes and owners; None where that cannot be looked at.

    The group of the directory is root's too where it may enter: servers of other users keep it, users do not have it.
    A ``public`` directory, in which the daemon itself stands, everyone may enter once the FIFO is closed, and no more.
    """
    try:
        directory, log = pipe_directory.stat(), (pipe_directory / NAME).lstat()
    except OSError:
        return None
    if not stat.S_ISFIFO(log.st_mode):
        return False
    for_others = directory.st_mode & (0o006 if public else 0o007)
    for_others = for_others or (directory.st_mode & 0o070 and directory.st_gid != 0)
    return not for_others and not log.st_mode & 0o077 and directory.st_uid == log.st_uid == owner
