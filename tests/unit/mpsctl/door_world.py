"""A front door with real sockets, a simulated daemon behind it, clients before it, and a judge that follows a script.

The door's clock is the test's, and stands still; everything else goes on for real until a condition holds.
"""

from __future__ import annotations

import array
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Optional, Union

from mpsctl.adapters.stop_request import Stop
from mpsctl.front_door.bounds import Bounds
from mpsctl.front_door.judge import LetIn, Verdict, Visitor, Wait
from mpsctl.front_door.loop import FrontDoor
from mpsctl.store.admission import ServedDaemon

GREETING, CREDENTIALS, DESCRIPTOR = b"OUTBHELL\0", b"OUTBCRED\0", b"OUTBCUFD\0"
CUDA, LAST = b"\2\0\0\0", b"\7\0\0\0"
LONG_S = 30.0
"""Until a test gives up."""
Ancillary = list[tuple[int, int, Union[bytes, "array.array[int]"]]]


def credentials(pid: int, uid: int, gid: int) -> tuple[int, int, bytes]:
    return socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("=iII", pid, uid, gid)


def received(connection: socket.socket) -> Optional[tuple[bytes, Optional[tuple[int, int, int]], list[int]]]:
    """A message with its credentials and descriptors, or None if there is none now; b"" is the end."""
    try:
        data, ancillary, _, _ = connection.recvmsg(64, 256, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b"", None, []
    who: Optional[tuple[int, int, int]] = None
    descriptors = array.array("i")
    for _, kind, raw in ancillary:
        if kind == socket.SCM_CREDENTIALS:
            who = struct.unpack("=iII", raw)
        else:
            descriptors.frombytes(raw)
    return data, who, list(descriptors)


class Client:
    """A connection of this process, which says what a test wants."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.connect(str(path))
        self.heard: list[bytes] = []
        self.descriptors: list[int] = []
        self.ended = False

    def say(self, *messages: bytes, ancillary: Optional[Ancillary] = None) -> Client:
        own = [credentials(os.getpid(), os.getuid(), os.getgid())]
        for message in messages:
            self.connection.sendmsg([message], own if ancillary is None else ancillary)
        return self

    def introduce(self, word: bytes = CUDA) -> Client:
        return self.say(CREDENTIALS, word)

    def step(self) -> None:
        while not self.ended:
            message = received(self.connection)
            if message is None:
                return
            data, _, descriptors = message
            self.descriptors += descriptors
            self.ended = not data
            self.heard += [data] if data else []

    @property
    def refused(self) -> bool:
        """Greeted and closed: CUDA's error 805."""
        return self.ended and self.heard == [GREETING]

    def close(self) -> None:
        self.connection.close()
        self.ended = True


_PROCESS = """
import socket, struct, sys, os
path, clients, silent, uid = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "silent", int(sys.argv[4])
if uid != os.getuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
connections = []
for _ in range(clients):
    connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    connections[-1].connect(path)
one = connections[0]
print(one.recv(64).hex(), flush=True)
if silent and not sys.stdin.readline():
    sys.exit()
who = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("=iII", os.getpid(), os.getuid(), os.getgid()))]
one.sendmsg([b"OUTBCRED\\0"], who)
one.sendmsg([b"\\2\\0\\0\\0"], who)
print("introduced", flush=True)
data, ancillary, _, _ = one.recvmsg(64, 64)
print(data.hex(), len(ancillary), flush=True)
sys.stdin.readline()
one.sendmsg([b"\\7\\0\\0\\0"], who)
print("done", flush=True)
sys.stdin.readline()
"""


class Process:
    """A client in a process of its own, perhaps of another user; a silent one speaks when it is to go on."""

    def __init__(self, path: Path, uid: int = 0, connections: int = 1, silent: bool = False) -> None:
        what = "silent" if silent else "speaks"
        command = [sys.executable, "-IS", "-c", _PROCESS, str(path), str(connections), what, str(uid)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.pid = self.process.pid
        self.printed = b""

    def step(self) -> None:
        assert self.process.stdout is not None
        with suppress(BlockingIOError):
            self.printed += os.read(self.process.stdout.fileno(), 4096)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop_where_it_is(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class SimulatedDaemon:
    """NVIDIA's side of the handshake, one connection at a time. ``stops_at`` says what it does not do any more."""

    def __init__(self, directory: Path, backlog: int = 16) -> None:
        self.served = ServedDaemon(77, 7, str(directory))
        self.path = directory / "control"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(backlog)
        self.listener.setblocking(False)
        self.greeting = GREETING
        self.answer = DESCRIPTOR
        self.descriptors_in_answer = 1
        self.accepts = self.greets = self.answers = True
        self.closes_after: Optional[str] = None
        """``accept``, ``greeting``, ``credentials``"""
        self.connection: Optional[socket.socket] = None
        self.messages: list[tuple[bytes, Optional[tuple[int, int, int]]]] = []
        self.connections: list[list[tuple[bytes, Optional[tuple[int, int, int]]]]] = []
        """What was said on each connection."""
        self.accepted = 0
        self.is_greeted = self.is_answered = False
        self.cut_in_the_dangerous_moment = False

    def step(self) -> None:
        if self.connection is None:
            self._accept()
        if self.connection is not None and self.greets and not self.is_greeted:
            self._greet(self.connection)
        if self.connection is not None:
            self._hear(self.connection)

    def _accept(self) -> None:
        if not self.accepts:
            return
        with suppress(BlockingIOError):
            self.connection, _ = self.listener.accept()
            self.accepted += 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.messages = []
            self.connections.append(self.messages)
            self.is_greeted = self.is_answered = False
            if self.closes_after == "accept":
                self.close_connection()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.send(self.greeting, socket.MSG_NOSIGNAL)
        except BrokenPipeError:
            self.close_connection()
            return
        self.is_greeted = True
        if self.closes_after == "greeting":
            self.close_connection()

    def _hear(self, connection: socket.socket) -> None:
        message = received(connection)
        if message is not None and not message[0]:
            self.cut_in_the_dangerous_moment |= len(self.messages) == 2 and not self.is_answered
            self.close_connection()
        elif message is not None:
            self.messages.append(message[:2])
            if len(self.messages) == 2 and self.closes_after == "credentials":
                self.close_connection()
        if self.connection is not None and len(self.messages) == 2 and self.answers and not self.is_answered:
            self.say_answer()

    def say_answer(self) -> None:
        assert self.connection is not None
        read, write = os.pipe()
        rights = array.array("i", [write] * self.descriptors_in_answer)
        self.connection.sendmsg([self.answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
        self.is_answered = True
        os.close(read)
        os.close(write)

    def close_connection(self) -> None:
        assert self.connection is not None
        self.connection.close()
        self.connection = None

    def close(self) -> None:
        if self.connection is not None:
            self.close_connection()
        self.listener.close()


@dataclass
class ScriptedJudge:
    """``verdict`` is asked for each visitor, and everything that is told is in ``told``, by the visitor's number."""

    daemon: ServedDaemon
    verdict: Callable[[Visitor], Verdict] = lambda visitor: Wait("the_test")
    says: bytes = GREETING
    wait: float = 60.0
    holds: Callable[[Visitor], bool] = lambda visitor: True
    known: set[int] = field(default_factory=set)
    """The numbers of those whose process was let in before."""
    asked: list[int] = field(default_factory=list)
    told: list[tuple[object, ...]] = field(default_factory=list)
    visitors: list[Visitor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_NONBLOCK)

    def let_in(self) -> None:
        self.verdict = lambda visitor: LetIn(self.daemon)

    def wake(self) -> None:
        os.write(self.write, b"!")

    def fileno(self) -> int:
        return self.read

    def woken(self) -> None:
        os.read(self.read, 64)

    def judge(self, visitor: Visitor) -> Verdict:
        self.asked.append(visitor.number)
        if visitor not in self.visitors:
            self.visitors.append(visitor)
        return self.verdict(visitor)

    def still(self, visitor: Visitor, daemon: ServedDaemon) -> bool:
        return self.holds(visitor)

    def came_in_before(self, visitor: Visitor) -> bool:
        return visitor.number in self.known

    def tells(self, visitor: Visitor, daemon: ServedDaemon) -> None:
        """It leaves no mark."""

    def passed(self, visitor: Visitor, waited_s: float) -> None:
        self.told.append(("passed", visitor.number))

    def unanswered(self, visitor: Visitor, daemon: ServedDaemon, problem: str) -> None:
        self.told.append(("unanswered", visitor.number))

    def not_understood(self, daemon: ServedDaemon, said: bytes) -> None:
        self.told.append(("not_understood", said))

    def refused(self, visitor: Visitor, reason: str, text: str, waited_s: float) -> None:
        self.told.append(("refused", visitor.number, reason))

    def gave_up(self, visitor: Visitor, waited_s: float) -> None:
        self.told.append(("gave_up", visitor.number))

    def turned_away(self, pid: int, uid: int, reason: str, text: str, count: int) -> None:
        self.told.append(("turned_away", uid, reason, count))

    def greeting(self) -> bytes:
        return self.says

    def wait_s(self) -> float:
        return self.wait

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class Hold:
    """The admission, held by whom."""

    def __init__(self) -> None:
        self.is_written = False
        self.holders = 0
        self.asked = 0

    def __call__(self) -> Optional[Hold]:
        self.asked += 1
        if self.is_written:
            return None
        self.holders += 1
        return self

    def close(self) -> None:
        self.holders -= 1


class World:
    def __init__(self, root: Path, bounds: Optional[Bounds] = None) -> None:
        self.path = root / "front-door"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.path.chmod(0o666)
        self.listener.listen(128)
        (root / "pipe").mkdir()
        self.daemon = SimulatedDaemon(root / "pipe", backlog=0)
        self.judge = ScriptedJudge(self.daemon.served)
        self.hold = Hold()
        self.stop = Stop()
        self.now_s = 1000.0
        self.bounds = bounds or Bounds()
        self.outdated = False
        self.door = self._opened()
        self.runs = True
        self.clients: list[Union[Client, Process]] = []

    def _opened(self) -> FrontDoor:
        return FrontDoor(
            self.listener,
            self.judge,
            self.hold,
            self.stop,
            lambda: self.now_s,
            self.bounds,
            lambda: self.outdated,
        )

    def reopen(self) -> None:
        """Another process of the door in the place of this one, to which nobody came yet."""
        self.door.close()
        self.door = self._opened()

    def client(self) -> Client:
        """It connects, and is not accepted yet."""
        made = Client(self.path)
        self.clients.append(made)
        return made

    def greeted(self) -> Client:
        made = self.client()
        self.until(lambda: made.heard == [GREETING])
        return made

    def visitor(self) -> Client:
        """It has introduced itself, and the judge was asked about it."""
        made = self.greeted().introduce()
        before = len(self.judge.visitors)
        self.until(lambda: len(self.judge.visitors) > before)
        return made

    def process(self, uid: int = 0, connections: int = 1, silent: bool = False) -> Process:
        made = Process(self.path, uid, connections, silent)
        self.clients.append(made)
        return made

    def visitor_process(self, uid: int = 0) -> Process:
        made = self.process(uid)
        self.until(lambda: any(one.pid == made.pid for one in self.judge.visitors))
        return made

    def step(self) -> None:
        if self.runs:
            self.runs = self.door.step(0.001)
        self.daemon.step()
        for one in self.clients:
            one.step()

    def rounds(self, count: int = 20) -> None:
        """So many that whatever is going to happen without the clock has happened."""
        for _ in range(count):
            self.step()

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < end_s, (self.judge.told, self.daemon.connections)
            self.step()

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.rounds()

    def told(self, *what: object) -> bool:
        return tuple(what) in self.judge.told

    def close(self) -> None:
        for one in self.clients:
            one.close()
        for client in self.clients:
            for descriptor in getattr(client, "descriptors", ()):
                os.close(descriptor)
        self.door.close()
        self.daemon.close()
        self.listener.close()
        self.judge.close()
        self.stop.close()


def made(root: Path, bounds: Optional[Bounds] = None) -> Iterator[World]:
    world = World(root, bounds)
    yield world
    world.close()


def open_descriptors() -> int:
    gc.collect()  # those of former tests
    return len(os.listdir("/proc/self/fd"))
