"""A look at every instance in bounded time, for a timer.

It opens what a run that was killed left closed. And it does two things only where the instance's file says so. It has
the daemon end a client that dropped its limit, once the client was seen so for the grace time; the process gets no
signal (`terminate.py` says what it sees). And it ends a daemon that answered nothing at two looks in a row, so that
systemd starts it again: the daemon's clients are lost with it (error 806: driver 580, H200), and nobody new could
connect anyway.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from mpsctl.adapters import locks, procfs
from mpsctl.checks import words
from mpsctl.checks.judgement import HEALTH
from mpsctl.checks.report import Report, report
from mpsctl.lifecycle import acts, admit, host_lock, terminate
from mpsctl.model.checked_values import RESTART, TERMINATE
from mpsctl.model.errors import MpsctlError
from mpsctl.model.instance import Instance
from mpsctl.observe import facts
from mpsctl.observe.asked import Asked
from mpsctl.observe.facts import ClientFacts, GpuFacts, InstanceFacts, ServerFacts
from mpsctl.observe.host import look
from mpsctl.store import limit_bypasses, open_log, record, unresponsive
from mpsctl.store.limit_bypasses import LimitBypass
from mpsctl.store.world import World

INSTANCE_TIMEOUT_S = 20.0
"""What one instance may take. All are looked at at once, each daemon has 5 s for all questions, NVML 20 s: so a look
ends within 45 s, whatever hangs."""

(
    OPENED,
    CLIENT_WILL_BE_ENDED,
    CLIENT_ENDED,
    CLIENT_NOT_ENDED,
    DAEMON_WILL_BE_ENDED,
    DAEMON_ENDED,
    DAEMON_NOT_ENDED,
) = (
    "opened",
    "client-will-be-ended",
    "client-ended",
    "client-not-ended",
    "daemon-will-be-ended",
    "daemon-ended",
    "daemon-not-ended",
)


@dataclass(frozen=True)
class Action:
    """What was done, will be done at a later look, or did not work: one of the words above, on which process, and a
    line."""

    kind: str
    pid: int
    line: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Health:
    """What was found and judged, and what was done about it, by instance."""

    report: Report
    actions: dict[str, list[Action]] = field(default_factory=dict)


def health(world: World, begun: Optional[Asked] = None) -> Health:
    """Look at every instance that has a file, judge it, and act where its file says so. Raises nothing.

    ``begun`` is what the caller began to ask.
    """
    opened = _open_what_a_run_left_closed(world)
    host = look(world, isolated=True, begun=begun, instance_timeout_s=INSTANCE_TIMEOUT_S)
    done = Health(report(host, HEALTH))
    for name, found in host.instances.items():
        if found.desired is None or not found.pid:
            continue
        if found.log_trusted is False:
            open_log.note(world, name, found.pid, procfs.started_at(found.pid))
        _forget_what_is_disproved(world, found)
        line = "clients are let in again: the run that closed the instance, to restart or remove it, was killed"
        actions = [Action(OPENED, found.pid, line)] if name in opened else []
        actions += _look_after_limit_bypasses(world, found.desired, found)
        actions += _look_after_daemon(world, found.desired, found, host.gpus)
        if actions:
            done.actions[name] = actions
    return done


def _open_what_a_run_left_closed(world: World) -> list[str]:
    """Without a front door nobody notices that a run was killed: what it closed stays closed, and clients run outside
    MPS there. The instances that were opened."""
    try:
        closed = any(admit.is_left_closed(world, name) for name in record.instances(world))
        if closed and not locks.is_taken(world.places.host_lock):
            with host_lock.taken(world, wait=False) as opened:
                return opened
    except (MpsctlError, OSError):  # a run has just begun, or what keeps it closed is told by a check
        pass
    return []


def _forget_what_is_disproved(world: World, found: InstanceFacts) -> None:
    """A default that was set by hand, as the daemon's log says, ends what our record proves: later looks read less.
    That we set limits stays on record (0 is none that is ever desired): a null takes back what stands there instead."""
    known = record.read(world, found.name, found.pid)
    said = [value.desired for value in found.values if value.desired.said_bytes is not None]
    if known is None or all(one.said_bytes == one.desired_bytes for one in said):
        return
    disproved = replace(known, limits_mib=tuple(None if mib is None else 0 for mib in known.limits_mib))
    if disproved != known:
        record.write(world, found.name, disproved)


def _look_after_daemon(world: World, desired: Instance, found: InstanceFacts, gpus: GpuFacts) -> list[Action]:
    """End a daemon that answered nothing at the last look either, where that is desired; a jammed one at once, whatever
    is desired, where nobody can be hurt."""
    pid = found.pid
    # Who holds the one session that a daemon serves at a time makes it look unresponsive, and is not to lose it.
    held = found.answer.kind != facts.STOPPED and found.answer.held
    if not found.unresponsive or held:
        unresponsive.forget(world, found.name)
        return []
    started_at = procfs.started_at(pid)
    wanted = desired.unresponsive_daemon == RESTART
    if _is_noted(found) and _nobody_is_hurt(found, gpus):
        why = "the front door found it jammed, NVML lists no client, and nobody who was let in is alive"
        return [_end_daemon(world, desired, pid, why)]
    untold = found.answer.holders_untold if found.answer.kind == facts.NOT_SERVED else ""
    if untold:
        unresponsive.forget(world, found.name)
        line = f"the control daemon (pid {pid}) is left alone: who holds its session cannot be told: {untold}"
        return [Action(DAEMON_NOT_ENDED, pid, line)] if wanted else []
    if not unresponsive.remembered(world, found.name, pid, started_at):
        unresponsive.remember(world, found.name, pid, started_at)
        line = f"the control daemon (pid {pid}) will be ended at the next look if it stays unresponsive"
        return [Action(DAEMON_WILL_BE_ENDED, pid, line)] if wanted else []
    if not wanted:
        return []
    return [_end_daemon(world, desired, pid, "it answered nothing at two looks in a row")]


def _end_daemon(world: World, desired: Instance, pid: int, why: str) -> Action:
    problem = world.systemd.kill_main(desired.unit)
    if problem:
        return Action(DAEMON_NOT_ENDED, pid, f"the control daemon (pid {pid}) could not be ended: {problem}")
    unresponsive.forget(world, desired.name)
    line = f"the control daemon (pid {pid}) was ended with SIGKILL: {why}; systemd starts it again"
    acts.tell(world, acts.END_DAEMON, f"control daemon (pid {pid}) ended with SIGKILL", desired.name, why)
    return Action(DAEMON_ENDED, pid, line)


def _is_noted(found: InstanceFacts) -> bool:
    """Whether the front door found this daemon jammed: it has let nobody in since. One that this look alone takes for
    jammed may let clients in by now."""
    noted = found.door.notes.jammed if found.door is not None else None
    if noted is None or noted.daemon_pid != found.pid:
        return False
    return found.jammed and procfs.lives(noted.daemon_pid, noted.daemon_started_at)


def _nobody_is_hurt(found: InstanceFacts, gpus: GpuFacts) -> bool:
    """Whether it is certain that a daemon has no client: NVML tells all of its GPUs' clients, which are none, and of
    those whom the front door let in to it nobody lives. Without a front door nobody counts who is coming, and where its
    notes are not whole somebody may not be counted."""
    if found.door is None or found.serves_public is not None or gpus.unread is not None or not found.devices:
        return False
    notes = found.door.notes
    listed = [gpus.clients.get(device.uuid) for device in found.devices]
    came_in = not notes.whole or any(one.daemon_pid == found.pid for one in notes.let_in)
    return all(pids is not None and not pids for pids in listed) and not came_in


def _look_after_limit_bypasses(world: World, desired: Instance, found: InstanceFacts) -> list[Action]:
    if not found.answer.complete:
        return []  # who is connected is not known: nothing is forgotten
    before = limit_bypasses.read(world, found.name)
    kept, actions = [], []
    for server in found.servers:
        for client in server.clients:
            if not _dropped_its_limit(client):
                continue
            known = before.get(client.pid)
            if known is None or known.started_at != client.started_at:
                known = LimitBypass(client.pid, client.started_at, world.now_s())
            if desired.limit_bypass == TERMINATE and not known.terminated:
                known, action = _after_grace(world, desired, found, server, client, known)
                actions += [action] if action else []
            kept.append(known)
    limit_bypasses.remember(world, found.name, kept)
    return actions


def _dropped_its_limit(client: ClientFacts) -> bool:
    """Whether it dropped its limit itself, by a variable or by what it holds. One that connected when its server had
    none did nothing."""
    return client.bypass is not None or any(one.limit_mib is not None for one in client.over)


def _after_grace(
    world: World,
    desired: Instance,
    found: InstanceFacts,
    server: ServerFacts,
    client: ClientFacts,
    known: LimitBypass,
) -> tuple[LimitBypass, Optional[Action]]:
    """End the client if its time is over; what is remembered of it then."""
    who = words.client(client)
    left_s = desired.limit_bypass_grace_s - (world.now_s() - known.first_seen_s)
    if left_s > 0:
        line = f"{who} will be ended by the daemon in {left_s:.0f} s if it stays"
        return known, Action(CLIENT_WILL_BE_ENDED, client.pid, line)
    hurried = world.hurried(world.now_s() + terminate.DAEMON_BOUND_S, found.pid)
    daemon = terminate.running_daemon(hurried, desired, found.pid)
    (ended,) = terminate.end(hurried, daemon, [(server.pid, client)], signals=False)
    action = None
    if ended.problem:
        action = Action(CLIENT_NOT_ENDED, client.pid, f"{who} could not be ended: {ended.problem}")
    elif ended.taken_off:
        why = words.without_limit(client)
        action = Action(CLIENT_ENDED, client.pid, f"{who}: {'; '.join(ended.steps)}: {why}")
    return replace(known, terminated=ended.taken_off), action
