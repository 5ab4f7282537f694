#!/usr/bin/python3
"""A stand-in for nvidia-cuda-mps-server: no CUDA, no GPU. `lab up --standin-server` puts it in that program's place.

NVIDIA's control daemon starts it as it starts its own server, takes it for ready, and passes clients to it. What is
said on the connection to the daemon was found by trial with the control daemons 535, 550 and 555 and is simulated;
what a real client says to its server is not known, so the lab's simulated client says words of the lab's own.

What it is to do stands in /run/mps-lab/standin-server, or in the file that MPS_LAB_STANDIN_SERVER names to the daemon,
and is read again whenever something comes. Lines, all optional:

    answers=no          it stops answering, the daemon and clients, until the line is gone: the daemon hangs on it
    start_delay_s=2     it becomes ready this late
    jam=lost-client     a client that ends between the daemon's descriptor and its own first words jams it for good, as
                        was seen on an H200 with driver 580
    fault=4711          the server with this pid says that it is in FAULT; nothing else becomes of it or its clients

No options stand in its first line: the second word of its command line is what an MPS server is known by.

It never outlives the daemon that started it, jammed or not, but for clients that 535 lets it serve to their end.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

ORDERS = "/run/mps-lab/standin-server"
FROM_CLIENT, TO_CLIENT = b"SIMULATED-CLIENT\0", b"STAND-IN-SERVER\0"
_CREDENTIALS, _SERVER, _READY = b"OUTBCRED\0", b"\1\0\0\0", b"\0\0\0\0"
_FAULT, _ACTIVE = 0, 1
_DAEMON_NAME = "nvidia-cuda-mps-control"[:15]
"""As the kernel cuts it."""
_LOOK_S = 0.05


class Gone(Exception):
    """The daemon has closed its end, or ended."""


class Closed(Exception):
    """A client has closed its end."""


@dataclass
class Way:
    """The way to one connection of a client; ``pid`` is known when the client has said its first words."""

    connection: socket.socket
    pid: Optional[int] = None


def orders() -> dict[str, str]:
    """What the file says now."""
    try:
        text = Path(os.environ.get("MPS_LAB_STANDIN_SERVER", ORDERS)).read_text()
    except OSError:
        return {}
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in lines}


def stand_still(daemon: int, how_long: Callable[[], bool]) -> None:
    """Say nothing as long as told; never longer than the daemon that started it lives.

    :raises Gone: when that has ended.
    """
    while how_long():
        if os.getppid() != daemon:
            raise Gone
        time.sleep(_LOOK_S)


def starter() -> int:
    """The daemon that started it, or 0 where that has ended already and another process has taken its place."""
    parent = os.getppid()
    try:
        name = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return 0
    return parent if name == _DAEMON_NAME else 0


def ordered_not_to_answer() -> bool:
    return orders().get("answers") == "no"


class Server:
    """The server of one daemon, from its start on. ``percentage`` and ``limits`` (bytes by device) are the daemon's."""

    def __init__(self, control: socket.socket, daemon: int, counts_clients: bool) -> None:
        """``daemon``: the process that started it; ``counts_clients``: it asks how many there are, as from 550 on."""
        self._control = control
        self._counts_clients = counts_clients
        self._daemon = daemon
        self._ways: dict[int, Way] = {}
        self.percentage = b""
        self.limits: dict[int, bytes] = {}
        self._closing = False
        self._answers: dict[int, Callable[[], None]] = {
            2: self._take_client,
            5: self._shut_down,
            6: self._list_clients,
            7: lambda: self._say(0),
            8: lambda: self._control.sendall(self.percentage),
            9: self._set_percentage,
            11: self._tell_limit,
            12: self._set_limit,
            13: self._end_client,
            14: self._list_processes,
            17: lambda: self._say(_FAULT if orders().get("fault") == str(os.getpid()) else _ACTIVE),
        }
        """By the word with which the daemon asks. 7, the clients by device: none, for it has no devices. 17, the
        status: 0 is FAULT, anything else ACTIVE."""

    def become_ready(self) -> None:
        """Connect as a server does: the daemon then sends its defaults and counts it as ready."""
        _receive(self._control)
        self._control.send(_CREDENTIALS)
        self._control.send(_SERVER)
        self._control.send(_READY)
        self.percentage, _ = _receive(self._control)
        (devices,) = struct.unpack("Q", _receive(self._control)[0])
        for device in range(devices):
            self.limits[device], _ = _receive(self._control)
        # the default priority of clients, which it has no use for
        _receive(self._control)

    def serve(self) -> None:
        """Answer the daemon and the clients, until the daemon has gone or wants it to end."""
        while self._ways or not self._closing:
            heard = [link.connection for link in self._ways.values()]
            ready, _, _ = select.select(heard if self._closing else [*heard, self._control], [], [])
            stand_still(self._daemon, ordered_not_to_answer)
            for connection in ready:
                if connection is self._control:
                    self._answer_daemon()
                elif connection.fileno() in self._ways:
                    self._hear_client(connection.fileno())

    def _answer_daemon(self) -> None:
        message, _ = _receive(self._control)
        answer = self._answers.get(int.from_bytes(message, "little"))
        # 0 ends a list of processes; what else is unknown, the real server alone could answer
        if answer is not None:
            answer()

    def _take_client(self) -> None:
        _, descriptors = _receive(self._control)
        for descriptor in descriptors:
            link = socket.socket(fileno=descriptor)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._ways[link.fileno()] = Way(link)

    def _hear_client(self, descriptor: int) -> None:
        link = self._ways[descriptor]
        try:
            message, pid = _heard(link.connection)
            if message == FROM_CLIENT:
                link.pid = pid
                link.connection.send(TO_CLIENT)
        except (Closed, OSError):
            if link.pid is None and orders().get("jam") == "lost-client":
                print(f"stand-in server {os.getpid()}: jammed, a client was lost in its start", flush=True)
                stand_still(self._daemon, lambda: True)
            self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._ways.pop(descriptor).connection.close()

    def _pids(self) -> list[int]:
        return sorted({link.pid for link in self._ways.values() if link.pid is not None})

    def _shut_down(self) -> None:
        """550, 555 ask again while there are clients. 535 says one word more, closes, and waits for the end."""
        if self._counts_clients:
            self._say(len(self._ways))
            self._closing = not self._ways
        else:
            _receive(self._control)
            self._closing = True

    def _list_clients(self) -> None:
        pids = self._pids()
        for number in (len(pids), *pids):
            self._say(number)

    def _list_processes(self) -> None:
        """For `ps`: 40 bytes each, of which pid (0), GPU UUID (16) and id (32) are known; GPU and id are all zero."""
        pids = self._pids()
        self._say(len(pids))
        for pid in pids:
            self._control.send(struct.pack("I36x", pid))

    def _set_percentage(self) -> None:
        self.percentage, _ = _receive(self._control)

    def _device(self) -> int:
        return int.from_bytes(_receive(self._control)[0], "little")

    def _tell_limit(self) -> None:
        self._control.send(self.limits.get(self._device(), bytes(8)))

    def _set_limit(self) -> None:
        device = self._device()
        self.limits[device], _ = _receive(self._control)

    def _end_client(self) -> None:
        """`terminate_client`: 0 for done; a client sees that the way to the server is closed."""
        pid = int.from_bytes(_receive(self._control)[0], "little")
        ending = [descriptor for descriptor, link in self._ways.items() if link.pid == pid]
        for descriptor in ending:
            self._forget(descriptor)
        self._say(0 if ending else 1)

    def _say(self, number: int) -> None:
        self._control.send(struct.pack("I", number))


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and its descriptors.

    :raises Gone: at the connection's end.
    """
    descriptors = array.array("i")
    message, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4 * descriptors.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) // descriptors.itemsize * descriptors.itemsize])
    if not message:
        raise Gone
    return message, list(descriptors)


def _heard(connection: socket.socket) -> tuple[bytes, int]:
    """A client's message and its pid, as the kernel knows it here.

    :raises Closed: at the connection's end.
    """
    size = struct.calcsize("iII")
    message, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(size))
    if not message:
        raise Closed
    (pid,) = (struct.unpack("iII", data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
    return message, int(pid)


def main() -> int:
    """Serve the daemon that started it; 0 when it was told to end, 1 where the daemon is not there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ready_at_s = time.monotonic() + float(orders().get("start_delay_s", "0"))
    daemon = starter()
    directory = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        stand_still(daemon, lambda: time.monotonic() < ready_at_s)
        control.connect(str(directory / "control"))
        # 535 makes no pid file, and asks for the end of a server in another way than later ones
        server = Server(control, daemon, (directory / "nvidia-cuda-mps-control.pid").exists())
        server.become_ready()
        server.serve()
    except (Gone, OSError) as problem:
        print(f"stand-in server {os.getpid()}: the daemon has gone {problem}".strip(), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
