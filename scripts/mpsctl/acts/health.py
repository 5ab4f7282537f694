"""A look at every active instance in bounded time, for a timer; and what becomes of clients that escaped.

Nothing is restarted or set here. The one thing that may be done, and only where the instance's file says so,
is to have the daemon end a client that shook off its limit, once it has been seen so for the grace time. Its
process gets no signal: `acts/terminate.py` says what it sees.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from mpsctl.acts import terminate
from mpsctl.outside.daemon import Bounded, Daemon
from mpsctl.proofs import status as proofs
from mpsctl.proofs.clients import Client
from mpsctl.proofs.status import ServerStatus, Status
from mpsctl.state import configuration, escapes
from mpsctl.state.escapes import Escape
from mpsctl.state.world import World
from mpsctl.values.errors import BadValue
from mpsctl.values.instance import TERMINATE, Instance

INSTANCE_BOUND_S = 5
BOUND_S = 45
"""One daemon that does not answer costs INSTANCE_BOUND_S at most, all of them together BOUND_S."""


@dataclass
class Health:
    """One instance: what is amiss, and what was done about it."""

    instance: str
    findings: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def health(world: World) -> list[Health]:
    """The health of every active instance; those that do not run are `mpsctl status`'s business.

    :raises NotReady: if systemd does not answer.
    """
    instances, found = [], {}
    for name in configuration.names(world):
        try:
            instances.append(configuration.load(world, name))
        except BadValue as error:
            found[name] = Health(name, findings=[str(error)])
    shown = world.systemd.show([instance.unit for instance in instances])
    active = [one for one in instances if shown.get(one.unit, {}).get("ActiveState") == "active"]
    gpus, problem = proofs.host_gpus(world) if active else ([], None)
    end_s = world.now_s() + BOUND_S
    for instance in active:
        hurried = _hurried(world, min(end_s, world.now_s() + INSTANCE_BOUND_S))
        (status,) = proofs.look(hurried, [instance], gpus, problem, shown)
        # A drain is somebody's will, and no alarm.
        found[instance.name] = Health(instance.name, [line for line in status.findings if line != status.drained])
        _look_after_escapes(hurried, instance, status, found[instance.name])
    return [found[name] for name in sorted(found, key=configuration.natural)]


def _hurried(world: World, end_s: float) -> World:
    def daemon(pipe_directory: Path, lock: Optional[Path]) -> Daemon:
        return Bounded(world.daemon(pipe_directory, lock), world.now_s, end_s)

    return replace(world, daemon=daemon)


def _look_after_escapes(world: World, instance: Instance, status: Status, health_: Health) -> None:
    if not status.daemon_answers:
        return  # who is connected is not known: nothing is forgotten
    before = escapes.read(world, instance.name)
    kept = []
    for server in status.servers:
        for client in server.clients:
            if not client.escaped:
                continue
            known = before.get(client.pid)
            if known is None or known.started_at != client.started_at:
                known = Escape(client.pid, client.started_at, world.now_s())
            if instance.escaped_clients == TERMINATE and not known.terminated:
                known = _after_grace(world, instance, status, server, client, known, health_)
            kept.append(known)
    escapes.remember(world, instance.name, kept)


def _after_grace(
    world: World,
    instance: Instance,
    status: Status,
    server: ServerStatus,
    client: Client,
    known: Escape,
    health_: Health,
) -> Escape:
    """End the client if its time is over; what is remembered of it then."""
    left_s = instance.escape_grace_s - (world.now_s() - known.first_seen_s)
    if left_s > 0:
        health_.actions.append(f"{client} will be ended by the daemon in {left_s:.0f} s if it stays")
        return known
    daemon = terminate.running_daemon(world, instance, int(status.unit["main_pid"]))
    (ended,) = terminate.end(world, daemon, [(server.pid, client)], signals=False)
    if ended.problem:
        health_.findings.append(f"{client} could not be ended: {ended.problem}")
    elif ended.taken_off:
        health_.actions.append(f"{client}: {'; '.join(ended.steps)}: {client.escaped}")
    return replace(known, terminated=ended.taken_off)
