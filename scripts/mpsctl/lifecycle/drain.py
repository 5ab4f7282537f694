"""No new client, and a bounded wait for those that are connected: `mpsctl drain`, a stop, and a restart by consent.

The front door is closed first, so whoever is found from then on was connected before. A client that is just being
accepted, or waits behind another user's, is in no list for a moment: nobody is taken for gone at one look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Bounded, Daemon, NotServed, Unreachable
from mpsctl.checks import words
from mpsctl.lifecycle import acts, admit, apply, terminate
from mpsctl.lifecycle.terminate import Ended
from mpsctl.model import duration
from mpsctl.model.errors import MpsctlError, NotInForce, NotReady
from mpsctl.model.instance import Instance
from mpsctl.observe import clients as observed
from mpsctl.observe.facts import ClientFacts, GpuFacts
from mpsctl.store import drains, last_good
from mpsctl.store.admission import Admission
from mpsctl.store.world import World


class StillClosed(NotInForce):
    """An instance is no longer drained, and lets nobody in all the same."""

    def __init__(self, name: str, unit: str, why: MpsctlError) -> None:
        super().__init__(
            f"{name} is no longer drained, and lets nobody in yet: {why}; `systemctl reload {unit}` does, once that is"
            " mended, and so does the next start"
        )
        self.exit_code = why.exit_code


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
"""The daemon writes four lines to the journal for each command that it is asked."""
_LOOKS = 2
_LEAST_LOOK_S, _LAST_LOOK_S = 1, 10
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
    before: Optional[Admission] = None
    """what the front door was told before"""

    @property
    def empty(self) -> bool:
        return not self.left and self.unknown is None

    def as_json(self, now_s: float) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "since": self.since,
            "drained": self.empty,
            "left": [{**described(client, now_s), "server": server} for server, client in self.left],
            "ended": [one.as_json() for one in self.ended],
            "unknown": self.unknown,
        }


def described(client: ClientFacts, now_s: float) -> dict[str, Any]:
    """A client in the way, as JSON has it; its age is in seconds."""
    return {
        "pid": client.pid,
        "uid": client.uid,
        "user": client.user,
        "command": client.command,
        "container": client.container,
        "age_s": procfs.age_s(client.started_at, now_s),
    }


def drain(
    world: World,
    instances: Sequence[Instance],
    timeout_s: float,
    end_clients: bool = False,
    of_this_run: bool = False,
    why: Optional[Mapping[str, str]] = None,
    refuse: bool = False,
) -> list[Drained]:
    """Let no new client into the instances and wait for the connected ones, within one bound for all of them.

    With ``end_clients`` those that are left then are ended. ``of_this_run`` marks the instances for as long as this
    process lives, else they stay closed until ``undrain``. ``why`` is what each is drained for, by its name. Clients
    that come wait at the front door, or with ``refuse`` are refused at once. The daemons stay up.
    """
    reasons = why or {}
    main_pids = _main_pids(world, instances)
    drained = [Drained(one.name, "") for one in instances]
    try:
        daemons = []
        for instance, found, main_pid in zip(instances, drained, main_pids):
            found.since = drains.mark(world, instance.name, of_this_run, reasons.get(instance.name, ""), refuse).since
            found.before = admit.close_for_drain(world, instance.name, of_this_run)
            what = "drained: new clients are refused" if refuse else "drained: new clients wait"
            acts.tell(world, acts.DRAIN, what, instance.name, reasons.get(instance.name, ""))
            daemons.append(_daemon(world, instance, main_pid))
        end_s = world.now_s() + timeout_s
        for found, daemon, main_pid in zip(drained, daemons, main_pids):
            if daemon is not None:
                _wait(world, found, daemon, end_s, main_pid)
        for found, daemon, main_pid in zip(drained, daemons, main_pids):
            if end_clients and daemon is not None and found.left:
                _end(world, found, daemon, main_pid)
    except BaseException:
        if of_this_run:
            for found in drained:
                give_up(world, found)
        raise
    return drained


def close_where_empty(world: World, instances: Sequence[Instance]) -> list[Drained]:
    """Close the front doors of instances that are about to end; where somebody is connected all the same, or that
    cannot be told, the door is opened again and nobody is waited for."""
    main_pids = _main_pids(world, instances)
    drained = [Drained(one.name, "") for one in instances]
    try:
        for instance, found, main_pid in zip(instances, drained, main_pids):
            found.before = admit.close_for_end(world, instance.name, refuse=False, for_run=True)
            daemon = _daemon(world, instance, main_pid)
            if daemon is not None:
                _look_twice(world, found, daemon, main_pid)
    except BaseException:
        for found in drained:
            give_up(world, found)
        raise
    for found in drained:
        if not found.empty:
            give_up(world, found)
    return drained


def _look_twice(world: World, found: Drained, daemon: Daemon, main_pid: int) -> None:
    bounded = Bounded(daemon, world.now_s, world.now_s() + _LAST_LOOK_S, main_pid)
    try:
        for look in range(_LOOKS):
            if look:
                world.sleep_s(_FIRST_PAUSE_S)
            found.left = connected(bounded)
            if found.left:
                return
    except NotReady as error:  # a daemon that is gone has no clients
        found.unknown = str(error) if procfs.alive(main_pid) else None


def _main_pids(world: World, instances: Sequence[Instance]) -> list[int]:
    shown = world.systemd.show([instance.unit for instance in instances])
    return [int(shown.get(instance.unit, {}).get("MainPID") or 0) for instance in instances]


def _daemon(world: World, instance: Instance, main_pid: int) -> Optional[Daemon]:
    """The daemon of an instance, or None where none runs."""
    if not main_pid or not procfs.alive(main_pid):
        return None
    return terminate.running_daemon(world, instance, main_pid)


def _wait(world: World, found: Drained, daemon: Daemon, end_s: float, main_pid: int) -> None:
    def say(text: str) -> None:
        found.progress.append(text)
        world.say(f"{found.instance}: {text}")

    try:
        found.left = wait(world, daemon, end_s, say, main_pid=main_pid)
    except NotReady as error:
        found.unknown = str(error)


def wait(
    world: World,
    daemon: Daemon,
    end_s: float,
    say: Callable[[str], None],
    looks: int = _LOOKS,
    main_pid: Optional[int] = None,
) -> list[tuple[int, ClientFacts]]:
    """Wait until ``end_s`` for the last client to leave, which ``looks`` in a row must show; who is left then.

    The front door is closed by now. A daemon that is gone has no clients; one whose process ``main_pid`` lives while
    nothing listens on its socket may have some, and nobody can count them.

    :raises NotReady: if the daemon did not answer at the last look.
    """
    pause_s, empty = _FIRST_PAUSE_S, 0
    before: Optional[list[int]] = None
    while True:
        left: list[tuple[int, ClientFacts]] = []
        unanswered: Optional[NotReady] = None
        try:
            look_end_s = max(end_s, world.now_s() + _LEAST_LOOK_S)
            left = connected(Bounded(daemon, world.now_s, look_end_s, main_pid or 0))
        except Unreachable as error:
            if main_pid is None or not procfs.alive(main_pid):
                return []
            unanswered = error
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


def connected(daemon: Daemon) -> list[tuple[int, ClientFacts]]:
    """The clients of a daemon that answers, each with its server's pid, by /proc alone."""
    return [
        (server.pid, client)
        for server in control.servers(daemon)
        for client in observed.look(control.clients(daemon, server.pid), None, (), (), GpuFacts())
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
    return f"{words.number(len(left), 'client')} left: {'; '.join(who)}{more}"


def _end(world: World, found: Drained, daemon: Daemon, main_pid: int) -> None:
    found.ended = terminate.end(world, daemon, found.left)
    for one in found.ended:
        said = "; ".join(one.steps) or "nothing was done"
        found.progress.append(f"{words.client(one.client)}: {said}" + (f"; {one.problem}" if one.problem else ""))
        world.say(f"{found.instance}: {found.progress[-1]}")
        acts.tell(world, acts.END_CLIENT, found.progress[-1], found.instance)
    try:
        found.left = connected(Bounded(daemon, world.now_s, world.now_s() + _LAST_LOOK_S))
    except NotReady as error:
        found.left, found.unknown = [], str(error) if procfs.alive(main_pid) else None


def undrain(world: World, name: str) -> list[str]:
    """Let clients in again, through ``apply``: with every limit in force and read back; what was changed.

    Where no daemon runs, the next start lets them in. Where its file is damaged, the last good desired state holds.

    :raises MpsctlError: as ``apply``; the front door is closed then, and the instance no longer counts as drained: the
        text says what lets clients in.
    """
    instance = last_good.load(world, name)
    if drains.forget(world, name):
        acts.tell(world, acts.UNDRAIN, "no longer drained", name)
    main_pid = int(world.systemd.show([instance.unit]).get(instance.unit, {}).get("MainPID") or 0)
    try:
        return apply.apply(world, name, main_pid, instance) if main_pid else []
    except MpsctlError as error:
        if procfs.alive(main_pid):
            raise StillClosed(name, instance.unit, error) from None
        return []  # the next start lets them in


def give_up(world: World, found: Drained) -> None:
    """Let clients in again to whom this run closed the front door, as it was; an operator's drain stays."""
    drains.forget_of_this_run(world, found.instance)
    admit.reopen(world, found.instance, found.before)
