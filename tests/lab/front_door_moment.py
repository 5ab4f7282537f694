"""Kills the door's service in the one dangerous moment; it runs on the host and prints what it saw as JSON.

The moment is between the client's second message and the daemon's descriptor, and lasts microseconds. Here it lasts:
the server stops answering (answers=no), and so many clients go to the daemon's own socket that the way from the daemon
to its server is full. When the next client's turn comes, through the door, the daemon is blocked in sendmsg(2) to its
server before it answers the door.

Its one argument is what the server is to do after that: empty to answer again, or a line of its orders.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

CLIENT = "/usr/lib/mps-lab/simulated_client.py"
PUBLIC, ADMISSION = "/run/nvidia-mps/0", Path("/run/mps-fleet/0/admission.json")
ORDERS = Path("/run/mps-lab/standin-server")
CREDENTIALS, CUDA_CLIENT, LAST, TO_SERVER = b"OUTBCRED\0", b"\2\0\0\0", b"\0\0\0\0", b"SIMULATED-CLIENT\0"
SENDMSG = {"x86_64": "46", "aarch64": "211"}[os.uname().machine]
BOUND_S, TRIES, MOST = 20.0, 5, 2000


def order(line: str) -> None:
    """In one step: the server may read it at any moment."""
    ORDERS.parent.mkdir(exist_ok=True)
    new = ORDERS.with_suffix(".new")
    new.write_text(f"{line}\n")
    new.rename(ORDERS)


def send(connection: socket.socket, message: bytes) -> None:
    own = struct.pack("iII", os.getpid(), os.getuid(), os.getgid())
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])


class Direct:
    """A client at the daemon's own socket that does all but wait for its server's answer."""

    def __init__(self, path: str) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.connect(path)
        self._control.recv(64)
        send(self._control, CREDENTIALS)
        send(self._control, CUDA_CLIENT)

    def come_in(self, within_s: float) -> bool:
        self._control.settimeout(within_s)
        try:
            _, ancillary, _, _ = self._control.recvmsg(64, 64)
        except socket.timeout:
            return False
        descriptors = array.array("i")
        for _, _, raw in ancillary:
            descriptors.frombytes(raw[: len(raw) // 4 * 4])
        self._control.send(LAST)
        self._control.close()
        with socket.socket(fileno=descriptors[0]) as way:
            send(way, TO_SERVER)  # so that this one is not lost in its start
        return True


def how_many(path: str) -> int:
    """How many clients there are until the daemon is blocked."""
    order("answers=no")
    for count in range(MOST):
        client = Direct(path)
        if not client.come_in(0.5):
            order("")
            assert client.come_in(BOUND_S), "the daemon does not go on"
            return count
    raise AssertionError("the way from the daemon to its server does not get full")


def is_blocked(daemon: int) -> bool:
    """Whether the daemon is inside sendmsg(2), look after look."""
    for _ in range(5):
        if Path(f"/proc/{daemon}/syscall").read_text().split()[0] != SENDMSG:
            return False
        time.sleep(0.02)
    return True


def is_told(client: int) -> bool:
    """Whether the daemon has a client's credentials: a session that asks for its server is blocked as well."""
    command = ["journalctl", "--quiet", "--output=cat", "--unit=mps-control@0.service", "--lines=20"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"NEW CLIENT {client} " in log


def through_the_door(*options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": PUBLIC}
    command = [CLIENT, "--hold", "0", "--timeout", "60", *options]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def in_the_moment(path: str, daemon: int, count: int) -> Optional[subprocess.Popen[bytes]]:
    assert through_the_door().wait(60) == 0  # the door has just seen its server ready
    order("answers=no")
    for _ in range(count):
        assert Direct(path).come_in(BOUND_S)
    client = through_the_door("--skip-server")
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        if is_blocked(daemon) and is_told(client.pid) and client.poll() is None:
            return client
    order("")
    client.wait()
    return None


def main() -> int:
    daemon = json.loads(ADMISSION.read_text())["daemon"]
    path = f"{daemon['pipe_directory']}/control"
    assert through_the_door().wait(60) == 0
    count = how_many(path)
    tries = (in_the_moment(path, daemon["pid"], count) for _ in range(TRIES))
    client = next((one for one in tries if one is not None), None)
    assert client is not None, "the daemon never was in the moment"
    assert client.stdout is not None
    service = ["systemctl", "show", "--value", "-p", "MainPID", "mps-front-door@0.service"]
    os.kill(int(subprocess.run(service, capture_output=True, check=True).stdout), signal.SIGKILL)
    met = json.loads(client.stdout.readline())["outcome"]
    was_blocked = is_blocked(daemon["pid"])
    order(sys.argv[1])
    print(json.dumps({"daemon": daemon["pid"], "met": met, "blocked": was_blocked, "count": count}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
