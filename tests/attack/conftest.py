"""One lab host for all attempts, a client of another user that works on it all the while, and what must hold after
each attempt."""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

import pytest
from tests.lab.conftest import LabHost, hosts
from tests.lab.rollout import Rollout

PUBLIC, OWN = "/run/nvidia-mps/0", "/run/mps-fleet/0/pipe"
SOMEBODY, NOBODY, NEIGHBOUR = 1000, 65534, 2000
ATTACKERS = (SOMEBODY, NOBODY)
CLIENT = "/usr/lib/mps-lab/simulated_client.py"
ATTACKER = "/usr/lib/mps-lab/attacker.py"
GIVEN = (
    *("-e", "mps_multi_user=true"),
    *("-e", "mps_unresponsive_daemon=restart"),
    *("-e", "mps_limit_bypass=terminate"),
    *("-e", "mps_limit_bypass_grace_s=1"),
)
"""With the settings by which a forgery or a silence would end somebody."""
_WITHIN_S = 20
"""The neighbour's client comes in within this time; it may wait 60."""


@dataclass
class Target:
    """The host. ``neighbour`` is the pid of a client of another user, ``daemon`` the daemon's; an attempt may have the
    instance restarted, which ends neither the neighbour's process nor the host's room."""

    host: LabHost
    daemon: str = ""
    neighbour: str = ""

    def run(self, command: str, check: bool = True) -> str:
        return self.host.run(command, check=check)

    def as_user(self, uid: int, command: str) -> str:
        """What a user's shell command printed, and after it its exit code."""
        user = f"setpriv --reuid={uid} --regid={uid} --clear-groups env CUDA_MPS_PIPE_DIRECTORY={PUBLIC}"
        return self.run(f"cd /tmp; {user} timeout 40 sh -c {shlex.quote(command)} </dev/null 2>&1; echo ended with $?")

    def opened(self, uid: int, paths: Iterable[str], open_it: str) -> list[str]:
        """Those of these paths with which a user's shell redirection succeeds, `head -c 9 /dev/zero >PATH`."""
        tries = [f"( {open_it}{path} ) 2>/dev/null && echo opened {path}" for path in paths]
        said = self.as_user(uid, "; ".join(tries))
        assert "ended with 124" not in said, "one of them hangs"
        return [line.partition(" ")[2] for line in said.splitlines() if line.startswith("opened ")]

    @contextmanager
    def held(self, uid: int, *deed: str) -> Iterator[None]:
        """The attacker's program with this deed, as a user, from when it is in place until the end of the block."""
        unit = f"attack-{uid}-{deed[0]}.service"
        options = [
            *("--quiet", "--collect", f"--unit={unit}", "--property=Type=notify", "--property=NotifyAccess=all"),
            *(f"--property=User={uid}", f"--property=Group={uid}", "--property=LimitNOFILE=65536"),
            *("--property=TimeoutStartSec=120", "--property=TasksMax=infinity", "--property=KillMode=control-group"),
            f"--setenv=CUDA_MPS_PIPE_DIRECTORY={PUBLIC}",
        ]
        self.run(shlex.join(["systemd-run", *options, ATTACKER, *deed]))
        try:
            yield
        finally:
            self.run(f"systemctl kill --signal=KILL {unit}; true")

    @contextmanager
    def process(self, uid: int, command: str) -> Iterator[str]:
        """A user's shell command in the background; its unit."""
        unit = f"attack-{uid}-process.service"
        options = ["--quiet", "--collect", f"--unit={unit}", f"--property=User={uid}", f"--property=Group={uid}"]
        options += ["--property=Type=exec", f"--setenv=CUDA_MPS_PIPE_DIRECTORY={PUBLIC}", "--working-directory=/tmp"]
        self.run(shlex.join(["systemd-run", *options, "sh", "-c", command]))
        try:
            yield unit
        finally:
            self.run(f"systemctl kill --signal=KILL {unit}; true")

    def until(self, condition: str, within_s: int = 20) -> None:
        """Wait until a shell condition holds on the host."""
        self.run(f"for _ in $(seq {10 * within_s}); do {condition} && exit 0; sleep 0.1; done; exit 1")

    def begin(self) -> None:
        """The daemon as it is, and a client of the neighbour's that stays."""
        self.daemon = self.main_pid()
        if not self.neighbour or self.run(f"kill -0 {self.neighbour} && echo lives", check=False) != "lives\n":
            out = "/run/neighbour"
            neighbour = f"setpriv --reuid={NEIGHBOUR} --regid={NEIGHBOUR} --clear-groups {CLIENT} --hold forever"
            self.run(f"CUDA_MPS_PIPE_DIRECTORY={PUBLIC} setsid {neighbour} >{out} 2>&1 </dev/null & sleep 0.1")
            self.until(f"grep -q '\"client\"' {out}")
            self.neighbour = str(json.loads(self.run(f"cat {out}"))["pid"])

    def main_pid(self) -> str:
        return self.run("systemctl show --value -p MainPID mps-control@0").strip()

    def restart(self) -> None:
        """The instance starts, though attacked; the neighbour's client, which ends with its daemon's server, comes
        anew."""
        self.run("timeout 60 systemctl restart mps-control@0")
        self.begin()

    def client(self, uid: int = NEIGHBOUR, within_s: int = _WITHIN_S) -> dict[str, Any]:
        """What a client of this user meets."""
        said = self.as_user(uid, f"{CLIENT} --hold 0 --timeout {within_s}")
        met: dict[str, Any] = json.loads(said.splitlines()[0])
        return met

    def health(self) -> str:
        """The word of health for the instance, which also does what the instance's file tells it to."""
        return str(self.json("health")["instances"]["0"]["word"])

    def json(self, verb: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(f"timeout 60 mpsctl {verb} --json; true"))
        return found

    def holds(self) -> None:
        """What must hold whatever was tried."""
        met = self.client()
        assert (met["outcome"], met["connections"]) == ("client", 2), met
        assert self.health() == "ok", self.run("mpsctl health; true")
        assert self.main_pid() == self.daemon, "the daemon was restarted"
        assert self.run(f"kill -0 {self.neighbour} && echo lives", check=False) == "lives\n", "the neighbour was ended"
        assert int(self.run("df --output=pcent /run | tail -n 1").strip(" %\n")) < 20
        for unit in ("mps-front-door@0.socket", "mps-control@0.service"):
            assert self.run(f"systemctl is-active {unit}").strip() == "active"


@pytest.fixture(scope="session")
def _booted() -> Iterator[Target]:
    with hosts("attack", "--hosts", "1", "--gpus", "2", "--daemon", "555", "--standin-server") as (host,):
        done = Rollout("attack", [host]).play("site.yml", *GIVEN)
        assert done.exit_code == 0, done.output
        attacker = Path(__file__).with_name("attacker.py").read_bytes()
        host.run(f"cat >{ATTACKER} && chmod 0755 {ATTACKER}", stdin=attacker)
        host.run(f"useradd --uid {SOMEBODY} somebody && useradd --uid {NEIGHBOUR} neighbour")
        host.run("systemctl stop mps-health.timer")  # the attempts have it look when it is to
        yield Target(host)


@pytest.fixture
def target(_booted: Target) -> Iterator[Target]:
    """The host, on which all that must hold is looked at after the attempt."""
    _booted.begin()
    yield _booted
    _booted.holds()
