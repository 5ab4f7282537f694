"""The end of a service, a container or a process tree that spares its neighbours: the daemons take its clients off the
GPUs before anybody sends a signal.

A client that gets a signal while its kernel runs, SIGTERM or SIGKILL, takes every other client of its GPU along: error
700 in each, 5 of 5 times (H200, driver 580); taken off by the daemon first, 3 of 3 times all others worked on.

A daemon that is gone has no clients, and one that does not answer is asked no more: no service's stop waits for it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.background import Background
from mpsctl.adapters.control_daemon import Bounded, Daemon
from mpsctl.checks import words
from mpsctl.lifecycle import acts, terminate
from mpsctl.lifecycle.terminate import Ended
from mpsctl.lifecycle.whose_processes import Target
from mpsctl.model.errors import MpsctlError, NotReady
from mpsctl.observe import clients as observed
from mpsctl.observe.asked import unit_of
from mpsctl.observe.facts import ClientFacts, GpuFacts
from mpsctl.store import configuration, last_good
from mpsctl.store.world import World

BOUND_S = 10
"""How long all of it may take by default. A service's own time to stop (TimeoutStopSec, 90 s by default) is longer."""
_ANSWER_S = 3.0
"""Within which a daemon has to answer one look; one that did not is asked no more."""
_LOOKS, _PAUSE_S = 2, 0.1
_LEAST_PASSES = 3
"""Of SIGKILL, on a host that is too busy for its time: the first ends who starts others, the next those."""
_LAST_S = 3.0
"""Of the bound, kept for SIGKILL and what follows it."""
Connected = tuple[int, ClientFacts]


@dataclass
class Evicted:
    """What became of a target. ``taken_off`` are the clients that a daemon ended or that left meanwhile, with their
    instance; ``left`` those that are still connected; ``unknown`` says of an instance why nobody can tell. ``ended``
    are the processes that got a signal, ``alive`` those that it did not end."""

    target: Target
    taken_off: list[tuple[str, Ended]] = field(default_factory=list)
    left: list[tuple[str, ClientFacts]] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    settled: bool = True
    """whether two looks in a row found nobody; else its processes become clients again and again"""
    ended: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    runs: bool = True
    """whether a process of it is there, or a client of it was; a name that is misspelled has none"""
    told: set[int] = field(default_factory=set)
    """of whom a line stands in the journal: one whom the daemon does not take off is tried again and again"""

    def as_json(self) -> dict[str, Any]:
        return {
            "target": str(self.target),
            "taken_off": [{"instance": name, **one.as_json()} for name, one in self.taken_off],
            "left": [{"instance": name, "pid": one.pid, "command": one.command} for name, one in self.left],
            "unknown": self.unknown,
            "settled": self.settled,
            "ended": self.ended,
            "alive": self.alive,
            "runs": self.runs,
        }


@dataclass(frozen=True)
class _Running:
    """An instance whose daemon runs."""

    name: str
    daemon: Daemon
    pid: int


def evict(world: World, target: Target, bound_s: float = BOUND_S, end: bool = False) -> Evicted:
    """Take every client among the target's processes off its GPU, until two looks in a row find none, within a bound.

    With ``end`` its processes get SIGTERM, and SIGKILL in the last 3 seconds of the bound: who is a client, or becomes
    one meanwhile, is taken off first. A client that is left gets no signal, and nobody does where that cannot be told.
    """
    found = Evicted(target)
    end_s = world.now_s() + bound_s
    running = _running(world, found)
    if not end:
        _take_off(world, found, running, end_s)
    elif not found.unknown:
        _end(world, found, running, end_s)
    found.runs = bool(found.taken_off or found.left or found.ended or _members(target))
    return found


def _running(world: World, found: Evicted) -> list[_Running]:
    """The instances whose daemons run."""
    names = configuration.names(world)
    shown = world.systemd.show([unit_of(name) for name in names])
    running = []
    for name in names:
        pid = int(shown.get(unit_of(name), {}).get("MainPID") or 0)
        if not pid or not procfs.alive(pid):
            continue
        try:
            daemon = terminate.running_daemon(world, last_good.load(world, name), pid)
        except MpsctlError as error:
            found.unknown[name] = str(error)
            continue
        running.append(_Running(name, daemon, pid))
    return running


def _take_off(world: World, found: Evicted, running: list[_Running], end_s: float) -> None:
    """Look, and take off whom the look found, until two looks in a row find nobody."""
    empty = 0
    while running:
        empty = 0 if _pass(world, found, running, end_s) else empty + 1
        found.settled = empty >= _LOOKS
        if found.settled or world.now_s() >= end_s:
            return
        world.sleep_s(_PAUSE_S)


def _pass(world: World, found: Evicted, running: list[_Running], end_s: float) -> bool:
    """One look, and whom it found taken off; whether it found somebody."""
    seen = _look(world, found, running, end_s)
    found.left = [(one.name, client) for one, every in seen for _, client in every]
    somebody = bool(found.left)
    for one, every in seen:
        if every:
            _take_off_one(world, found, one, every)
    return somebody


def _look(
    world: World, found: Evicted, running: list[_Running], end_s: float
) -> list[tuple[_Running, list[Connected]]]:
    """Who of the target is connected to each instance, all asked at once. Those that do not answer leave the list."""
    look_end_s = min(max(end_s, world.now_s() + _PAUSE_S), world.now_s() + _ANSWER_S)
    done = {pid for _, one in found.taken_off for pid in [one.pid] if one.taken_off}
    calls = [
        (one, Background(partial(_connected, Bounded(one.daemon, world.now_s, look_end_s, one.pid), found.target)))
        for one in running
    ]
    seen = []
    for one, call in calls:
        try:
            every = call.result(_ANSWER_S + _PAUSE_S)
            # Who was taken off has no context any more; some daemons list it until it ends.
            seen.append((one, [each for each in every if each[1].pid not in done]))
        except (NotReady, TimeoutError) as error:
            running.remove(one)
            if procfs.alive(one.pid):
                found.unknown[one.name] = str(error) or "the control daemon did not answer in time"
    return seen


def _connected(daemon: Daemon, target: Target) -> list[Connected]:
    """The clients of a daemon that are the target's, each with its server's pid."""
    return [
        (server.pid, client)
        for server in control.servers(daemon)
        for pid in control.clients(daemon, server.pid)
        if target.has(pid)
        for client in observed.look([pid], None, (), (), GpuFacts())
    ]


def _take_off_one(world: World, found: Evicted, one: _Running, every: Sequence[Connected]) -> None:
    for ended in terminate.end(world, one.daemon, every, signals=False, daemon_bound_s=_ANSWER_S):
        if ended.taken_off or ended.left:
            found.taken_off.append((one.name, ended))
            found.left = [each for each in found.left if each[1].pid != ended.pid]
        if ended.problem is not None and ended.pid in found.told:
            continue
        found.told.add(ended.pid)
        said = "; ".join(ended.steps) or ended.problem
        acts.tell(world, acts.END_CLIENT, f"{words.client(ended.client)}: {said}", one.name, f"evict {found.target}")


def _end(world: World, found: Evicted, running: list[_Running], end_s: float) -> None:
    """Signals for all processes of the target: each gets one only after a look that did not show it as a client, or
    after it was taken off.

    SIGTERM goes to each once, also to one that comes later. SIGKILL goes to all that are there, again until nobody is:
    one that is killed may have started another a moment before.
    """
    known: dict[int, int] = {}
    for number, until_s in ((signal.SIGTERM, end_s - _LAST_S), (signal.SIGKILL, end_s)):
        for passes in count(1):
            _pass(world, found, running, until_s)
            if found.unknown:
                return
            clients = {client.pid for _, client in found.left}
            members = {pid: at for pid, at in _members(found.target).items() if pid not in clients}
            if not members and not clients:
                break
            for pid, started_at in members.items():
                if (number == signal.SIGKILL or pid not in known) and _send(pid, started_at, number):
                    known[pid] = started_at
            if world.now_s() >= until_s and (number == signal.SIGTERM or passes >= _LEAST_PASSES):
                break
            world.sleep_s(_PAUSE_S)
    found.ended = [pid for pid, at in known.items() if not procfs.lives(pid, at)]
    found.alive = sorted(_members(found.target))


def _send(pid: int, started_at: int, number: signal.Signals) -> bool:
    try:
        return procfs.send(pid, started_at, number)
    except OSError:
        return False


def _members(target: Target) -> dict[int, int]:
    """The target's processes with the times of their starts, without this one, what it started and what started it."""
    mine = {*procfs.tree(os.getpid()), *_ancestors(os.getpid())}
    found: dict[int, Optional[int]] = {
        pid: procfs.started_at(pid) for pid in procfs.pids() if pid not in mine and target.has(pid)
    }
    return {pid: at for pid, at in found.items() if at is not None and procfs.alive(pid)}


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1 and pid not in found:
        found.append(pid)
        pid = procfs.parent(pid)
    return found
