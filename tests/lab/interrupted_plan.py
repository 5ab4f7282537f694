"""What the dice say of one interrupted run: which one, under which policy, interrupted by what, where and when."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, TypeVar

from .interrupted_judge import GPUS

SITE, LIMITS, REMOVE = "site.yml", "playbooks/limits.yml", "playbooks/remove.yml"
DRAIN, UNDRAIN = "playbooks/drain.yml", "playbooks/undrain.yml"
INSTALL = "the first site.yml"
"""On hosts from which everything was removed."""
RUNS = (SITE, LIMITS, REMOVE, DRAIN, INSTALL)
KINDS = ("ansible", "sshd", "mpsctl", "reboot")
NOTHING = "nothing"
"""Where there is an obstacle, that alone may be what interrupts."""
REFUSE, WAIT, TERMINATE = "refuse", "wait", "terminate"
START, ACTING = 0.0, -1.0
FIRST_MIB = 4096
_DRAIN_S = _STOP_S = 2
_FOLLOWING = {DRAIN: UNDRAIN, INSTALL: SITE}

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Moment:
    """``what`` happens to ``host``: at START, ``delay_s`` after mpsctl is seen to change the host (ACTING), or at a
    fraction of what the run takes."""

    what: str
    host: str
    at: float
    delay_s: float


@dataclass(frozen=True)
class Plan:
    """``run`` is one of RUNS. ``names`` are its hosts, ``former_mib`` their limits before it, ``limit_mib`` those
    that it brings. ``clients`` has for each host and instance how long its client stays: seconds, or "forever"."""

    run: str
    following: str
    names: tuple[str, ...]
    former_mib: Mapping[str, int]
    limit_mib: Mapping[str, int]
    variables: Mapping[str, Any]
    clients: Mapping[str, Mapping[str, str]]
    moments: tuple[Moment, ...]
    host: str
    hard: bool
    settles: bool
    dice: random.Random
    obstacle: Optional[str] = None

    @property
    def playbook(self) -> str:
        return SITE if self.run == INSTALL else self.run

    @property
    def ends_clients(self) -> bool:
        return self.run != LIMITS and self.variables["mps_on_clients"] == TERMINATE

    @property
    def holds_up_nobody(self) -> bool:
        """Whether what befalls one host, and clients there, are no matter to the others."""
        return self.run in (SITE, REMOVE, INSTALL)

    @property
    def touched(self) -> frozenset[str]:
        """The hosts that something befalls, or that have clients."""
        return frozenset(
            [*(moment.host for moment in self.moments), *(name for name, held in self.clients.items() if held)]
        )

    @property
    def told(self) -> str:
        count = sum(map(len, self.clients.values()))
        policy = f", {self.variables['mps_on_clients']} with {count} clients" if count else ""
        return f" ({len(self.names)} hosts{policy})"


class Planner:
    """Every run, interruption and obstacle comes as often as every other, in an order of the dice."""

    def __init__(self, dice: random.Random, names: Sequence[str], obstacles: Sequence[str]) -> None:
        self._dice, self._names = dice, names
        self._decks: dict[Sequence[str], list[str]] = {}
        self._kinds = (*KINDS, NOTHING) if obstacles else KINDS
        self._obstacles = obstacles
        self._limit_mib = dict.fromkeys(names, FIRST_MIB)
        self._gpus = {name: [str(number) for number in range(GPUS)] for name in names}
        self.runs: Counter[str] = Counter()

    def _next(self, options: Sequence[str]) -> str:
        deck = self._decks.setdefault(options, [])
        if not deck:
            deck += self._dice.sample(options, len(options))
        return deck.pop()

    def whole(self) -> Plan:
        """A run of site.yml on all hosts that nothing interrupts."""
        names, limits, variables = tuple(self._names), dict(self._limit_mib), self._variables(REFUSE)
        return Plan(SITE, SITE, names, limits, limits, variables, {}, (), names[0], False, True, self._dice)

    def _variables(self, policy: str) -> dict[str, Any]:
        instances = {
            name: [{"name": str(number), "gpus": [gpu]} for number, gpu in enumerate(gpus)]
            for name, gpus in self._gpus.items()
        }
        return {
            "trial_limits": {name: f"{limit_mib}M" for name, limit_mib in self._limit_mib.items()},
            "trial_instances": instances,
            "mps_device_memory_limit": "{{ trial_limits[inventory_hostname] }}",
            "mps_instances": "{{ trial_instances[inventory_hostname] }}",
            "mps_on_clients": policy,
            "mps_drain_timeout_s": _DRAIN_S,
            "mps_stop_timeout_s": _STOP_S,
        }

    def draw(self) -> Plan:
        dice = self._dice
        run, kind = self._next(RUNS), self._next(self._kinds)
        self.runs[run] += 1
        obstacle = self._next(self._obstacles) if self._obstacles else None
        names = tuple(dice.sample(self._names, dice.choice((1, 1, 2, len(self._names)))))
        former_mib = dict(self._limit_mib)
        if run != DRAIN:
            self._limit_mib.update(dict.fromkeys(names, dice.randrange(2048, 65536)))
        if run == SITE and dice.random() < 0.6:  # the instances exchange their GPUs, which takes restarts
            self._gpus.update({name: self._gpus[name][::-1] for name in names})
        policy = REFUSE if run in (LIMITS, INSTALL) else dice.choice((REFUSE, WAIT, WAIT, TERMINATE))
        host = dice.choice(names)
        there = host if dice.random() < 0.7 else dice.choice(names)
        moments = [Moment(obstacle, there, self._at((START, ACTING)), self._delay_s())] if obstacle else []
        if kind != NOTHING:
            acting = kind == "mpsctl" or dice.random() < 0.5
            moments.append(Moment(kind, host, ACTING if acting else dice.uniform(0.01, 0.9), self._delay_s()))
        return Plan(
            run=run,
            # A host from which we are being removed may as well be taken back.
            following=SITE if run == REMOVE and dice.random() < 0.3 else _FOLLOWING.get(run, run),
            names=names,
            former_mib=former_mib,
            limit_mib=dict(self._limit_mib),
            variables=self._variables(policy),
            clients={name: self._clients() for name in names if run != INSTALL},
            moments=tuple(moments),
            host=host,
            hard=dice.random() < 0.5,
            settles=run == DRAIN or dice.random() < 0.5,
            dice=random.Random(dice.random()),
            obstacle=obstacle,
        )

    def _at(self, others: tuple[float, ...]) -> float:
        return self._dice.choice((*others, self._dice.uniform(0.01, 0.9)))

    def _delay_s(self) -> float:
        return self._dice.uniform(0, 1.0) ** 2

    def _clients(self) -> dict[str, str]:
        stays = ("forever", f"{self._dice.uniform(0.5, 5):.2f}")
        return {str(number): self._dice.choice(stays) for number in range(GPUS) if self._dice.random() < 0.4}
