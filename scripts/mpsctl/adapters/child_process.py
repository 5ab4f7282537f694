"""Processes of ours that never outlive us, whatever ends us, and that become another user."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Callable, Optional

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""prctl(2)"""


def end_with(parent: int, by: int = signal.SIGKILL) -> Callable[[], None]:
    """To be called in a child, before its program begins: the kernel sends it this signal when ``parent`` ends.

    It holds over exec and is lost by a change of user. A parent that is a thread counts by that thread.
    """
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def ask() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, by, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended before we asked

    return ask


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, so that it can end and await them."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become(uid: Optional[int], gid: Optional[int] = None) -> None:
    """Give up root for a user, with the groups that it has and the group ``gid``. ``uid`` None: stay who we are."""
    if uid is None or uid == os.geteuid():
        return
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        os.setgroups([])
        os.setgid(uid)
    else:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
    if gid is not None:
        os.setgroups([*os.getgroups(), gid])
    os.setuid(uid)
