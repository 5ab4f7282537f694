"""The messages between a client, the front door and NVIDIA's control daemon, one SOCK_SEQPACKET message each.

As seen from outside (driver 580, H200; the daemon's side also on 535, 550, 555)::

    daemon to client   "OUTBHELL\\0"
    client to daemon   "OUTBCRED\\0", then 4 bytes that say who comes; each with SCM_CREDENTIALS
    daemon to client   "OUTBCUFD\\0" with one descriptor (SCM_RIGHTS)
    client to daemon   4 bytes, and the connection is over

Nothing here blocks.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Optional, Union

CREDENTIALS = b"OUTBCRED\0"
DESCRIPTOR = b"OUTBCUFD\0"
CUDA_CLIENT = b"\2\0\0\0"
DEBUGGED_CUDA_CLIENT = b"\3\0\0\0"
"""The daemon ends its server, once that has no client, and closes the connection without an answer (control daemons
535, 550, 555)."""
SAYS_WHO = {b"\1\0\0\0": "an MPS server", b"\4\0\0\0": "NVIDIA's front-end"}
"""Who else there is, for people. Both belong on the daemon's own sockets."""

_UCRED = struct.Struct("=iII")
_INTEGER = struct.Struct("=i")
_MOST_BYTES = 64
_MOST_DESCRIPTORS = 4
# include/uapi/asm-generic/socket.h; Python has no names for them.
_SO_PEERPIDFD = 77  # Linux 6.5
_SO_PASSRIGHTS = 83  # Linux 6.16

Ancillary = list[tuple[int, int, Union[bytes, "array.array[int]"]]]


@dataclass(frozen=True)
class Credentials:
    """Ids as this process's namespaces number them; pid 0 is a process that they do not hold."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Message:
    """``whole`` is false where the kernel dropped a part: bytes, credentials or descriptors that were too many."""

    data: bytes
    credentials: Optional[Credentials]
    descriptors: tuple[int, ...]
    whole: bool

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def peer(connection: socket.socket) -> Credentials:
    """Who made the connection, by the kernel."""
    return Credentials(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def process(connection: socket.socket, pid: int) -> Optional[int]:
    """A pidfd of who made the connection; None where the kernel has none to give, or the process is gone.

    Asked of the connection it is of that process for certain; an older kernel is asked by the pid.
    """
    with suppress(OSError):
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INTEGER.size)
        descriptor: int = _INTEGER.unpack(raw)[0]
        return descriptor
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def has_ended(pidfd: Optional[int]) -> bool:
    """Whether the process of a pidfd is gone or a zombie; False where there is no pidfd."""
    if pidfd is None:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def is_over(connection: socket.socket) -> bool:
    """Whether the other end closed the connection."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def expect_credentials(connection: socket.socket) -> None:
    """Receive credentials with each message, and, where the kernel can, no descriptors.

    To close the last descriptor of a file can block (a TCP socket with SO_LINGER), also where it was never received.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def hear_client(connection: socket.socket) -> Optional[Message]:
    """The next message of a client; None once the connection is over.

    There is no room for descriptors: the kernel drops them, and the message is not whole. To receive and close them
    could block on files of a client's own file system.

    :raises BlockingIOError: if there is none now.
    """
    return _hear(connection, socket.CMSG_LEN(_UCRED.size))


def hear_daemon(connection: socket.socket) -> Optional[Message]:
    """The next message of the daemon, with descriptors that are the caller's to close; None once it closed.

    :raises BlockingIOError: if there is none now.
    """
    return _hear(connection, socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INTEGER.size))


def _hear(connection: socket.socket, room: int) -> Optional[Message]:
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        data, ancillary, told, _ = connection.recvmsg(_MOST_BYTES, room, flags)
    except BlockingIOError:
        raise
    except OSError:
        return None
    credentials: Optional[Credentials] = None
    descriptors: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(raw) == _UCRED.size:
            credentials = Credentials(*_UCRED.unpack(raw))
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors += [one for (one,) in _INTEGER.iter_unpack(raw[: len(raw) // _INTEGER.size * _INTEGER.size])]
    if not data and not ancillary and not told & socket.MSG_CTRUNC:
        return None
    return Message(data, credentials, tuple(descriptors), not told & (socket.MSG_TRUNC | socket.MSG_CTRUNC))


def say(
    connection: socket.socket,
    data: bytes,
    credentials: Optional[Credentials] = None,
    descriptor: Optional[int] = None,
) -> None:
    """Send one message, in the name of ``credentials`` where they are given.

    :raises ProcessLookupError: if the process of the credentials is gone.
    :raises PermissionError: if this process may not speak for it.
    :raises OSError: if the message cannot be sent.
    """
    ancillary: Ancillary = []
    if credentials is not None:
        packed = _UCRED.pack(credentials.pid, credentials.uid, credentials.gid)
        ancillary.append((socket.SOL_SOCKET, socket.SCM_CREDENTIALS, packed))
    if descriptor is not None:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, _INTEGER.pack(descriptor)))
    connection.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def part(connection: socket.socket) -> None:
    """Close a connection so that its other end still reads all that was said.

    To close one that has unread messages makes the kernel give the other end ECONNRESET in place of them. A client
    that gets that for the greeting would run outside MPS.
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # from here on nothing comes any more
        while connection.recv(1, socket.MSG_DONTWAIT):
            pass
    connection.close()


def is_not_allowed(problem: OSError) -> bool:
    """Whether the kernel refused credentials: this process lacks a capability, or their ids mean nothing to it."""
    return problem.errno in (errno.EPERM, errno.EINVAL)
