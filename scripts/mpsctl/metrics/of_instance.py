"""What a look counted of one instance, as metrics."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import control_groups
from mpsctl.checks.report import Report
from mpsctl.checks.waits import WAITS
from mpsctl.metrics.exposition import Samples
from mpsctl.metrics.families import LEVELS
from mpsctl.model import fit
from mpsctl.model.finding import PERSON, UNKNOWN
from mpsctl.model.shares import ALL
from mpsctl.observe import process_facts
from mpsctl.observe.door_facts import PENDING, UnitFacts
from mpsctl.observe.facts import ClientFacts, GpuFacts, InstanceFacts, ServerFacts, Value
from mpsctl.store import front_door_notes
from mpsctl.store.admission import STATES
from mpsctl.store.desired_values import MEMORY_LIMIT, THREAD_PERCENTAGE

SERVER_STATES = ("active", "fault", "other", "stopped", "untold")
OUTSIDE = (
    process_facts.UNSET,
    process_facts.OTHER_DIRECTORY,
    process_facts.DIRECTORY_ABSENT,
    process_facts.DIRECTORY_CLOSED,
    process_facts.SOCKET_CLOSED,
    process_facts.NOT_IN_GROUP,
    process_facts.NOT_MOUNTED,
    process_facts.OTHER_MOUNT,
    process_facts.NO_SOCKET,
    process_facts.NO_GPU_OF_IT,
    process_facts.STARTED_BEFORE,
    process_facts.HANGS,
    process_facts.CANNOT_LOOK,
    process_facts.ENVIRONMENT_UNREAD,
    process_facts.NOTHING_WRONG,
    process_facts.OF_ANOTHER,
    process_facts.LEFT_OVER,
    process_facts.OF_LEFT_OVER,
)
"""Why a process is none of the instance's clients: what keeps one outside MPS, and whose another one is."""
WAITING = (*WAITS, PENDING)
_MOST_GROUPS = 50
"""Units or containers of one instance that have series of their own; a user can make units without end."""
_OTHERS = "(others)"


def in_bytes(mib: Optional[int]) -> Optional[int]:
    """MiB in bytes, None for what is not told."""
    return None if mib is None else mib << 20


def add(found: Samples, report: Report, name: str, by: Optional[str] = None) -> None:
    """Add what was counted of an instance; ``by`` is what its clients are told apart by."""
    one = report.facts.instances[name]
    found.add("mps_level", LEVELS[report.word(name)], name)
    _judged(found, report, name)
    if one.desired is None or one.unread is not None:
        return
    for device in one.devices:
        found.add("mps_instance_gpu_info", 1, name, device.uuid)
    _daemon(found, one, report.facts.systemd_unread is None)
    _door(found, one)
    _places(found, one)
    _outside(found, one)
    _waiting(found, one)
    if one.answer.complete:
        _servers(found, one)
        _limits(found, one)
        _memory(found, one, report.facts.gpus)
        if by is not None:
            _groups(found, one, report.facts.gpus, by)


def _judged(found: Samples, report: Report, name: str) -> None:
    levels = {one.name: one for one in report.instances[name]}
    pending = levels.get("restart-pending")
    if pending is not None and pending.level != UNKNOWN:
        found.add("mps_restart_pending", int(pending.amiss), name)
    known = all(one.level != UNKNOWN for one in report.instances[name])
    amiss = bool(report.mends(name) - {PERSON})
    found.add("mps_in_desired_state", int(not amiss) if known or amiss else None, name)


def _daemon(found: Samples, one: InstanceFacts, told: bool) -> None:
    if not told:
        return
    up = bool(one.pid) and one.main is not None and one.main.alive
    found.add("mps_daemon_up", int(up), one.name)
    asked = up and (one.answer.complete or one.unresponsive)
    found.add("mps_daemon_answers", int(one.answer.complete) if asked else None, one.name)
    found.add("mps_daemon_restarts_total", one.unit.restarts, one.name)
    found.add("mps_daemon_short_lives", 0 if one.lasts else one.short_lives, one.name)


def _door(found: Samples, one: InstanceFacts) -> None:
    """Of an instance without a front door there is nothing to tell."""
    door, name = one.door, one.name
    found.add("mps_drained", int(one.drain is not None), name)
    if door is None or one.without_door:
        return
    not_told = UnitFacts("").active_state
    if not_told not in (door.unit.active_state, door.service.active_state):
        found.add("mps_front_door_up", int(door.stands), name)
        failed = "failed" in (door.unit.active_state, door.service.active_state)
        found.add("mps_front_door_failed", int(failed), name)
        found.add("mps_front_door_restarts_total", door.service.restarts, name)
    found.choose("mps_front_door_admission", door.admission.state if door.admission else None, STATES, name)
    if not door.notes.counts and door.notes.whole:  # nobody has come since boot
        found.add(_COUNTED[front_door_notes.LET_IN], 0, name)
    for event, reasons in door.notes.counts.items():
        for reason, count in reasons.items() if event in _COUNTED else ():
            found.add(_COUNTED[event], count, name, *([] if event == front_door_notes.LET_IN else [reason]))


_COUNTED: Mapping[str, str] = {
    front_door_notes.LET_IN: "mps_clients_let_in_total",
    front_door_notes.REFUSED: "mps_clients_refused_total",
    front_door_notes.GAVE_UP: "mps_clients_gave_up_total",
    front_door_notes.TURNED_AWAY: "mps_connections_turned_away_total",
}


def _places(found: Samples, one: InstanceFacts) -> None:
    for place in one.room.places if one.room is not None else ():
        if place.name == ALL:
            found.add("mps_clients_places", place.most, one.name)
    for uuid, card in one.cards.items():
        found.add("mps_clients_cap", fit.cap_of(card), one.name, uuid)


def _outside(found: Samples, one: InstanceFacts) -> None:
    """Where NVML lists the processes of every device."""
    if not one.devices or any(device.uuid not in one.processes for device in one.devices):
        return
    reasons = {}
    for processes in one.processes.values():
        for process in processes:
            if process.kind == process_facts.OUTSIDE:
                reasons[process.pid] = process.obstacles[0].kind
            elif process.kind in OUTSIDE:
                reasons[process.pid] = process.kind
    counts = Counter(reasons.values())
    for reason in OUTSIDE:
        found.add("mps_processes_outside", counts[reason], one.name, reason)


def _waiting(found: Samples, one: InstanceFacts) -> None:
    """Who waits at the door is told by its notes, who waits in the daemon's list by the journal."""
    if one.log_unread is not None or one.door is None or not one.pid:
        return
    counts = Counter(each.why if each.why in WAITING else "other" for each in one.waiting)
    for reason in (*WAITING, *(["other"] if counts["other"] else [])):
        found.add("mps_clients_waiting", counts[reason], one.name, reason)
    waited_s = [each.waited_s for each in one.waiting if each.waited_s is not None]
    if waited_s or not one.waiting:
        found.add("mps_clients_waiting_longest_seconds", max(waited_s, default=0), one.name)


def _servers(found: Samples, one: InstanceFacts) -> None:
    counts = Counter(map(_state, one.servers))
    for state in SERVER_STATES:
        found.add("mps_servers", counts[state], one.name, state)
    found.add("mps_clients", len(one.clients), one.name)
    told = one.log_unread is None and one.log_trusted is not False
    unlimited = sum(client.unlimited for client in one.clients)
    found.add("mps_clients_without_limit", unlimited if told or unlimited else None, one.name)


def _state(server: ServerFacts) -> str:
    if server.process_state in ("T", "t"):
        return "stopped"
    if server.state is None:
        return "untold"
    return {"ACTIVE": "active", "FAULT": "fault"}.get(server.state, "other")


def _limits(found: Samples, one: InstanceFacts) -> None:
    for ordinal, device in enumerate(one.devices if one.serves == tuple(d.uuid for d in one.devices) else ()):
        values = [
            value
            for value in one.every_value
            if value.desired.kind == MEMORY_LIMIT and value.desired.ordinal == ordinal and value.desired.desired_bytes
        ]
        if values:
            found.add("mps_limit_desired_bytes", values[0].desired.desired_bytes, one.name, device.uuid)
            found.add("mps_limit_in_force_bytes", _largest(values), one.name, device.uuid)
    if one.desired is not None and one.desired.thread_percentage is not None:
        found.add("mps_active_thread_desired_ratio", one.desired.thread_percentage / 100, one.name)
    shown = [value.shown for value in one.every_value if value.desired.kind == THREAD_PERCENTAGE]
    found.add("mps_active_thread_ratio", _ratio(shown), one.name)


def _largest(values: Sequence[Value]) -> Optional[int]:
    """The largest limit that is in force, None where one is none or not proven."""
    proven = [value.desired.desired_bytes if value.in_force else value.desired.said_bytes for value in values]
    told = [one for one in proven if one]
    return max(told) if len(told) == len(values) else None


def _ratio(shown: Iterable[Optional[str]]) -> Optional[float]:
    try:
        return max((float(text or "") / 100 for text in shown), default=None)
    except ValueError:
        return None


def _held(gpus: GpuFacts, uuid: str, clients: Sequence[ClientFacts]) -> Optional[list[int]]:
    """What each holds on a device in MiB, None where NVML does not tell it of one. It lists who has a context there."""
    listed = gpus.clients.get(uuid)
    if listed is None:
        return None
    held = [listed.get(client.pid, 0) for client in clients]
    return None if None in held else [mib for mib in held if mib is not None]


def _memory(found: Samples, one: InstanceFacts, gpus: GpuFacts) -> None:
    if not _all_listed(one, gpus):
        return
    for device in one.devices:
        held = _held(gpus, device.uuid, one.clients)
        if held is not None:
            found.add("mps_clients_memory_bytes", in_bytes(sum(held)), one.name, device.uuid)
            found.add("mps_client_memory_largest_bytes", in_bytes(max(held, default=0)), one.name, device.uuid)


def _all_listed(one: InstanceFacts, gpus: GpuFacts) -> bool:
    """Whether NVML lists each client of the daemon on some device: of one that it does not, nobody knows what it
    holds."""
    known = {pid for device in one.devices for pid in gpus.clients.get(device.uuid) or ()}
    return all(client.pid in known for client in one.clients)


def _groups(found: Samples, one: InstanceFacts, gpus: GpuFacts, by: str) -> None:
    """By what root made: a user names what he likes below a group of his own."""
    group_of: Mapping[str, Callable[[ClientFacts], str]] = {"unit": _unit, "container": _container}
    clients: dict[str, list[ClientFacts]] = {}
    for client in one.clients:
        group = group_of[by](client)
        if group:
            clients.setdefault(group, []).append(client)
    for group in sorted(clients, key=lambda group: (-len(clients[group]), group))[_MOST_GROUPS:]:
        clients.setdefault(_OTHERS, []).extend(clients.pop(group))
    told = _all_listed(one, gpus)
    for group, members in clients.items():
        found.add(f"mps_{by}_clients", len(members), one.name, group)
        held = [_held(gpus, device.uuid, members) for device in one.devices]
        whole = [sum(each) for each in held if each is not None]
        memory_mib = sum(whole) if told and len(whole) == len(held) else None
        found.add(f"mps_{by}_memory_bytes", in_bytes(memory_mib), one.name, group)


def _unit(client: ClientFacts) -> str:
    """The service, scope or slice that root made, the innermost one."""
    parts = control_groups.whose(client.pid, client.uid or 0).group.split("/")
    units = [part for part in parts if part.endswith((".service", ".scope", ".slice"))]
    return units[-1] if units else ""


def _container(client: ClientFacts) -> str:
    return control_groups.whose(client.pid, client.uid or 0).container[:12]
