"""Runs of the playbooks over four lab hosts that are killed at a random moment, and what the next run makes of it.

Killed are ansible-playbook with its processes, the server side of one host's ssh connection, or mpsctl itself on
one host: always by process id, and only processes of this run. The GPUs are simulated; the daemons, systemd and
ssh are real.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Optional

from .conftest import PROJECT, LabHost, hosts

SEED = "MPS_INTERRUPT_SEED"
KINDS = ("ansible", "sshd", "mpsctl")
SITE, LIMITS, REMOVE = "site.yml", "playbooks/limits.yml", "playbooks/remove.yml"
GPUS = 2
_HOSTS = (("535", 1, "bookworm"), ("550", 2, "bookworm"), ("555", 1, "trixie"))
_PROBE = Path(__file__).with_name("interrupted_probe.py").read_text(encoding="utf-8")
_COPY = "/opt/probe/mpsctl"
_POLL_S = 0.02
_SSH_FAILED, _ATTEMPTS = 255, 10
"""Another lab command may just be writing the keys of the lab's hosts."""
_LONGEST_S = 300
"""No run of four hosts takes as long; one that hangs is a violation."""


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    words: list[str]

    @property
    def acts(self) -> bool:
        """A mpsctl that changes its host, or the bootstrap that started it."""
        python = bool(self.words) and Path(self.words[0]).name.startswith("python")
        return python and "reconcile" in self.words and "--check" not in self.words

    @property
    def is_session(self) -> bool:
        return bool(self.words) and self.words[0].startswith(("sshd: ", "sshd-session: ")) and "@" in self.words[0]


def tree(root: int, parent: int = 0) -> list[Process]:
    """A process and all below it, as this machine numbers them."""
    try:
        words = Path(f"/proc/{root}/cmdline").read_text(errors="replace").split("\0")[:-1]
        children = [
            int(word) for path in Path(f"/proc/{root}/task").glob("*/children") for word in path.read_text().split()
        ]
    except OSError:
        return []
    return [Process(root, parent, words), *(process for child in children for process in tree(child, root))]


def kill(processes: list[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


@dataclass
class Trial:
    """The hosts, what the dice say, and what was found."""

    hosts: list[LabHost]
    prefix: str
    dice: random.Random = field(default_factory=random.Random)
    violations: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    killed: dict[str, int] = field(default_factory=dict)
    runs_s: dict[str, float] = field(default_factory=dict)
    """how long a whole run of each playbook took"""

    def begin(self, seed: int) -> None:
        """Dice of this seed, and nothing found yet."""
        self.dice = random.Random(seed)
        self.violations, self.told, self.killed = [], [], {}

    def start(self, playbook: str, limit_mib: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *("ansible-playbook", "-i", "inventories/lab", "-l", "gpu-nodes"),
                *("-e", f"mps_device_memory_limit={limit_mib}M", playbook),
            ],
            cwd=PROJECT,
            env={
                **os.environ,
                "MPS_LAB_PREFIX": self.prefix,
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def play(self, playbook: str, limit_mib: int) -> None:
        """A run that nobody disturbs: it has to come to its end."""
        began_s = time.monotonic()
        run = self.start(playbook, limit_mib)
        try:
            said = run.communicate(timeout=_LONGEST_S)[0]
        except subprocess.TimeoutExpired:
            kill(tree(run.pid))
            said = run.communicate()[0]
            self.violations.append(f"{playbook} after it was kept waiting: {said}")
            return
        self.runs_s[playbook] = time.monotonic() - began_s
        if run.returncode != 0:
            self.violations.append(f"{playbook} ended with {run.returncode}: {said}")

    def interrupt(self, playbook: str, limit_mib: int) -> str:
        """Begin a run and kill something of it; what was killed."""
        kind, host = self.dice.choice(KINDS), self.dice.choice(self.hosts)
        acting = kind == "mpsctl" or self.dice.random() < 0.5
        begins_s = 0.0 if acting else self.dice.uniform(0, self.runs_s[playbook])
        delay_s = self.dice.uniform(0, 1.0) ** 2
        began_s = time.monotonic()
        run = self.start(playbook, limit_mib)
        victims: list[Process] = []
        while run.poll() is None and not victims:
            if time.monotonic() - began_s >= begins_s and (not acting or self._acting(host)):
                time.sleep(delay_s if acting else 0)
                victims = self._victims(kind, host, run.pid)
                kill(victims)
                acting = acting and kind == "mpsctl"  # one that has ended is not waited for again
                if kind == "mpsctl" and not victims:
                    break
            time.sleep(_POLL_S)
        after_s = time.monotonic() - began_s
        with suppress(subprocess.TimeoutExpired):
            run.communicate(timeout=_LONGEST_S)
        if run.poll() is None:
            kill(tree(run.pid))
            self.violations.append(f"{playbook} did not end after {kind} of {host.name} was killed")
        self.killed[kind if victims else "nothing"] = self.killed.get(kind if victims else "nothing", 0) + 1
        where = "" if kind == "ansible" else f" of {host.name}"
        return f"{kind}{where} killed after {after_s:.2f} s" if victims else f"{kind}{where} had ended by itself"

    def _acting(self, host: LabHost) -> bool:
        return any(process.acts for process in tree(int(host.facts["leader_pid"])))

    def _victims(self, kind: str, host: LabHost, ansible: int) -> list[Process]:
        if kind == "ansible":
            return tree(ansible)
        there = tree(int(host.facts["leader_pid"]))
        if kind == "sshd":
            return [process for process in there if process.is_session]
        acting = [process for process in there if process.acts]
        return [self.dice.choice(acting)] if acting else []

    def probe(self, host: LabHost) -> dict[str, Any]:
        for _ in range(_ATTEMPTS):
            done = subprocess.run(
                ["ssh", "-F", host.facts["ssh_config"], host.name, f"python3 - {_COPY} {GPUS}"],
                input=_PROBE,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != _SSH_FAILED:
                break
            time.sleep(1)
        assert done.returncode == 0, f"{host.name}: {done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def probes(self) -> dict[str, dict[str, Any]]:
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return dict(zip((host.name for host in self.hosts), pool.map(self.probe, self.hosts)))

    # -- what has to hold

    def judge_between(self, where: str, found: dict[str, dict[str, Any]]) -> None:
        for name, one in found.items():
            code, told = one["status"][0], set(one["unusable"])
            if not set(one["unserved"]) <= told or (told and code != 1):
                self.violations.append(
                    f"{where}: {name} has GPUs that are exclusive, without a daemon, unnoticed: {one}"
                )
            if not one["lock_is_free"] and not one["at_work"]:
                self.violations.append(f"{where}: {name} is locked, and nothing is at work there: {one}")

    def judge_files(
        self,
        where: str,
        before: dict[str, dict[str, Any]],
        between: dict[str, dict[str, Any]],
        after: Optional[dict[str, dict[str, Any]]],
    ) -> None:
        """``after`` is None where the files were on their way out."""
        for name, one in between.items():
            old, new = before[name]["files"], after[name]["files"] if after else {}
            for path in {*old, *one["files"], *new}:
                whole = (old.get(path), new.get(path))
                if one["files"].get(path) not in whole:
                    self.violations.append(f"{where}: {name}: {path} was neither the old nor the new file")

    def judge_desired(self, where: str, found: dict[str, dict[str, Any]], limit_mib: int) -> None:
        shown = f"{limit_mib >> 10}G"
        for name, one in found.items():
            wrong = {
                "status": one["status"] if one["status"][0] != 0 else None,
                "limits": one["limits"] if one["limits"] != [shown] * GPUS else None,
                "modes": {**one["modes"]} if set(one["modes"].values()) != {"exclusive_process"} else None,
                "served": one["served"] if one["served"] != sorted(one["modes"]) else None,
                "halves of files": one["partial_files"] or None,
                "enabled": one["enabled"] if len(one["enabled"]) != 2 * GPUS + 1 else None,
                "older units loaded": one["stale"] if one["stale"] != "no" else None,
                "runs that go on": one["at_work"] or None,
            }
            self._add(where, name, wrong)

    def judge_removed(self, where: str, found: dict[str, dict[str, Any]]) -> None:
        for name, one in found.items():
            wrong = {
                "files": one["files"] or None,
                "halves of files": one["partial_files"] or None,
                "directories": one["directories"] or None,
                "enabled": one["enabled"] or None,
                "units": one["units"] or None,
                "daemons": one["served"] or None,
                "modes": one["modes"] if set(one["modes"].values()) != {"default"} else None,
                "runs that go on": one["at_work"] or None,
            }
            self._add(where, name, wrong)

    def _add(self, where: str, name: str, wrong: dict[str, Any]) -> None:
        self.violations += [f"{where}: {name}: {what}: {found}" for what, found in wrong.items() if found is not None]

    # -- one round

    def round(self, number: int, playbook: str, before: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        limit_mib, known = self.dice.randrange(2048, 65536), len(self.violations)
        told = self.interrupt(playbook, limit_mib)
        where = f"round {number} of {playbook}, {told}"
        between = self.probes()
        self.judge_between(where, between)
        # A host from which we are being removed may as well be taken back.
        following = SITE if playbook == REMOVE and self.dice.random() < 0.3 else playbook
        self.play(following, limit_mib)
        after = self.probes()
        self.judge_files(where, before, between, None if playbook == REMOVE else after)
        if following == REMOVE:
            self.judge_removed(where, after)
            self.play(SITE, limit_mib)
            after = self.probes()
        self.judge_desired(where, after, limit_mib)
        for violation in self.violations[known:]:
            print(f"VIOLATION: {violation}", file=sys.stderr, flush=True)
        self.told.append(f"{where}; then {following}: {len(self.violations)} violations so far")
        print(self.told[-1], file=sys.stderr, flush=True)
        return after


def seed_of(environment: Optional[str]) -> int:
    return int(environment) if environment else int.from_bytes(os.urandom(4), "big")


@contextmanager
def fleet(prefix: str) -> Iterator[Trial]:
    """Four bare hosts with the daemons 535, 550 and 555, and a copy of mpsctl for looking at them."""
    program = PROJECT / "build/mpsctl"
    subprocess.run([sys.executable, "scripts/build_mpsctl.py", str(program)], cwd=PROJECT, check=True)
    with ExitStack() as stack:
        booted: list[LabHost] = []
        for daemon, count, release in _HOSTS:
            options = ("--hosts", str(count), "--gpus", str(GPUS), "--daemon", daemon, "--release", release)
            booted += stack.enter_context(hosts(f"{prefix}-{daemon}", *options))
        for host in booted:
            host.run(f"mkdir -p {Path(_COPY).parent} && cat >{_COPY}", program.read_bytes())
        yield Trial(booted, prefix)


def prove(trial: Trial, playbook: str, rounds: int) -> None:
    """Interrupt ``rounds`` runs of a playbook; prints the seed, and what it came to.

    The hosts may be as another playbook's proof left them, however it ended.
    """
    seed = seed_of(os.environ.get(SEED))
    print(f"{playbook}: {SEED}={seed} repeats what the dice say", file=sys.stderr, flush=True)
    trial.begin(seed)
    trial.play(SITE, 4096)
    found = trial.probes()
    trial.judge_desired("before", found, 4096)
    trial.play(playbook, 4096)  # tells how long it takes
    if playbook == REMOVE:
        trial.judge_removed("before", trial.probes())
        trial.play(SITE, 4096)
        found = trial.probes()
    for number in range(1, rounds + 1):
        found = trial.round(number, playbook, found)
    kills = ", ".join(f"{kind} {count}" for kind, count in sorted(trial.killed.items()))
    print(
        f"{playbook}: seed {seed}, {rounds} interrupted runs ({kills}), {len(trial.violations)} violations",
        file=sys.stderr,
        flush=True,
    )
    assert not trial.violations, "\n".join(trial.violations)
