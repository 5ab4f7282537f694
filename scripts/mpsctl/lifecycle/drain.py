"""No new client, and a bounded wait for those that are connected: `mpsctl drain`, a stop, and a restart by consent.

The front door is closed first, so whoever is found from then on was connected before. A client that is just being accepted,
or waits behind another user's, is in no list for a moment: nobody is taken for gone at one look.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import pipe, procfs
from mpsctl.adapters.control_daemon import Bounded, Daemon, NotServed, Unreachable
from mpsctl.checks import words
from mpsctl.lifecycle import apply, terminate
from mpsctl.lifecycle.terminate import Ended
from mpsctl.model import daemon_environment, duration
from mpsctl.model.errors import NotReady
from mpsctl.model.instance import Instance
from mpsctl.observe import clients as proofs
from mpsctl.observe.facts import ClientFacts, GpuFacts
from mpsctl.store import configuration, drains
from mpsctl.store.world import World

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
"""The daemon writes four lines to the journal for each command that it is asked."""
_LOOKS = 2
_LAST_LOOK_S = 10
_SHOWN = 4


@dataclass
class Drained:
    """What became of a drain. ``left`` are clients that are still connected, each with its server's pid; ``unknown``
    says why that cannot be told; ``ended`` what was done to those that were to be ended."""

    instance: str
    since: str
    left: list[tuple[int, ClientFacts]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    unknown: Optional[str] = None
    progress: list[str] = field(default_factory=list)
    was_open: Optional[Path] = None
    """the daemon's own directory, where the front door before it was open"""

    @property
    def empty(self) -> bool:
        return not self.left and self.unknown is None

    def as_json(self, now_s: float) -> dict[str, Any]:
        left = [
            {**asdict(client), "server": server, "age_s": procfs.age_s(client.started_at, now_s)}
            for server, client in self.left
        ]
        ended = [one.as_json() for one in self.ended]
        return {
            "instance": self.instance,
            "since": self.since,
            "drained": self.empty,
            "left": left,
            "ended": ended,
            "unknown": self.unknown,
        }


def drain(
    world: World, instances: Sequence[Instance], timeout_s: float, end_clients: bool = False, of_this_run: bool = False
) -> list[Drained]:
    """Let no new client into the instances and wait for the connected ones, within one bound for all of them.

    With ``end_clients`` those that are left then are ended. ``of_this_run`` marks the instances for as long as this
    process lives, else they stay closed until ``undrain``. Their daemons stay up.
    """
    shown = world.systemd.show([instance.unit for instance in instances])
    main_pids = [int(shown.get(instance.unit, {}).get("MainPID") or 0) for instance in instances]
    drained = [Drained(one.name, "", was_open=_open_door(pid)) for one, pid in zip(instances, main_pids)]
    try:
        daemons = []
        for instance, found, main_pid in zip(instances, drained, main_pids):
            found.since = drains.mark(world, instance.name, of_this_run).since
            daemons.append(_close(world, instance, main_pid))
        end_s = world.now_s() + timeout_s
        for found, daemon in zip(drained, daemons):
            if daemon is not None:
                _wait(world, found, daemon, end_s)
        for found, daemon in zip(drained, daemons):
            if end_clients and daemon is not None and found.left:
                _end(world, found, daemon)
    except BaseException:
        if of_this_run:
            for found in drained:
                give_up(world, found)
        raise
    return drained


def _open_door(main_pid: int) -> Optional[Path]:
    running = daemon_environment.of_process(procfs.environment(main_pid)) if main_pid else None
    if running is None or pipe.behind_door(running.pipe_directory.parent) != running.pipe_directory:
        return None
    return running.pipe_directory


def _close(world: World, instance: Instance, main_pid: int) -> Optional[Daemon]:
    """Close the front door; the daemon behind it, or None where none runs."""
    close_doors(instance, main_pid)
    if not main_pid or not procfs.alive(main_pid):
        return None
    return terminate.running_daemon(world, instance, main_pid)


def close_doors(instance: Instance, main_pid: int) -> None:
    """Let no new client find the daemon; the instance's file may name another directory by now than it serves."""
    pipe.close_door(Path(instance.pipe_directory))
    running = daemon_environment.of_process(procfs.environment(main_pid)) if main_pid else None
    if running is not None:
        pipe.close_door(running.pipe_directory.parent)


def _wait(world: World, found: Drained, daemon: Daemon, end_s: float) -> None:
    def say(text: str) -> None:
        found.progress.append(text)
        world.say(f"{found.instance}: {text}")

    try:
        found.left = wait(world, daemon, end_s, say)
    except NotReady as error:
        found.unknown = str(error)


def wait(
    world: World, daemon: Daemon, end_s: float, say: Callable[[str], None], looks: int = _LOOKS
) -> list[tuple[int, ClientFacts]]:
    """Wait until ``end_s`` for the last client to leave, which ``looks`` in a row must show; who is left then.

    The front door is closed by now. A daemon that is gone has no clients.

    :raises NotServed: if the daemon did not answer at the last look.
    """
    pause_s, empty = _FIRST_PAUSE_S, 0
    before: Optional[list[int]] = None
    while True:
        left: list[tuple[int, ClientFacts]] = []
        unanswered: Optional[NotServed] = None
        try:
            left = connected(world, Bounded(daemon, world.now_s, max(end_s, world.now_s() + 1)))
        except Unreachable:
            return []
        except NotServed as error:
            unanswered = error
        if unanswered is None:
            empty = 0 if left else empty + 1
            pids = [client.pid for _, client in left]
            if pids != before and (left or before):
                say(told(left, world.now_s()))
            before = pids
            if empty >= looks:
                return []
        if world.now_s() >= end_s:
            if unanswered is not None:
                raise unanswered
            return left
        world.sleep_s(min(pause_s, max(end_s - world.now_s(), 0.01)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def connected(world: World, daemon: Daemon) -> list[tuple[int, ClientFacts]]:
    """The clients of a daemon that answers, each with its server's pid, by /proc alone."""
    return [
        (server.pid, client)
        for server in control.servers(daemon)
        for client in proofs.look(control.clients(daemon, server.pid), None, (), (), GpuFacts())
    ]


def told(left: Sequence[tuple[int, ClientFacts]], now_s: float) -> str:
    """Who is left, on one line."""
    if not left:
        return "no client is left"
    who = [
        f"{words.client(client)}, {duration.text(procfs.age_s(client.started_at, now_s))} old"
        for _, client in left[:_SHOWN]
    ]
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f"{len(left)} client{'s' if len(left) > 1 else ''} left: {'; '.join(who)}{more}"


def _end(world: World, found: Drained, daemon: Daemon) -> None:
    found.ended = terminate.end(world, daemon, found.left)
    for one in found.ended:
        said = "; ".join(one.steps) or "nothing was done"
        found.progress.append(f"{words.client(one.client)}: {said}" + (f"; {one.problem}" if one.problem else ""))
        world.say(f"{found.instance}: {found.progress[-1]}")
    try:
        found.left = connected(world, Bounded(daemon, world.now_s, world.now_s() + _LAST_LOOK_S))
    except Unreachable:
        found.left = []
    except NotReady as error:
        found.unknown = str(error)


def undrain(world: World, name: str) -> list[str]:
    """Let clients in again, through ``apply``: with every limit in force and read back; what was changed.

    Where no daemon runs, the next start lets them in.

    :raises MpsctlError: as ``apply``; the front door is closed then, and the instance no longer counts as drained.
    """
    instance = configuration.load(world, name)
    drains.forget(world, name)
    main_pid = int(world.systemd.show([instance.unit]).get(instance.unit, {}).get("MainPID") or 0)
    return apply.apply(world, name, main_pid) if main_pid else []


def give_up(world: World, found: Drained) -> None:
    """Let clients in again to whom this run closed the front door, as it was; an operator's drain stays."""
    drains.forget_of_this_run(world, found.instance)
    if found.was_open is not None and drains.read(world, found.instance) is None and found.was_open.is_dir():
        pipe.open_door(found.was_open.parent, found.was_open)
