"""What the simulated CUDA client says it met, against small real sockets; the table is driver 580's (H200)."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest

from mpslab.places import SOURCE

CLIENT = SOURCE / "files/usr/lib/mps-lab/simulated_client.py"
GREETING = b"OUTBHELL\0"
SERVER_SAYS = b"STAND-IN-SERVER\0"
WAIT_S = 30
Serve = Callable[[socket.socket, ExitStack], None]
"""What is done with one connection; what has to outlive it ends with the stack."""


def met(directory: Path, *options: str) -> tuple[dict[str, Any], int]:
    """What the client says, and its exit code."""
    done = subprocess.run(
        [CLIENT, "--hold", "0", *options],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(directory), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    (line,) = done.stdout.splitlines() or [f"nothing; {done.stderr}"]
    said = json.loads(line)
    assert said["simulated"] is True
    return said, done.returncode


@contextmanager
def served(path: Path, serve: Optional[Serve], kind: int = socket.SOCK_SEQPACKET, backlog: int = 8) -> Iterator[None]:
    """A socket on which one connection after the other is served; nobody's where ``serve`` is None."""
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(path))
        listener.listen(backlog)
        thread = threading.Thread(target=_loop, args=(listener, serve))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _loop(listener: socket.socket, serve: Optional[Serve]) -> None:
    if serve is None:
        return
    with ExitStack() as stack:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # a client may be gone at any stage
            with connection, suppress(OSError):
                connection.settimeout(WAIT_S)
                serve(connection, stack)


def closes(_: socket.socket, __: ExitStack) -> None:
    pass


def greets(connection: socket.socket, _: ExitStack) -> None:
    connection.send(GREETING)


def hears(messages: int) -> Serve:
    def serve(connection: socket.socket, stack: ExitStack) -> None:
        greets(connection, stack)
        for _ in range(messages):
            connection.recv(64)

    return serve


def forgets_the_descriptor(connection: socket.socket, stack: ExitStack) -> None:
    hears(2)(connection, stack)
    connection.send(b"OUTBCUFD\0")
    connection.recv(64)


def hands_over(connection: socket.socket) -> socket.socket:
    """The server's end of the way whose other end the client was given."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WAIT_S)
    with theirs:
        socket.send_fds(connection, [b"OUTBCUFD\0"], [theirs.fileno()])
    return ours


def lets_in(connection: socket.socket, stack: ExitStack) -> None:
    """As a daemon does, with its server on the other end of the descriptor."""
    hears(2)(connection, stack)
    server = stack.enter_context(hands_over(connection))
    if connection.recv(64) and server.recv(64):
        server.send(SERVER_SAYS)


def lets_in_and_loses_the_server(connection: socket.socket, stack: ExitStack) -> None:
    hears(2)(connection, stack)
    with hands_over(connection) as server:
        connection.recv(64)
        server.recv(64)


def test_no_directory_no_socket_and_a_dead_one_are_outside_mps(tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        said, code = met(directory)
        assert (said["outcome"], said["stage"], code) == ("outside-mps", "", 3)
    with served(tmp_path / "control", None):
        pass
    said, code = met(tmp_path)
    assert (said["outcome"], said["stage"], code) == ("outside-mps", "", 3)


def test_a_stream_socket_is_outside_mps(tmp_path: Path) -> None:
    with served(tmp_path / "control", greets, socket.SOCK_STREAM):
        said, code = met(tmp_path)
    assert (said["outcome"], code) == ("outside-mps", 3)


@pytest.mark.parametrize(
    ("serve", "outcome", "code"),
    [
        (closes, "outside-mps", 3),
        (greets, "error-805", 4),
        (hears(1), "error-805", 4),
        (hears(2), "error-805", 4),
        (forgets_the_descriptor, "error-805-or-hang", 5),
        (lets_in_and_loses_the_server, "error-805-or-hang", 5),
        (lets_in, "client", 0),
    ],
    ids=["closed", "greeted", "heard once", "heard twice", "no descriptor", "the server closes", "let in"],
)
def test_how_far_it_gets_decides_what_cuda_does(tmp_path: Path, serve: Serve, outcome: str, code: int) -> None:
    with served(tmp_path / "control", serve):
        said, ended = met(tmp_path)
    assert (said["outcome"], ended) == (outcome, code)


def test_a_socket_that_nobody_answers_lets_it_wait(tmp_path: Path) -> None:
    with served(tmp_path / "control", None):
        said, code = met(tmp_path, "--timeout", "0.1")
    assert (said["outcome"], said["stage"], code) == ("hang", "connect", 6)
    assert said["waited_s"] >= 0.1


def test_a_full_backlog_lets_it_wait_in_connect(tmp_path: Path) -> None:
    with served(tmp_path / "control", None, backlog=0), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(str(tmp_path / "control"))
        said, code = met(tmp_path, "--timeout", "0.1")
    assert (said["outcome"], said["stage"], code) == ("hang", "", 6)


def test_a_greeted_client_waits_for_its_descriptor_without_end(tmp_path: Path) -> None:
    with served(tmp_path / "control", hears(3)):
        said, code = met(tmp_path, "--timeout", "0.1")
    assert (said["outcome"], said["stage"], code) == ("hang", "second", 6)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_it_says_the_client_s_words_with_its_credentials_on_every_connection(tmp_path: Path, times: int) -> None:
    heard: list[tuple[bytes, tuple[int, int, int]]] = []
    last: list[bytes] = []

    def serve(connection: socket.socket, stack: ExitStack) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        greets(connection, stack)
        for _ in range(2):
            message, ancillary, _, _ = connection.recvmsg(64, socket.CMSG_SPACE(12))
            ((_, kind, packed),) = ancillary
            assert kind == socket.SCM_CREDENTIALS
            heard.append((message, struct.unpack("iII", packed)))
        stack.enter_context(hands_over(connection))
        last.append(connection.recv(64))
        assert connection.recv(64) == b""

    with served(tmp_path / "control", serve):
        said, code = met(tmp_path, "--times", str(times), "--word", "03000000", "--skip-server")
    assert (said["outcome"], said["connections"], said["stage"], code) == ("client", times, "last", 0)
    credentials = (said["pid"], os.getuid(), os.getgid())
    assert heard == [(b"OUTBCRED\0", credentials), (b"\3\0\0\0", credentials)] * times
    assert last == [bytes(4)] * times


@pytest.mark.parametrize("stage", ["connect", "greeting", "first", "second", "descriptor", "last", "server"])
def test_it_stops_and_dies_where_it_is_told(tmp_path: Path, stage: str) -> None:
    with served(tmp_path / "control", lets_in):
        said, code = met(tmp_path, "--stop-at", stage)
        assert (said["outcome"], said["stage"], code) == ("stopped", stage, 0)
        killed = subprocess.run(
            [CLIENT, "--kill-at", stage, "--at-connection", "2"],
            env={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_S,
        )
        assert (killed.returncode, killed.stdout) == (-9, b"")


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client that has come in and stays until its standard input ends."""
    client = subprocess.Popen(
        [CLIENT, "--hold", "stdin"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(directory), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    with client:
        try:
            assert json.loads(client.stdout.readline())["outcome"] == "client"
            assert client.poll() is None
            yield client
        finally:
            client.kill()


def test_it_stays_until_its_standard_input_ends(tmp_path: Path) -> None:
    with served(tmp_path / "control", lets_in), held(tmp_path) as client:
        assert client.stdin is not None
        client.stdin.close()
        assert client.wait(WAIT_S) == 0


def test_a_server_that_goes_away_ends_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with served(tmp_path / "control", lets_in):
            client = stack.enter_context(held(tmp_path))
        assert client.wait(WAIT_S) == 7
