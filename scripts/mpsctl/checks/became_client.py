"""Why a process that `mpsctl run` started did not become a client, in one line."""

from __future__ import annotations

import os
from typing import Optional

from mpsctl.adapters import pipe
from mpsctl.checks import words
from mpsctl.model.foreign import pasted
from mpsctl.observe.client_watch import Watch


def why_not(watch: Watch) -> str:
    """The likeliest reason, most certain first."""
    for pid, wrong in watch.own_variables.items():
        if pid in watch.opened_cuda:
            return f"pid {pid} has {words.obstacle(wrong).line}"
    door = _door(watch)
    if not watch.opened_cuda:
        return "neither it nor what it started was seen to open CUDA (libcuda)" + (f"; and {door}" if door else "")
    if door:
        return door
    if watch.daemon_problem:
        return f"it opened CUDA, and the daemon did not answer: {watch.daemon_problem}"
    return (
        "it opened CUDA and no list of clients has it: it may have used no GPU, wait behind another user's clients,"
        f" or have been refused; see `journalctl -u {pasted(watch.instance.unit)}`"
    )


def _door(watch: Watch) -> Optional[str]:
    try:
        closed = watch.obstacle()
    except OSError as error:
        return str(error)
    if closed is not None:
        return words.obstacle(closed).line
    socket = watch.public / pipe.PUBLIC_NAME
    if os.path.exists(socket):
        return None
    return (
        f"there is no front door: {socket} does not exist, the instance lets no client in; what uses CUDA now runs"
        f" outside MPS; see `mpsctl status {pasted(watch.instance.name)}`"
    )
