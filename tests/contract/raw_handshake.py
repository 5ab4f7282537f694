"""The words that pass between a control daemon and whoever comes to it, message by message."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Optional

from simulated import WAIT_S

GREETING, CREDENTIALS, DESCRIPTOR = b"OUTBHELL\0", b"OUTBCRED\0", b"OUTBCUFD\0"
SERVER, CLIENT, DEBUGGED, FRONT_END = (struct.pack("I", word) for word in (1, 2, 3, 4))
LAST = b"\0\0\0\0"
Credentials = tuple[int, int, int]
"""Process, user and group id."""
_SIZE = struct.calcsize("iII")


def own() -> Credentials:
    return os.getpid(), os.getuid(), os.getgid()


def connect(path: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.settimeout(WAIT_S)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def greeted(path: Path) -> socket.socket:
    """A connection on which the daemon has said its greeting."""
    made = connect(path)
    assert made.recv(64) == GREETING
    return made


def say(to: socket.socket, message: bytes, credentials: Optional[Credentials] = None) -> None:
    packed = struct.pack("iII", *(credentials or own()))
    to.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, packed)])


def introduce(to: socket.socket, word: bytes, credentials: Optional[Credentials] = None) -> None:
    """The two messages with which everyone begins."""
    say(to, CREDENTIALS, credentials)
    say(to, word, credentials)


def heard(from_: socket.socket) -> bytes:
    """The next message; nothing where the other side has closed."""
    try:
        return from_.recv(4096)
    except ConnectionError:
        return b""


def front_end(path: Path, command: str, credentials: Optional[Credentials] = None) -> Optional[str]:
    """What the daemon answers to one command of a front-end, or None where it closes instead."""
    text = command.encode() + b"\n\0"
    said = ""
    with greeted(path) as session:
        try:
            introduce(session, FRONT_END, credentials)
            for message in (struct.pack("Q", len(text)), text, bytes(8)):
                say(session, message, credentials)
        except BrokenPipeError:
            return None
        while True:
            message = heard(session)
            if not message:
                return None
            if message[:4] == struct.pack("I", 1):
                return said
            said += message[4:].decode()


@contextmanager
def relay(public: Path, daemon: Path) -> Iterator[None]:
    """Root's relay on a socket of its own: passes on each client's two messages with the credentials that the kernel
    knows of it, then the daemon's descriptor, and the last bytes; one client after the other."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    listener.bind(str(public))
    public.chmod(0o666)
    listener.listen(16)
    # a closed listener would leave its thread in accept: it is shut down instead
    thread = threading.Thread(target=_serve, args=(listener, daemon))
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def _serve(listener: socket.socket, daemon: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client:
                client.settimeout(WAIT_S)
                _pass_on(client, daemon)


def _pass_on(client: socket.socket, daemon: Path) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    client.send(GREETING)
    with greeted(daemon) as onward:
        for _ in range(2):
            message, ancillary, _, _ = client.recvmsg(64, socket.CMSG_SPACE(_SIZE))
            (packed,) = (data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
            say(onward, message, struct.unpack("iII", packed))
        message, descriptors, _, _ = socket.recv_fds(onward, 64, 1)
        socket.send_fds(client, [message], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        onward.send(client.recv(64))
