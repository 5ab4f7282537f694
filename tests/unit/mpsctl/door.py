"""The judge of a front door on a host of fakes: what the tests of the door's judge share.

Time passes while somebody is judged, and the worker works when a test says so: no thread runs.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Optional

from fakes import FakeDaemon, Host
from mpsctl.front_door.greeting import UNDERSTOOD
from mpsctl.front_door.judge import LetIn, Refuse, Verdict, Visitor, Wait
from mpsctl.front_door.policy import InstanceJudge
from mpsctl.front_door.worker import Worker
from mpsctl.store import admission, front_door_notes
from mpsctl.store.admission import CLOSED, OPEN, WAITING, Admission, ServedDaemon
from mpsctl.store.front_door_notes import Notes

UNIT = "mps-control@0.service"
ALICE, BOB = 1000, 2000
LOOK_S = 0.05
"""Between two looks at those who wait."""


class Door:
    """Instance 0 with a control daemon that is up, its limits in force, and nobody connected."""

    def __init__(self, host: Host, version: int = 550) -> None:
        self.host = host
        self.directory = host.places.root / "pipe"
        self.directory.mkdir(exist_ok=True)
        self.says: Optional[bytes] = UNDERSTOOD
        self.heard: list[Path] = []
        self.faults: list[tuple[str, Exception]] = []
        self._number = 0
        self._started: list[int] = []
        self._connection = socket.socket(socket.AF_UNIX)
        self.log = self._listen()
        self.launch(version)
        self.open()
        self.begin()

    def begin(self) -> None:
        """The door's process starts."""
        self.worker = Worker(self.host.clock.now, lambda name, error: self.faults.append((name, error)))
        self.judge = InstanceJudge(self.host.world, "0", self.worker, self.worker, self._hear)

    def end(self) -> None:
        self.worker.end()
        self.judge.close()

    def close(self) -> None:
        self.end()
        self._connection.close()
        self.log.close()
        assert self.faults == []

    # -- the instance

    def launch(self, version: int = 550) -> FakeDaemon:
        pid = self.host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -f", {})
        self.daemon = FakeDaemon(pid, version)
        self.daemon.on_start_server = lambda uid: self._started.append(self.start_server(uid))
        self.host.daemons[self.directory] = self.daemon
        unit = self.host.systemd.unit(UNIT)
        unit.active_state, unit.sub_state, unit.main_pid, unit.enabled = "active", "running", pid, True
        unit.invocation = f"{pid:032x}"
        self.host.systemd.journals[unit.invocation] = self.daemon.log
        return self.daemon

    def start_server(self, uid: int, state: str = "ACTIVE") -> int:
        pid = self.host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, uid)
        self.daemon.start_server(pid).state = state
        return pid

    def end_server(self, pid: int) -> None:
        self.daemon.servers.pop(pid, None)
        self.host.kill(pid)

    @property
    def served(self) -> ServedDaemon:
        began = self.host.processes[self.daemon.pid].started_at
        return ServedDaemon(self.daemon.pid, began, str(self.directory))

    def say(self, found: Admission) -> None:
        self.host.clock.pass_by(0.01)  # nothing that was seen before is believed
        admission.write(self.host.places, "0", found)

    def open(self, gid: Optional[int] = None, multi_user: bool = True) -> None:
        self.say(Admission(OPEN, "", self.served, gid=gid, multi_user=multi_user))

    def drain(self, refuse: bool = False) -> None:
        self.say(Admission(CLOSED if refuse else WAITING, "drained", self.served, multi_user=True))

    # -- visitors

    def visitor(self, uid: int = ALICE, gid: int = 500, pid: int = 0, stack: int = 0) -> Visitor:
        """One more connection, of a new process or of one that is there."""
        pid = pid or self.host.process("python3", "python3 serve.py", {}, uid)
        self._number += 1
        began = self.host.processes[pid].started_at
        number, since_s = self._number, self.host.clock.now_s
        return Visitor(self._connection, pid, uid, gid, began, since_s, number, stack=stack)

    def ask(self, visitor: Visitor) -> Verdict:
        """The verdict at the next look, the worker having done what was due."""
        self.host.clock.pass_by(LOOK_S)
        self.worker.work()
        return self.judge.judge(visitor)

    def settled(self, visitor: Visitor, within_s: float = 5.0) -> Verdict:
        """The verdict once it is not to wait any more, or what it still waits for."""
        end_s = self.host.clock.now_s + within_s
        verdict = self.ask(visitor)
        while isinstance(verdict, Wait) and self.host.clock.now_s < end_s:
            verdict = self.ask(visitor)
        return verdict

    def come_in(self, visitor: Visitor) -> Visitor:
        """Judged, looked at once more, and passed on."""
        verdict = self.settled(visitor)
        assert verdict == LetIn(self.served)
        return self.passes(visitor)

    def passes(self, visitor: Visitor) -> Visitor:
        """Looked at once more, and passed on."""
        self.told(visitor)
        self.judge.passed(visitor, 0.25)
        return visitor

    def told(self, visitor: Visitor) -> None:
        """The daemon is told of it."""
        assert self.judge.still(visitor, self.served)
        self.judge.tells(visitor, self.served)

    def word(self, visitor: Visitor, within_s: float = 5.0) -> str:
        """What becomes of a visitor, as a word."""
        verdict = self.settled(visitor, within_s)
        if isinstance(verdict, LetIn):
            return "let-in"
        return f"refused: {verdict.reason}" if isinstance(verdict, Refuse) else verdict.why

    # -- what it leaves

    @property
    def notes(self) -> Notes:
        """What stands in the file once the worker has written."""
        self.host.clock.pass_by(1.0)
        self.worker.work()
        return front_door_notes.read(self.host.places, "0")

    def entries(self) -> list[dict[str, str]]:
        """The entries that came to the journal since the last call; its queue has room for a few."""
        found: list[dict[str, str]] = []
        began = -1
        while len(found) != began:
            began = len(found)
            found += [parsed(data) for data in iter(self._received, b"")]
            self.host.clock.pass_by(0.06)
            self.worker.work()
        return found

    def _received(self) -> bytes:
        try:
            return self.log.recv(1 << 16)
        except BlockingIOError:
            return b""

    def _hear(self, pipe_directory: Path) -> bytes:
        self.heard.append(pipe_directory)
        if self.says is None:
            raise ConnectionRefusedError
        if not self.says:
            raise TimeoutError
        return self.says

    def _listen(self) -> socket.socket:
        path = self.host.places.root / "run/systemd/journal/socket"
        path.parent.mkdir(parents=True, exist_ok=True)
        log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        log.bind(os.fspath(path))
        return log


def parsed(data: bytes) -> dict[str, str]:
    """An entry of journald's native protocol, as journald reads it."""
    found: dict[str, str] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, separator, value = line.partition(b"=")
        if separator:
            data = rest
        else:
            size = int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + size], rest[8 + size :]
            assert data[:1] == b"\n"
            data = data[1:]
        found[name.decode()] = value.decode()
    return found
