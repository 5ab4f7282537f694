"""NVIDIA's own control daemons as processes of a test, and a host on which only they are real."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Iterator, Optional

from fakes import Host, h200
from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Daemon, FrontEnd
from mpsctl.lifecycle import apply, prepare
from mpsctl.model.errors import NotReady
from mpsctl.store import configuration
from mpsctl.store.world import World


@contextmanager
def short_directory() -> Iterator[Path]:
    """Outside /tmp, where pipe directories are refused, and short enough for their sockets."""
    base = "/run" if os.access("/run", os.W_OK) else os.environ.get("XDG_RUNTIME_DIR", str(Path.home()))
    path = Path(tempfile.mkdtemp(prefix="mps-test-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Running:
    """A control daemon in the foreground, as the unit starts it; what it says is in ``log``."""

    def __init__(
        self, binary: Path, pipe_directory: Path, log: Path, servers: Optional[Path] = None, *options: str
    ) -> None:
        """``servers``: the folder in which it finds its server; NVIDIA's own where it is None."""
        self.binary, self.pipe_directory, self.log = binary, pipe_directory, log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [binary, "-f", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory),
                    "CUDA_VISIBLE_DEVICES": h200(0).uuid,
                    "PATH": f"{servers or binary.parents[1] / 'sbin'}:/usr/bin:/bin",
                    "MPS_LAB_STANDIN_SERVER": str(log.with_name("orders")),
                },
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def front_end(self, lock: Optional[Path] = None) -> FrontEnd:
        return FrontEnd(self.pipe_directory, lock, self.binary)

    def wait_until_it_answers(self) -> None:
        end = time.monotonic() + 30
        while True:
            try:
                self.front_end().ask(["get_default_client_priority"], deadline_s=5)
                return
            except NotReady:
                assert self.process.poll() is None, f"the daemon ended: {self.log.read_text()}"
                assert time.monotonic() < end, f"the daemon does not answer: {self.log.read_text()}"
            time.sleep(0.02)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class Starter:
    """Starts daemons under a short directory; all of them are ended with the test."""

    def __init__(self, binary: Path, root: Path, stack: ExitStack) -> None:
        self.binary, self.root, self._stack = binary, root, stack
        self._count = 0

    def unanswered(self, pipe_directory: Path) -> Running:
        self._count += 1
        pipe_directory.mkdir(parents=True, exist_ok=True)
        daemon = Running(self.binary, pipe_directory, self.root / f"daemon-{self._count}.log")
        self._stack.callback(daemon.end)
        return daemon

    def __call__(self, pipe_directory: Path) -> Running:
        daemon = self.unanswered(pipe_directory)
        daemon.wait_until_it_answers()
        return daemon


def own_processes(every: Iterable[int]) -> Iterator[int]:
    """Those of this machine itself: lab hosts run beside these tests, with pid namespaces and daemons of their own."""
    ours = procfs.namespace(os.getpid(), "pid")
    return (pid for pid in every if procfs.namespace(pid, "pid") in (ours, None))


class RealDaemonHost(Host):
    """A host whose control daemons and processes are real; the rest is as in the unit tests."""

    def __init__(self, start: Starter) -> None:
        super().__init__(start.root, [h200(index) for index in range(4)])
        self._start = start

    @property
    def world(self) -> World:
        return replace(super().world, daemon=self._front_end, now_s=time.monotonic, sleep_s=time.sleep)

    def _front_end(self, pipe_directory: Path, lock: Optional[Path]) -> Daemon:
        return FrontEnd(pipe_directory, lock, self._start.binary)

    def begin(self, name: str = "0") -> Running:
        """ExecStartPre and ExecStart."""
        if configuration.load(self.world, name).front_door:
            self.stand_door(name)
        daemon = self._start.unanswered(prepare.prepare(self.world, name).pipe_directory)
        self.systemd.unit(f"mps-control@{name}.service").main_pid = daemon.pid
        return daemon

    def bring_up(self, name: str = "0") -> Running:
        """ExecStartPre, ExecStart and ExecStartPost."""
        daemon = self.begin(name)
        apply.apply(self.world, name, daemon.pid)
        return daemon


@contextmanager
def held_session(daemon: Running) -> Iterator[int]:
    """An operator at the front-end's prompt; the process id of that front-end."""
    sessions = daemon.log.read_text().count("NEW UI")
    prompt = subprocess.Popen(
        [daemon.binary],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe_directory)},
    )
    assert prompt.stdin is not None
    try:
        end = time.monotonic() + 30
        while daemon.log.read_text().count("NEW UI") == sessions:
            assert time.monotonic() < end, "the prompt was not served"
            time.sleep(0.01)
        yield prompt.pid
    finally:
        prompt.stdin.close()
        prompt.wait()
