"""A change that is made whole or not at all: what a request with ``"atomic": true`` asks of reconcile.

Only what a live reload brings about can be undone without harm to a client, so nothing else is let through.
The former files are kept in memory alone: a run that is killed half way leaves the desired files behind, and
the next run brings them into force.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import files
from mpsctl.lifecycle import terminate
from mpsctl.model.errors import BadValue, MpsctlError, NotInForce, NotReady
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance
from mpsctl.observe import status as proofs
from mpsctl.observe.status import Status
from mpsctl.store import configuration, desired_values, record
from mpsctl.store.world import World

LIMITS = ("limit", "thread_percentage", "client_priority", "expected_clients")
"""What of an instance a live reload brings about, clients or not; how many are expected touches no daemon."""


@dataclass(frozen=True)
class Reading:
    """A value of the defaults that the former file did not manage, as the daemon showed it."""

    what: str
    getter: str
    setter: str
    shown: Optional[str]


@dataclass(frozen=True)
class Former:
    """What a host had: the files that are about to be replaced, and what no file spoke of.

    ``instances`` are those whose file or daemon is about to change, as their former files desired state them.
    """

    files: Mapping[Path, tuple[str, int]]
    instances: tuple[Instance, ...]
    unmanaged: Mapping[str, tuple[tuple[str, tuple[Reading, ...]], ...]]
    """by instance, for the defaults (an empty text) and for each server's pid"""


def beyond_limits(world: World, instance: Instance) -> Optional[str]:
    """What an instance's desired state changes besides its limits, in a few words, or None."""
    try:
        former = configuration.load(world, instance.name)
    except BadValue:
        return f"{world.places.conf(instance.name)} is absent or is refused"
    names = [field.name for field in fields(Instance) if field.name not in LIMITS]
    differing = [name for name in names if getattr(former, name) != getattr(instance, name)]
    return f"instance {instance.name} gets another {' and '.join(differing)}" if differing else None


def refusal(others: Sequence[str]) -> Optional[str]:
    """The line for a change that a live reload alone cannot bring about, or None."""
    if not others:
        return None
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"found a change that needs more than a live reload ({'; '.join(others[:3])}{more}), expected changed"
        " limits alone; run site.yml for this host"
    )


def remember(
    world: World,
    touched: Sequence[Instance],
    statuses: Mapping[str, Status],
    paths: Sequence[Path],
    gpus: Sequence[Gpu],
) -> Former:
    """What is needed to put the host back. ``touched`` are the instances as they are desired from now on."""
    former = tuple(configuration.load(world, instance.name) for instance in touched)
    return Former(
        files={path: (files.read_text(path) or "", path.stat().st_mode & 0o7777) for path in paths},
        instances=former,
        unmanaged={
            after.name: _unmanaged(before, after, statuses[after.name], gpus) for before, after in zip(former, touched)
        },
    )


def _unmanaged(
    before: Instance, after: Instance, status: Status, gpus: Sequence[Gpu]
) -> tuple[tuple[str, tuple[Reading, ...]], ...]:
    """What the new file manages and the former did not, as the status found it."""
    memory_mib = desired_values.memory_of(status.serves, gpus)
    managed = {step.what for step in desired_values.steps(desired_values.Desired.of(before, memory_mib), None)}
    found = []
    for server, values in [("", status.values), *((str(one.pid), one.values) for one in status.servers)]:
        steps = desired_values.steps(desired_values.Desired.of(after, memory_mib), None, server)
        readings = [
            Reading(step.what, step.getter, _setter(step, value.shown), value.shown)
            for step, value in zip(steps, values)
            if step.what not in managed
        ]
        found.append((server, tuple(readings)))
    return tuple(found)


def _setter(step: desired_values.Step, shown: Optional[str]) -> str:
    command = step.setter.rpartition(" ")[0]
    # 0G takes a memory limit away (control daemons 535, 550, 555; driver 580); nothing else can be unset.
    return f"{command} {shown or '0G'}"


def put_back(world: World, former: Former) -> tuple[Optional[str], list[Status]]:
    """Bring the former files back and in force; why that cannot be proven, or None, and what was read back."""
    try:
        for path, (text, mode) in former.files.items():
            if files.read_text(path) != text or path.stat().st_mode & 0o7777 != mode:
                files.write(path, text, mode)
        units = [instance.unit for instance in former.instances]
        problem = world.systemd.act("reload", units) if units else None
        for instance in former.instances:
            _set_unmanaged(world, instance, former.unmanaged[instance.name])
    except (MpsctlError, OSError) as error:
        return str(error), []
    gpus, no_gpus = proofs.host_gpus(world)
    statuses = proofs.look(world, former.instances, gpus, no_gpus)
    wrong = [f"{one.unit['name']}: {'; '.join(found)}" for one in statuses for found in [_not_as_before(one)] if found]
    return (" ".join([*wrong, *([problem] if problem else [])]) if wrong else None), statuses


def _not_as_before(status: Status) -> list[str]:
    if not status.restart_needed:
        return status.own_findings
    # Only an instance whose restart was deferred already gets here: its limits are what counts.
    wrong = [f"{value.what}: shows {value.shown or 'nothing'}" for value in status.every_value if not value.in_force]
    return wrong if status.daemon_answers else status.own_findings


def problem_of_deferred(names: Iterable[str], instances: Mapping[str, Any]) -> Optional[str]:
    """What of the limits is not in force in instances that are deferred: reconcile does not judge these.

    ``instances`` is what was read back, in the form of the answer.
    """
    for name in names:
        one = instances.get(name)
        if one is None:
            continue
        if not one["daemon_answers"]:
            return f"{one['unit']['name']}: {'; '.join(one['findings'])}"
        for value in [*one["values"], *(value for server in one["servers"] for value in server["values"])]:
            if not value["in_force"]:
                shown = value["shown"] or "nothing"
                return f"{one['unit']['name']}: {value['what']}: shows {shown}, desired {value['wished']}"
    return None


def _set_unmanaged(world: World, instance: Instance, found: Sequence[tuple[str, tuple[Reading, ...]]]) -> None:
    """:raises NotInForce: if a value does not read back as it was found."""
    due = [reading for _, readings in found for reading in readings]
    if not due:
        return
    running = record.read(world, instance.name)
    if running is None:
        raise NotReady(f"no daemon of {instance.unit} is on record")
    daemon = terminate.running_daemon(world, instance, running.pid)
    known = {server for server, _ in found}
    defaults = next(readings for server, readings in found if not server)
    for server in control.servers(daemon):
        if str(server.pid) not in known:  # it was started meanwhile, with the defaults of then
            due += [_of_server(reading, server.pid) for reading in defaults if "priority" not in reading.what]
    daemon.ask([reading.setter for reading in due])
    for reading, lines in zip(due, daemon.ask([reading.getter for reading in due])):
        shown = " / ".join(lines) or None
        if shown != reading.shown and not (shown and "not found" in shown):
            raise NotInForce(f"{reading.what}: had {reading.shown or 'none'}, reads back {shown or 'none'}")


def _of_server(reading: Reading, pid: int) -> Reading:
    """The same value of one server: the commands have the server's pid behind the verb."""

    def command(text: str) -> str:
        verb, _, rest = text.replace("_default_", "_", 1).partition(" ")
        return f"{verb} {pid} {rest}".rstrip()

    return replace(reading, getter=command(reading.getter), setter=command(reading.setter))
