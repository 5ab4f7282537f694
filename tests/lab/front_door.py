"""Clients before the front doors of lab hosts, and what becomes of them.

The daemons 535, 550 and 555, systemd, ssh and the front door are real. The GPUs, the MPS server and the clients are
simulated: a client says what CUDA would have done where it came (lab/files/usr/lib/mps-lab/simulated_client.py).
"""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from .conftest import LabHost, hosts
from .rollout import Rollout

SEED = "MPS_FRONT_DOOR_SEED"
DAEMONS = ("535", "550", "555")
PROGRAM = "/usr/lib/mps-lab/simulated_client.py"
PUBLIC, RUNTIME = "/run/nvidia-mps", "/run/mps-fleet"
ORDERS = "/run/mps-lab/standin-server"
IN, REFUSED, OUTSIDE, HANGS, STOPPED = "client", "error-805", "outside-mps", "hang", "stopped"
NOBODY, SOMEBODY = 65534, 1234
LONG_S = 60.0
"""Until a trial gives up on a condition."""
_SHORT_S = 1.0
"""For what must not happen: so long it is waited for."""


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_STORM, _MOMENT, _CROWD = map(_script, ("front_door_storm.py", "front_door_moment.py", "front_door_crowd.py"))


def until(
    holds: Callable[[], Any], what: str, within_s: float = LONG_S, told: Callable[[], object] = lambda: ""
) -> Any:
    """What ``holds`` says, once that is true; ``told`` is what to say more where it does not come about."""
    end_s = time.monotonic() + within_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what} {told()}"
        time.sleep(0.05)


class Client:
    """A simulated client on a host. It stays until ``end``."""

    def __init__(self, process: subprocess.Popen[bytes], command: str) -> None:
        self._process, self._command = process, command
        self._printed = b""

    def said(self, within_s: float) -> Optional[dict[str, Any]]:
        """What it says of its start, or None if that takes longer."""
        assert self._process.stdout is not None
        end_s = time.monotonic() + within_s
        while b"\n" not in self._printed:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            if not readable:
                return None
            more = os.read(self._process.stdout.fileno(), 4096)
            assert more, f"`{self._command}` ended with {self._process.wait()} and said: {self._printed!r}"
            self._printed += more
        found: dict[str, Any] = json.loads(self._printed)
        return found

    def outcome(self) -> str:
        found = self.said(LONG_S)
        return str(found["outcome"]) if found else "waits"

    def waits(self, for_s: float = _SHORT_S) -> bool:
        return self.said(for_s) is None

    def end(self) -> int:
        """Its exit code, once its standard input is over."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def drop(self) -> None:
        """Do with it no more; a client that waits goes when it is served."""
        self._process.kill()
        self._process.wait()


@dataclass
class DoorHost:
    """A converged host. Its commands and clients go through one connection of ssh."""

    lab: LabHost
    sockets: Path
    clients: list[Client] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.lab.name

    @property
    def daemon(self) -> str:
        return str(self.lab.facts["daemon"])

    def _ssh(self, command: str) -> list[str]:
        # Of two that begin at once one is told that the other has the socket, which is no line of the host's.
        options = ("LogLevel=FATAL", "ControlMaster=auto", f"ControlPath={self.sockets}/%h", "ControlPersist=60")
        shared = [word for option in options for word in ("-o", option)]
        return ["ssh", "-F", self.lab.facts["ssh_config"], *shared, "-o", "BatchMode=yes", self.name, command]

    def disconnect(self) -> None:
        exit_ = [*self._ssh("")[:-2], "-O", "exit", self.name]
        subprocess.run(exit_, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def run(self, command: str, stdin: str = "", check: bool = True) -> str:
        """Run a shell command; what it printed on both streams."""
        done = subprocess.run(self._ssh(command), input=stdin.encode(), capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert not check or done.returncode == 0, f"{self.name}: `{command}` ended with {done.returncode}:\n{said}"
        return said

    def process(self, command: str) -> subprocess.Popen[bytes]:
        """A shell command that goes on, with its standard input and output."""
        return subprocess.Popen(self._ssh(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def client(self, *options: str, directory: str = f"{PUBLIC}/0", through: str = "", uid: int = 0) -> Client:
        """Begin a client. ``through`` is a command before it, such as unshare."""
        other = f"setpriv --reuid {uid} --regid {uid} --clear-groups" if uid else ""
        line = f"CUDA_MPS_PIPE_DIRECTORY={directory} exec {through} {other} {PROGRAM} --hold stdin {' '.join(options)}"
        process = subprocess.Popen(
            self._ssh(line), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.clients.append(Client(process, f"{self.name}: {line}"))
        return self.clients[-1]

    def meets(self, *options: str, **where: Any) -> str:
        """What a client meets that goes at once."""
        client = self.client(*options, **where)
        outcome = client.outcome()
        client.end()
        return outcome

    # -- what is so

    def main_pid(self, unit: str = "mps-control@0") -> int:
        return int(self.run(f"systemctl show --value -p MainPID {unit}"))

    def admission(self, instance: str = "0") -> dict[str, Any]:
        said = self.run(f"cat {RUNTIME}/{instance}/admission.json 2>/dev/null", check=False)
        found: dict[str, Any] = json.loads(said or "{}")
        return found

    def reasons(self, instance: str = "0") -> list[str]:
        """Why the door refused the last clients, as words, oldest first."""
        said = self.run(f"journalctl -q -o json -n 20 -t mps-front-door@{instance} MPS_EVENT=refused")
        return [str(json.loads(line).get("MPS_REASON", "")) for line in said.splitlines()]

    def open(self, instance: str = "0") -> None:
        """Bring the instance back to where clients come in, and wait for it."""
        self.run(
            f"systemctl unmask --runtime mps-control@{instance}; systemctl enable mps-control@{instance};"
            f" rm -f {RUNTIME}/{instance}/starts.json {ORDERS}; systemctl start mps-control@{instance};"
            f" mpsctl undrain {instance}",
            check=False,
        )
        until(lambda: self.admission(instance).get("state") == "open", f"{self.name}: instance {instance} is open")

    def set(self, section: str, line: str, instance: str = "0") -> None:
        """Give an instance a line of its file, as a converge does, and have it take it."""
        path, key = f"/etc/mps/{instance}.conf", line.partition("=")[0]
        self.run(
            f"grep -q '^\\[{section}\\]' {path} || echo '[{section}]' >>{path};"
            f" sed -i -e '/^{key}=/d' -e 's/^\\[{section}\\]/&\\n{line}/' {path}"
            f" && systemctl restart mps-control@{instance}"
        )
        self.open(instance)

    @contextmanager
    def crowd(self, count: int, uid: int = 0, fill: bool = False) -> Iterator[int]:
        """As many connections to instance 0 that say nothing, by one process; with ``fill`` no more than the socket's
        backlog takes. How many there are."""
        command = f"python3 -c {shlex.quote(_CROWD)} {PUBLIC}/0 {uid} {count} {'fill' if fill else ''}"
        with subprocess.Popen(self._ssh(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said, f"{self.name}: `{command}` ended with {process.wait()}"
            yield int(said[1])
            process.communicate()

    def moment(self, then: str) -> dict[str, Any]:
        """Run front_door_moment.py on the host; what it saw."""
        found: dict[str, Any] = json.loads(self.run(f"python3 - '{then}'", _MOMENT).splitlines()[-1])
        return found

    def order(self, *lines: str) -> None:
        """What the simulated server does from now on."""
        if lines:
            self.run(f"mkdir -p {Path(ORDERS).parent} && printf '%s\\n' {shlex.join(lines)} >{ORDERS}")
        else:
            self.run(f"rm -f {ORDERS}")

    def storm(self, *arguments: str) -> dict[str, Any]:
        """Run front_door_storm.py on the host; what it counted."""
        said = self.run(f"python3 - {shlex.join(arguments)}", _STORM)
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def end_clients(self) -> None:
        for client in self.clients:
            client.drop()
        self.clients.clear()


@dataclass(frozen=True)
class Fleet:
    hosts: list[DoorHost]
    rollout: Rollout

    def of(self, daemon: str) -> DoorHost:
        return next(host for host in self.hosts if host.daemon == daemon)

    def converge(self, *variables: str) -> None:
        given = [word for variable in variables for word in ("-e", variable)]
        done = self.rollout.play("site.yml", *given)
        assert done.exit_code == 0, done.output

    def everywhere(self, act: Callable[[DoorHost], Any]) -> dict[str, Any]:
        """Do the same on every host at once; what came of it, by host."""
        done = beside(*(partial(act, host) for host in self.hosts))
        return dict(zip((host.name for host in self.hosts), done))


def beside(*acts: Callable[[], Any]) -> list[Any]:
    """Do all at once; what came of each."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(lambda act: act(), acts))


def seed() -> int:
    """Of all dice of a trial; it is printed."""
    found = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**32))
    print(f"{SEED}={found} repeats what the dice say")
    return found


@contextmanager
def fleet(
    prefix: str, daemons: tuple[str, ...] = DAEMONS, converged: bool = True, more: tuple[str, ...] = ()
) -> Iterator[Fleet]:
    """One host of each control daemon with a simulated server, two GPUs, and an instance on each GPU. ``more`` are
    further options of `lab/lab up`."""
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mps-")))
        booted = []
        for daemon in daemons:
            options = ("--hosts", "1", "--gpus", "2", "--daemon", daemon, "--standin-server", *more)
            booted += stack.enter_context(hosts(f"{prefix}-{daemon}", *options))
        found = Fleet([DoorHost(host, sockets) for host in booted], Rollout(prefix, booted))
        for host in found.hosts:
            stack.callback(host.disconnect)
        if converged:
            found.converge()
        yield found
