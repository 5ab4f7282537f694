"""A real control daemon with the lab's stand-in server behind it, and the lab's simulated clients before it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional

from mpslab.places import SOURCE
from real_daemon import Running

_PROGRAMS = SOURCE / "files/usr/lib/mps-lab"
WAIT_S = 30.0
"""How long anything is waited for at most: no part of any test."""


def eventually(holds: Callable[[], object], what: str) -> None:
    """Asked again and again: a test says what comes, not when."""
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s, f"waited {WAIT_S:g} s: {what}"
        time.sleep(0.01)


class Client:
    """A simulated client as a process of its own; ``said()`` waits for its line."""

    def __init__(self, command: list[str], directory: Path, user: int = 0) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(directory), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
        )
        self._said: Optional[dict[str, Any]] = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> dict[str, Any]:
        if self._said is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"the client said nothing and ended with {self.process.wait()}"
            self._said = json.loads(line)
        return self._said

    @property
    def outcome(self) -> str:
        return str(self.said()["outcome"])

    def exit_code(self) -> int:
        return self.process.wait(timeout=WAIT_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Simulation:
    """Daemons with stand-in servers, and clients, below one short directory; all of them end with ``stack``."""

    def __init__(self, binary: Path, root: Path, stack: ExitStack) -> None:
        self.binary, self.root, self._stack = binary, root, stack
        # where every user may run them: a checkout may lie where only its owner may look
        self._programs = root / "programs"
        self._programs.mkdir(parents=True)
        root.chmod(0o755)
        self._client = self._program("simulated_client.py", "simulated_client.py")
        self._program("standin_server.py", "nvidia-cuda-mps-server")
        self.daemon: Optional[Running] = None

    def _program(self, name: str, installed: str) -> Path:
        target = self._programs / installed
        shutil.copyfile(_PROGRAMS / name, target)
        target.chmod(0o755)
        return target

    @property
    def directory(self) -> Path:
        return self.root / "pipe"

    def order(self, *lines: str) -> None:
        """What the stand-in server is to do; without lines what it does by itself."""
        orders = self.root / "orders"
        orders.with_suffix(".new").write_text("".join(f"{line}\n" for line in lines))
        orders.with_suffix(".new").rename(orders)

    def start(self, *options: str) -> Running:
        """The daemon on ``directory``, once it answers."""
        daemon = self.start_unanswered(*options)
        daemon.wait_until_it_answers()
        return daemon

    def start_unanswered(self, *options: str) -> Running:
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o755)
        self.daemon = Running(self.binary, self.directory, self.root / "daemon.log", self._programs, *options)
        self._stack.callback(self.daemon.end)
        return self.daemon

    def client(self, *options: str, user: int = 0, directory: Optional[Path] = None, within: str = "") -> Client:
        """A simulated client; ``within``: the options of unshare, to start it in namespaces of its own."""
        command = ["unshare", *within.split(), "--"] if within else []
        made = Client([*command, str(self._client), *options], directory or self.directory, user)
        self._stack.callback(made.end)
        return made

    def ask(self, *commands: str, deadline_s: float = WAIT_S) -> list[list[str]]:
        """What the daemon answers to NVIDIA's front-end."""
        assert self.daemon is not None
        return self.daemon.front_end().ask(list(commands), deadline_s=deadline_s)

    def servers(self) -> list[int]:
        return [int(line) for line in self.ask("get_server_list")[0]]

    def clients(self) -> list[int]:
        """Of all servers."""
        return [int(line) for server in self.servers() for line in self.ask(f"get_client_list {server}")[0]]

    @property
    def log(self) -> str:
        assert self.daemon is not None
        return self.daemon.log.read_text()

    def ready(self) -> int:
        """A server of root that is ready; its process id."""
        self.ask("start_server -uid 0")
        eventually(lambda: any(f"NEW SERVER {server}: Ready" in self.log for server in self.servers()), "no server")
        return self.servers()[0]
