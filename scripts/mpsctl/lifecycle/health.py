"""A look at every active instance in bounded time, for a timer; what becomes of clients without their limit and of daemons
that answer nothing.

Two things may be done, and only where the instance's file says so. A client that shook off its limit is ended by
the daemon, once it has been seen so for the grace time; its process gets no signal (`terminate.py` says what it
sees). And a daemon that answered nothing at two looks in a row is ended, for systemd to start it again: its clients are
lost with it (error 806: driver 580, H200), and nobody new could connect anyway.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Mapping, Optional

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import pipe, procfs
from mpsctl.lifecycle import terminate
from mpsctl.model import foreign
from mpsctl.model.checked_values import RESTART, TERMINATE
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance
from mpsctl.observe import status as proofs
from mpsctl.observe.clients import Client
from mpsctl.observe.status import ServerStatus, Status
from mpsctl.store import configuration, limit_bypasses, unresponsive
from mpsctl.store.limit_bypasses import LimitBypass
from mpsctl.store.world import World

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


@dataclass(frozen=True)
class _Foreign:
    """A control daemon that none of our units started. ``devices`` None: it names none, and serves every GPU."""

    pid: int
    directory: str
    devices: Optional[tuple[str, ...]]

    def serves(self, status: Status) -> bool:
        names = {name for gpu in status.gpus for name in (str(gpu["index"]), gpu["uuid"])}
        return bool(status.gpus) and (self.devices is None or not names.isdisjoint(self.devices))

    def on(self, status: Status) -> str:
        return (
            f"another control daemon (pid {self.pid}) serves GPU {', '.join(str(gpu['index']) for gpu in status.gpus)}"
            f" as well, and its clients have no limit of ours; end them, then `echo quit | {pipe.VARIABLE}="
            f"{foreign.pasted(self.directory)} nvidia-cuda-mps-control`"
        )


def _foreign(shown: Mapping[str, Mapping[str, str]]) -> list[_Foreign]:
    ours = {unit.get("MainPID") for unit in shown.values()}
    found = []
    for pid in control.processes(front_ends=False):
        environment = procfs.environment(pid)
        if str(pid) in ours or environment is None:
            continue
        named = environment.get("CUDA_VISIBLE_DEVICES")
        devices = None if named is None else tuple(word.strip() for word in named.split(",") if word.strip())
        found.append(_Foreign(pid, environment.get(pipe.VARIABLE, DEFAULT_PIPE_DIRECTORY), devices))
    return found


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
    foreign = _foreign(shown) if active else []
    end_s = world.now_s() + BOUND_S
    for instance in active:
        whole = end_s - world.now_s() >= INSTANCE_BOUND_S
        pid = int(shown[instance.unit].get("MainPID") or 0)
        hurried = world.hurried(min(end_s, world.now_s() + INSTANCE_BOUND_S), pid)
        (status,) = proofs.look(hurried, [instance], gpus, problem, shown)
        # A drain is somebody's will, and no alarm.
        found[instance.name] = Health(instance.name, [line for line in status.findings if line != status.drained])
        found[instance.name].findings += [one.on(status) for one in foreign if one.serves(status)]
        _look_after_limit_bypasses(hurried, instance, status, found[instance.name])
        if whole:  # else it had no time to answer
            _look_after_unresponsive(world, instance, status, found[instance.name])
    return [found[name] for name in sorted(found, key=configuration.natural)]


def _look_after_unresponsive(world: World, instance: Instance, status: Status, health_: Health) -> None:
    """End a daemon that answered nothing at the last look either, where that is desired."""
    pid = int(status.unit["main_pid"])
    if not status.unresponsive or not procfs.alive(pid):
        unresponsive.forget(world, instance.name)
        return
    # Who holds the one session that a daemon serves at a time makes it look silent, and is not to lose it.
    if procfs.state(pid) != "T" and any(control.processes(front_ends=True)):
        unresponsive.forget(world, instance.name)
        return
    started_at = procfs.started_at(pid)
    if not unresponsive.remembered(world, instance.name, pid, started_at):
        unresponsive.remember(world, instance.name, pid, started_at)
        if instance.unresponsive_daemon == RESTART:
            health_.actions.append(
                f"the control daemon (pid {pid}) will be ended at the next look if it stays unresponsive"
            )
        return
    if instance.unresponsive_daemon != RESTART:
        return
    problem = world.systemd.kill_main(instance.unit)
    if problem:
        health_.findings.append(f"the control daemon (pid {pid}) could not be ended: {problem}")
        return
    unresponsive.forget(world, instance.name)
    health_.actions.append(
        f"the control daemon (pid {pid}) was ended with SIGKILL: it answered nothing at two looks in a row; systemd"
        " starts it again"
    )


def _look_after_limit_bypasses(world: World, instance: Instance, status: Status, health_: Health) -> None:
    if not status.daemon_answers:
        return  # who is connected is not known: nothing is forgotten
    before = limit_bypasses.read(world, instance.name)
    kept = []
    for server in status.servers:
        for client in server.clients:
            if not client.bypassed:
                continue
            known = before.get(client.pid)
            if known is None or known.started_at != client.started_at:
                known = LimitBypass(client.pid, client.started_at, world.now_s())
            if instance.limit_bypass == TERMINATE and not known.terminated:
                known = _after_grace(world, instance, status, server, client, known, health_)
            kept.append(known)
    limit_bypasses.remember(world, instance.name, kept)


def _after_grace(
    world: World,
    instance: Instance,
    status: Status,
    server: ServerStatus,
    client: Client,
    known: LimitBypass,
    health_: Health,
) -> LimitBypass:
    """End the client if its time is over; what is remembered of it then."""
    left_s = instance.limit_bypass_grace_s - (world.now_s() - known.first_seen_s)
    if left_s > 0:
        health_.actions.append(f"{client} will be ended by the daemon in {left_s:.0f} s if it stays")
        return known
    daemon = terminate.running_daemon(world, instance, int(status.unit["main_pid"]))
    (ended,) = terminate.end(world, daemon, [(server.pid, client)], signals=False)
    if ended.problem:
        health_.findings.append(f"{client} could not be ended: {ended.problem}")
    elif ended.taken_off:
        health_.actions.append(f"{client}: {'; '.join(ended.steps)}: {client.bypassed}")
    return replace(known, terminated=ended.taken_off)
