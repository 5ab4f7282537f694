"""Runs of the playbooks over lab hosts that are interrupted at a random moment, and what the next run makes of it.

Killed are ansible-playbook with its processes, the server side of one host's ssh connection, or mpsctl on one host,
always by process id, and only processes of this run; or one host reboots, at once or in order. Beside that one host
may be unable to write (interrupted_obstacles.py). The GPUs, the MPS server and the clients are simulated; the daemons,
systemd and ssh are real.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Callable, Iterator, Optional

from . import interrupted_judge as judge
from .conftest import LAB, PROJECT, LabHost, hosts
from .interrupted_obstacles import DISK_MIB, ENDS, OBSTACLES
from .interrupted_plan import ACTING, DRAIN, INSTALL, REMOVE, SITE, Moment, Plan, Planner
from .interrupted_processes import acting, kill, tree, victims

SEED = "MPS_INTERRUPT_SEED"
_HOSTS = (("535", "bookworm"), ("550", "bookworm"), ("555", "trixie"))
_PROBE, _CLIENTS = (
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("interrupted_probe.py", "interrupted_clients.sh")
)
_COPY = "/opt/probe/mpsctl"
_POLL_S = 0.02
_SSH_FAILED, _ATTEMPTS = 255, 30
"""A host may just boot, or another lab command may just be writing the keys of the lab's hosts."""
_LONGEST_S = 300
"""No run of these hosts takes as long; one that hangs is a violation."""
_FAULTS = ("Traceback (most recent call last)", "a fault of mpsctl", "MODULE FAILURE")
"""What no run says, whatever is in its way."""

Probes = dict[str, judge.Found]


@dataclass
class Trial:
    """The hosts, and what was found on them."""

    hosts: list[LabHost]
    prefix: str
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    interrupted: int = 0
    """how many runs something was done to"""
    runs_s: dict[str, float] = field(default_factory=dict)
    """how long the last whole run of each playbook took"""

    # -- on the hosts

    def _everywhere(self, plan: Plan, act: Callable[[LabHost], Any]) -> dict[str, Any]:
        with ThreadPoolExecutor(len(plan.names)) as pool:
            return dict(zip(plan.names, pool.map(lambda name: act(self._of(name)), plan.names)))

    def _ssh(self, host: LabHost, command: str, stdin: str = "") -> str:
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(1)
            done = subprocess.run(
                ["ssh", "-F", host.facts["ssh_config"], "-o", "ConnectTimeout=10", host.name, command],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != _SSH_FAILED:
                break
        assert done.returncode == 0, f"{host.name}: `{command}` ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def probes(self, plan: Plan) -> Probes:
        command = f"python3 - {_COPY} {judge.GPUS}"
        return self._everywhere(plan, lambda host: json.loads(self._ssh(host, command, _PROBE)))

    def _begin_clients(self, plan: Plan) -> None:
        def begin(host: LabHost) -> None:
            words = [f"{instance}={hold}" for instance, hold in plan.clients.get(host.name, {}).items()]
            if words:
                self._ssh(host, f"sh -s begin {' '.join(words)}", _CLIENTS)

        self._everywhere(plan, begin)

    def _tidy(self, plan: Plan) -> None:
        """No obstacle any more, and no client."""
        ends = ENDS if plan.obstacle else ":"
        self._everywhere(plan, lambda host: self._ssh(host, f"{ends}; sh -s end", _CLIENTS))

    def _inside(self, host: LabHost, command: str) -> subprocess.CompletedProcess[str]:
        """Without ssh, which takes its time."""
        entered = ["nsenter", "--target", str(host.facts["leader_pid"]), "--mount", "--pid", "--uts", "--ipc"]
        words = [*entered, "--cgroup", "/bin/sh", "-c", command]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def _await_boot(self, name: str) -> None:
        """As _booted() of the lab has it: a new first process, and systemd with nothing left to start."""
        (number,) = (number for number, host in enumerate(self.hosts) if host.name == name)
        before, end_s = self.hosts[number].facts["leader_pid"], time.monotonic() + _LONGEST_S
        while time.monotonic() < end_s:
            listed = json.loads(subprocess.run([LAB, "list", "--json"], capture_output=True, check=True).stdout)
            facts = next(one for one in listed if one["name"] == name)
            if facts["leader_pid"] not in (None, before):
                self.hosts[number] = LabHost(facts)
                self._ssh(self.hosts[number], "systemctl is-system-running --wait >/dev/null; true")
                return
            time.sleep(0.2)
        raise AssertionError(f"{name} did not boot again")

    # -- runs

    def start(self, playbook: str, plan: Plan, said: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *("ansible-playbook", "-i", "inventories/lab", "-l", ",".join(plan.names)),
                *("-e", json.dumps(plan.variables), playbook),
            ],
            cwd=PROJECT,
            env={
                **os.environ,
                "MPS_LAB_PREFIX": self.prefix,
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _end_of(self, run: subprocess.Popen[bytes], said: Any, what: str) -> tuple[Optional[int], str]:
        """The exit code, None where it hung, and what it said."""
        try:
            run.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            kill(tree(run.pid))
            self.violations.append(f"{what} did not end")
        said.seek(0)
        text = said.read().decode(errors="replace")
        self.violations += [f"{what} said {fault}: {text}" for fault in _FAULTS if fault in text]
        return run.poll(), text

    def play(self, playbook: str, plan: Plan) -> None:
        """A run that nobody disturbs: it has to come to its end."""
        began_s = time.monotonic()
        with TemporaryFile() as said:
            code, text = self._end_of(self.start(playbook, plan, said), said, playbook)
        self.runs_s[playbook] = time.monotonic() - began_s
        if code != 0:
            self.violations.append(f"{playbook} ended with {code}: {text}")

    def interrupt(self, plan: Plan) -> tuple[str, Optional[int]]:
        """Begin a run and interrupt it; what was done to it, and its exit code."""
        did: list[str] = []
        due = [moment for moment in plan.moments if moment.at != 0 or not self._come(plan, moment, 0, 0.0, did)]
        began_s = time.monotonic()
        with TemporaryFile() as said:
            run = self.start(plan.playbook, plan, said)
            run_s = self.runs_s.get(plan.playbook, self.runs_s[SITE])
            seen_s: dict[Moment, float] = {}
            while run.poll() is None and due:
                now_s = time.monotonic() - began_s
                for moment in list(due):
                    if self._is_due(moment, now_s, run_s, seen_s) and self._come(plan, moment, run.pid, now_s, did):
                        due.remove(moment)
                time.sleep(_POLL_S)
            code = self._end_of(run, said, f"{plan.playbook} ({', '.join(did)})")[0]
        self.interrupted += bool(did)
        did += [f"the run had ended before {moment.what}" for moment in due]
        if "rebooted" in " ".join(did):
            self._await_boot(plan.host)
        return ", ".join(did), code

    def _is_due(self, moment: Moment, now_s: float, run_s: float, seen_s: dict[Moment, float]) -> bool:
        if moment.at != ACTING:
            return now_s >= moment.at * run_s
        if moment not in seen_s:
            if not acting(self._of(moment.host)):
                return False
            seen_s[moment] = now_s
        return now_s >= seen_s[moment] + moment.delay_s

    def _of(self, name: str) -> LabHost:
        return next(host for host in self.hosts if host.name == name)

    def _come(self, plan: Plan, moment: Moment, ansible: int, now_s: float, did: list[str]) -> bool:
        """Do what is to be done at this moment; False where it is to be tried again."""
        host, what = self._of(moment.host), moment.what
        if what in OBSTACLES:
            done = self._inside(host, OBSTACLES[what].begin)
            gone = "rebooted" in " ".join(did)
            assert done.returncode == 0 or gone, f"{what} of {host.name}: {done.returncode} {done.stderr}"
            text = f"{what} on {host.name} after {now_s:.2f} s"
        elif what == "reboot":
            self._inside(host, "systemctl reboot" + (" --force --force" if plan.hard else ""))
            text = f"{host.name} rebooted {'at once' if plan.hard else 'in order'} after {now_s:.2f} s"
        else:
            found = victims(what, host, ansible)
            if not found and what != "mpsctl":
                return False
            if not found:  # it ended by itself meanwhile
                return True
            found = [plan.dice.choice(found)] if what == "mpsctl" else found
            kill(found)
            verb = f" ({' '.join(found[0].words[3:5])})" if what == "mpsctl" else ""
            text = f"{what}{verb}{'' if what == 'ansible' else f' of {host.name}'} killed after {now_s:.2f} s"
        did.append(text)
        self.counts[what] += 1
        return True

    def _settle(self, plan: Plan) -> None:
        """Wait for what a run that was killed left at work."""
        end_s = time.monotonic() + _LONGEST_S
        for host in map(self._of, plan.names):
            while acting(host):
                if time.monotonic() > end_s:
                    self.violations.append(f"{host.name}: what was left at work does not end")
                    return
                time.sleep(0.1)

    # -- one round

    def round(self, number: int, plan: Plan, before: Probes) -> Probes:
        """Interrupt a run, and have the next one make it whole; what was found then on its hosts."""
        known = len(self.violations)
        if plan.run == INSTALL:
            self.play(REMOVE, plan)
            before = self.probes(plan)
        self._begin_clients(plan)
        did, code = self.interrupt(plan)
        where = f"round {number} of {plan.run}{plan.told}: {did}"
        if plan.settles:
            self._settle(plan)
        between = self.probes(plan)
        for name, one in between.items():
            expected = judge.Expected(
                (plan.former_mib[name], plan.limit_mib[name]),
                may_be_outside=plan.run in (REMOVE, INSTALL),
                ends_clients=plan.ends_clients or f"{name} rebooted" in did,
            )
            self._add(where, name, judge.between(one, expected))
            apart = "ansible killed" not in did and plan.holds_up_nobody and name not in plan.touched
            if apart or (code == 0 and plan.run != DRAIN):
                mine = judge.removed(one) if plan.run == REMOVE else judge.desired(one, plan.limit_mib[name])
                self._add(f"{where}, {'which was elsewhere' if apart else 'and it ended with 0'}", name, mine)
        self._tidy(plan)
        self.play(plan.following, plan)
        after = self.probes(plan)
        for name, one in between.items():
            on_their_way = plan.playbook == REMOVE
            self._add(where, name, judge.files(before[name], one, None if on_their_way else after[name]))
        if plan.following == REMOVE:
            for name, one in after.items():
                self._add(where, name, judge.removed(one))
            self.play(SITE, plan)
            after = self.probes(plan)
        for name, one in after.items():
            self._add(where, name, judge.desired(one, plan.limit_mib[name]))
        self.tell(known)
        told = f"{where}; it ended with {code}; then {plan.following}: {len(self.violations)} violations so far"
        print(told, file=sys.stderr, flush=True)
        return after

    def tell(self, known: int) -> None:
        """Print the violations beyond those that are known."""
        for violation in self.violations[known:]:
            print(f"VIOLATION: {violation}", file=sys.stderr, flush=True)

    def _add(self, where: str, name: str, found: Iterator[str]) -> None:
        self.violations += [f"{where}: {name}: {one}" for one in found]


def seed_of(environment: Optional[str]) -> int:
    return int(environment) if environment else int.from_bytes(os.urandom(4), "big")


@contextmanager
def fleet(prefix: str) -> Iterator[Trial]:
    """Three bare hosts with the daemons 535, 550 and 555, and a copy of mpsctl for looking at them."""
    program = PROJECT / "build/mpsctl"
    subprocess.run([sys.executable, "scripts/build_mpsctl.py", str(program)], cwd=PROJECT, check=True)
    with ExitStack() as stack:
        booted: list[LabHost] = []
        for daemon, release in _HOSTS:
            options = ("--gpus", str(judge.GPUS), "--daemon", daemon, "--release", release, "--standin-server")
            disk = ("--disk", str(DISK_MIB))
            booted += stack.enter_context(hosts(f"{prefix}-{daemon}", "--hosts", "1", *options, *disk))
        for host in booted:
            host.run(f"mkdir -p {Path(_COPY).parent} && cat >{_COPY}", program.read_bytes())
        yield Trial(booted, prefix)


def prove(trial: Trial, rounds: int, obstacles: bool) -> None:
    """Interrupt ``rounds`` runs, with ``obstacles`` on hosts that cannot write; prints the seed, and what it came to.

    The hosts may be as another proof left them, however it ended.
    """
    seed = seed_of(os.environ.get(SEED))
    over = "over obstacles" if obstacles else "without obstacles"
    print(f"{over}: {SEED}={seed} repeats what the dice say", file=sys.stderr, flush=True)
    trial.violations, trial.counts, trial.interrupted = [], Counter(), 0
    names = [host.name for host in trial.hosts]
    planner = Planner(random.Random(seed), names, tuple(OBSTACLES) if obstacles else ())
    first = planner.whole()
    trial.play(SITE, first)
    found = trial.probes(first)
    for name, one in found.items():
        trial._add("before", name, judge.desired(one, first.limit_mib[name]))
    trial.tell(0)
    number = 0
    while trial.interrupted < rounds:
        number += 1
        found.update(trial.round(number, planner.draw(), found))
    done = ", ".join(f"{what} {count}" for what, count in sorted(trial.counts.items()) if count)
    runs = ", ".join(f"{playbook} {count}" for playbook, count in sorted(planner.runs.items()))
    counted = f"{trial.interrupted} interrupted runs of {number} ({runs}; {done})"
    print(f"{over}: seed {seed}, {counted}, {len(trial.violations)} violations", file=sys.stderr, flush=True)
    assert not trial.violations, "\n".join(trial.violations)
