"""The listening socket that systemd hands to the service (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from typing import MutableMapping

from mpsctl.model.errors import NotReady

NAME = "front-door"
"""FileDescriptorName= of the socket unit."""
_FIRST = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def listener(instance: str, environment: MutableMapping[str, str], pid: int, first: int = _FIRST) -> socket.socket:
    """The socket named NAME among the descriptors from ``first`` on; no child inherits any of them or their variables.

    :raises NotReady: if this process ``pid`` was not started by the instance's socket unit.
    """
    told_pid, count, names = (environment.pop(name, "") for name in _VARIABLES)
    by_hand = f"it is started by systemd: `systemctl start mps-front-door@{instance}.socket`"
    if told_pid != str(pid) or not count.isdigit():
        found = f"LISTEN_PID is {told_pid}" if told_pid else "no LISTEN_PID"
        raise NotReady(f"found {found[:40]}, expected {pid}; {by_hand}")
    descriptors = range(first, first + int(count))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    named = [one for one, name in zip(descriptors, names.split(":")) if name == NAME]
    if len(named) != 1:
        raise NotReady(f"found {len(named)} sockets named {NAME} from systemd, expected one; {by_hand}")
    given = socket.socket(fileno=named[0])
    listens = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (given.family, given.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) or not listens:
        given.detach()
        raise NotReady(f"found no listening SOCK_SEQPACKET socket under the name {NAME}, expected one; {by_hand}")
    return given
