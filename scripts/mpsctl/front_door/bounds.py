"""How long the front door waits for what, and how many it serves at once."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_DESCRIPTORS_OF_ITS_OWN = 64


@dataclass(frozen=True)
class Bounds:
    """Lengths in seconds.

    ``silent_s``: from the greeting until both messages of a client are there. ``daemon_greeting_s``: for the daemon's
    greeting; it serves one connection at a time, so that another's command session comes before it. ``answer_s``: for
    its answer to a client's credentials; its server runs by then, and it takes milliseconds (driver 580, H200).
    ``kept_open_s``: how much longer the connection to a daemon that gave no answer is kept. ``last_message_s``: for
    the client's last message. ``look_s``: between two looks at those who wait. ``accept_pause_s``: after the host or
    this process ran out of descriptors. ``told_each_s``: how often connections that were turned away are summed up.

    ``connections`` in all, ``connections_of_a_user`` of one holder (``holders.Holders``), ``accepted_at_once`` in one
    round: the rest stays in the listener's backlog, where a client waits (driver 580) and is not lost if this process
    ends.
    """

    silent_s: float = 10.0
    daemon_greeting_s: float = 5.0
    answer_s: float = 10.0
    kept_open_s: float = 30.0
    last_message_s: float = 1.0
    idle_s: float = 60.0
    look_s: float = 0.05
    accept_pause_s: float = 0.1
    told_each_s: float = 10.0
    connections: int = 768
    connections_of_a_user: int = 256
    accepted_at_once: int = 16


def connections_that_fit(wanted: int) -> int:
    """At most ``wanted``, and no more than this process may have open: each takes the connection and a pidfd."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (soft - _DESCRIPTORS_OF_ITS_OWN) // 2))
