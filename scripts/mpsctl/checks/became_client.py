"""Why a process that `mpsctl run` started did not become a client, in one line."""

from __future__ import annotations

import os
from typing import Optional

from mpsctl.adapters import pipe
from mpsctl.checks import waits, words
from mpsctl.model.foreign import pasted
from mpsctl.model.names import door_service
from mpsctl.observe.client_watch import Watch


def why_not(watch: Watch) -> str:
    """The likeliest reason, most certain first."""
    waits_now, waited = watch.waits(), watch.waited
    refused = None if waits_now else watch.refusal()
    if refused is not None:
        return f"the front door refused it (CUDA error 805): {refused.line}"
    if waited is not None:
        line = f"pid {waited.pid} {waits.line(None, waited)}"
        ended = "" if waits_now else ", and was not seen to come in"
        return f"{line}{ended}; see `mpsctl status {pasted(watch.instance.name)}`"
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
        f" or have been refused; see `journalctl -u {pasted(door_service(watch.instance.name))}`"
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
