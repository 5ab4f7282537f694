#!/usr/bin/python3 -IS
"""A simulated CUDA client: it speaks the handshake of libcuda with a control daemon or a front door, and no CUDA.

It says on standard output, in one line of JSON, what a real client would have met there:

    {"simulated": true, "outcome": "client", "stage": "server", "waited_s": 0.004, "connections": 2, "pid": 4711, …}

Two or three connections to $CUDA_MPS_PIPE_DIRECTORY/control, each: the greeting comes in; "OUTBCRED" and a word of four
bytes go out, both with the client's credentials; "OUTBCUFD" comes in with a descriptor, the way to the server; four
bytes go out, and the connection is closed (seen on driver 580, H200; control daemons 535, 550, 555 serve it). Over the
descriptor the client then greets the server and waits for its answer: what a real client says there is not known, so
these words are the lab's own, and the lab's stand-in server answers them.
"""

from __future__ import annotations

import argparse
import array
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Optional

GREETING_BYTES = 64
CREDENTIALS, DESCRIPTOR = b"OUTBCRED\0", b"OUTBCUFD\0"
CUDA_CLIENT = "02000000"
LAST = b"\0\0\0\0"
TO_SERVER, FROM_SERVER = b"SIMULATED-CLIENT\0", b"STAND-IN-SERVER\0"
DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"

STAGES = ("connect", "greeting", "first", "second", "descriptor", "last", "server")
"""What has been done at each: connected, greeted, sent the first message, the second, got the descriptor, sent the last
four bytes, been answered by the server."""
EXIT_CODES = {"client": 0, "stopped": 0, "outside-mps": 3, "error-805": 4, "error-805-or-hang": 5, "hang": 6}
SERVER_GONE = 7

_EPILOG = """\
outcomes, and exit codes:
  client             0  it came in; once it has held the way to the server as long as --hold says
  stopped            0  it stopped where --stop-at says, and was held
  outside-mps        3  no socket, a dead one, one of another type, one that it may not open, or a connection that was
                        closed before the greeting: CUDA runs without MPS, silently, with the whole GPU
  error-805          4  the greeting came, then the connection was closed
  error-805-or-hang  5  it was closed after the descriptor had come, or that message had no descriptor
  hang               6  still nothing after --timeout; CUDA itself waits without end
  (client)           7  it came in, and the server closed the way to it while it was held
  usage              2
"stage" is the last stage that was reached: """ + ", ".join(STAGES)


class Closed(Exception):
    """The other side closed the connection."""


class Met(Exception):
    """What ended the handshake: an outcome, and why, for people."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


class Handshake:
    """One client's start. ``stage`` and ``connections`` (whole ones) say how far it is, ``ways`` holds the way to the
    server of each connection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stage = ""
        self.connections = 0
        self.ways: list[socket.socket] = []
        self._control: Optional[socket.socket] = None
        self._deadline_s = None if options.timeout is None else time.monotonic() + options.timeout

    def run(self) -> None:
        """:raises Met: where it does not become a client, or is to stop."""
        directory = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY
        while self.connections < self.options.times:
            try:
                self._connect(os.path.join(directory, "control"))
                self._speak()
            except BlockingIOError:
                raise Met("hang", f"nothing came for {self.options.timeout:g} s") from None
            self.connections += 1

    def _connect(self, path: str) -> None:
        self.stage = ""
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._within(self._control).connect(path)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Met("outside-mps", f"{path}: {error.strerror or error}") from None
        self._reached("connect")

    def _speak(self) -> None:
        assert self._control is not None
        control = self._control
        try:
            _received(self._within(control))
        except Closed:
            raise Met("outside-mps", "closed before the greeting") from None
        self._reached("greeting")
        try:
            self._send(control, CREDENTIALS)
            self._reached("first")
            self._send(control, bytes.fromhex(self.options.word))
            self._reached("second")
            link = self._descriptor(control)
        except Closed:
            raise Met("error-805", "closed after the greeting") from None
        self._reached("descriptor")
        try:
            self._within(control).send(LAST)
        except ConnectionError as error:
            raise Met("error-805-or-hang", f"closed before the last bytes: {error.strerror}") from None
        self._reached("last")
        control.close()
        if not self.options.skip_server:
            self._greet_server(link)
            self._reached("server")

    def _descriptor(self, control: socket.socket) -> socket.socket:
        message, descriptors = _received(self._within(control))
        if message != DESCRIPTOR or len(descriptors) != 1:
            found = f"{message!r} with {len(descriptors)} descriptors"
            raise Met("error-805-or-hang", f"found {found}, expected {DESCRIPTOR!r} with one")
        self.ways.append(socket.socket(fileno=descriptors[0]))
        return self.ways[-1]

    def _greet_server(self, link: socket.socket) -> None:
        try:
            self._send(link, TO_SERVER)
            message, _ = _received(self._within(link))
        except Closed:
            raise Met("error-805-or-hang", "the server closed the way to it") from None
        if message != FROM_SERVER:
            raise Met("error-805-or-hang", f"found {message!r} from the server, expected the lab's stand-in server")

    def _send(self, to: socket.socket, message: bytes) -> None:
        """With this process' credentials, as CUDA does."""
        own = struct.pack("iII", os.getpid(), os.getuid(), os.getgid())
        try:
            self._within(to).sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])
        except ConnectionError:
            raise Closed from None

    def _within(self, used: socket.socket) -> socket.socket:
        """The socket, with what is left of --timeout for its next call, which fails with EAGAIN when that is over.

        It stays a blocking one, as CUDA's: a connect without blocking would fail at once where the backlog is full.

        :raises BlockingIOError: if nothing is left.
        """
        if self._deadline_s is not None:
            left_us = int((self._deadline_s - time.monotonic()) * 1e6)
            if left_us <= 0:
                raise BlockingIOError(errno.EAGAIN, "--timeout is over")
            left = struct.pack("ll", left_us // 1_000_000, left_us % 1_000_000)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                used.setsockopt(socket.SOL_SOCKET, option, left)
        return used

    def _reached(self, stage: str) -> None:
        self.stage = stage
        if self.connections + 1 != self.options.at_connection:
            return
        if stage == self.options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if stage == self.options.stop_at:
            raise Met("stopped", "as --stop-at says")


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and the descriptors in it; a message is never empty here.

    :raises Closed: if the other side has closed.
    :raises BlockingIOError: if nothing came in time.
    """
    descriptors = array.array("i")
    try:
        message, ancillary, _, _ = connection.recvmsg(GREETING_BYTES, socket.CMSG_SPACE(16 * descriptors.itemsize))
    except ConnectionError:
        raise Closed from None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) // descriptors.itemsize * descriptors.itemsize])
    if not message:
        raise Closed
    return message, list(descriptors)


def hold(ways: list[socket.socket], how: str) -> bool:
    """Stay until the time or standard input is over; whether the server was there all the while."""
    end_s = None if how in ("forever", "stdin") else time.monotonic() + float(how)
    poll = select.poll()
    for link in ways:
        poll.register(link, select.POLLIN)
    if how == "stdin":
        poll.register(0, select.POLLIN)
    while True:
        left_ms = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
        for descriptor, _ in poll.poll(left_ms):
            if descriptor == 0 and how == "stdin":
                if not os.read(0, 4096):
                    return True
            elif not _still_there(descriptor):
                return False
        if end_s is not None and time.monotonic() >= end_s:
            return True


def _still_there(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 4096))
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EINTR)


def _hold_time(text: str) -> str:
    if text not in ("forever", "stdin") and not 0 <= float(text) < 1e9:
        raise ValueError(text)
    return text


def _word(text: str) -> str:
    if len(bytes.fromhex(text)) != 4:
        raise ValueError(text)
    return text


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulated_client.py",
        description="A simulated CUDA client of MPS. Without CUDA or a GPU it does what libcuda does to become a\n"
        "client of $CUDA_MPS_PIPE_DIRECTORY, and prints in one line of JSON what a real one would have met.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, choices=(1, 2, 3), default=2, help="connections (default %(default)s)")
    parser.add_argument(
        "--hold",
        type=_hold_time,
        default="forever",
        metavar="SECONDS|stdin|forever",
        help="how long to stay: seconds, until standard input ends, or until it is killed (default %(default)s)",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for becoming a client (default: none)")
    parser.add_argument("--stop-at", choices=STAGES, help="say nothing more from this stage on, and stay")
    parser.add_argument("--kill-at", choices=STAGES, help="end itself by SIGKILL at this stage")
    parser.add_argument("--at-connection", type=int, default=1, metavar="N", help="of which these speak (default 1)")
    parser.add_argument(
        "--word",
        type=_word,
        default=CUDA_CLIENT,
        metavar="HEX",
        help="who it is, four bytes: 02000000 CUDA's client (default), 03000000 under a debugger, 04000000 a front-end",
    )
    parser.add_argument("--skip-server", action="store_true", help="say nothing to the server, await no answer of it")
    options = parser.parse_args(arguments)
    if not 1 <= options.at_connection <= options.times:
        parser.error(f"found --at-connection {options.at_connection}, expected 1 to --times {options.times}")
    return options


def main(arguments: Optional[list[str]] = None) -> int:
    """Become a client, say what came of it, and stay; the exit code."""
    options = _options(arguments)
    handshake = Handshake(options)
    begun_s = time.monotonic()
    outcome, why = "client", ""
    try:
        handshake.run()
    except Met as met:
        outcome, why = met.outcome, str(met)
    said = {
        "simulated": True,
        "outcome": outcome,
        "stage": handshake.stage,
        "waited_s": round(time.monotonic() - begun_s, 6),
        "connections": handshake.connections,
        "pid": os.getpid(),
        "why": why,
    }
    print(json.dumps(said), flush=True)
    if outcome in ("client", "stopped") and not hold(handshake.ways, options.hold):
        return SERVER_GONE
    return EXIT_CODES[outcome]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
