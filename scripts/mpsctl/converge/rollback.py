"""Changed limits as a whole: all of them come into force on a host, or the host has what it had before.

Only what a reload brings about can be undone without harm to a client, so a step that is not live is not let through.
The former files are kept in memory alone: a run that is killed half way leaves the desired files behind, and
the next run brings them into force.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import files
from mpsctl.checks.report import Report
from mpsctl.converge.file_steps import WriteFile
from mpsctl.converge.read_back import look_again, not_as_desired
from mpsctl.converge.situation import Situation
from mpsctl.converge.step import Step
from mpsctl.lifecycle import terminate
from mpsctl.model.errors import MpsctlError, NotInForce, NotReady, one_line
from mpsctl.model.finding import RESTART
from mpsctl.model.instance import Instance
from mpsctl.observe.facts import InstanceFacts, Value
from mpsctl.store import configuration, desired_values, record
from mpsctl.store.desired_values import CLIENT_PRIORITY
from mpsctl.store.world import World

_SHOWN = 3


@dataclass(frozen=True)
class Reading:
    """A value that the former file did not manage, as the daemon showed it. ``server`` is a server's pid, None for the
    defaults."""

    what: str
    kind: str
    getter: str
    setter: str
    shown: Optional[str]
    server: Optional[int] = None


@dataclass(frozen=True)
class Former:
    """What a host had: the files that are about to be replaced, and what no file spoke of.

    ``instances`` are those whose file or daemon is about to change, as their former files desired them. By their name:
    ``unmanaged``, and in ``servers`` the pids that were looked at.
    """

    files: Mapping[Path, tuple[str, int]]
    instances: tuple[Instance, ...]
    unmanaged: Mapping[str, tuple[Reading, ...]]
    servers: Mapping[str, frozenset[int]]


def refusal(steps: Sequence[Step]) -> Optional[str]:
    """The line for a plan that a live reload alone cannot carry out, or None. What is withheld is not taken anyway."""
    others = [step.more_than_live for step in steps if not step.live and step.withheld is None]
    if not others:
        return None
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return (
        f"found a change that needs more than a live reload ({'; '.join(others[:_SHOWN])}{more}), expected changed"
        " limits alone; run site.yml for this host"
    )


def remember(found: Situation, steps: Sequence[Step]) -> Former:
    """What is needed to put the host back, should these steps fail."""
    world = found.world
    names = {step.instance for step in steps if step.due and step.instance is not None}
    touched = [instance for instance in found.desired.instances if instance.name in names]
    former = tuple(configuration.load(world, instance.name) for instance in touched)
    paths = [step.file.path for step in steps if isinstance(step, WriteFile)]
    return Former(
        files={path: (files.read_text(path) or "", path.stat().st_mode & 0o7777) for path in paths},
        instances=former,
        unmanaged={before.name: _unmanaged(found, before) for before in former},
        servers={one.name: frozenset(server.pid for server in found.facts(one.name).servers) for one in former},
    )


def _unmanaged(found: Situation, before: Instance) -> tuple[Reading, ...]:
    """What the new file manages and the former did not, as it was found."""
    facts = found.facts(before.name)
    memory_mib = desired_values.memory_of(facts.serves, found.gpus)
    managed = {one.what for one in desired_values.values(desired_values.Desired.of(before, memory_mib), None)}
    return tuple(_reading(value) for value in facts.every_value if value.desired.what not in managed)


def _reading(value: Value) -> Reading:
    command = value.desired.setter.rpartition(" ")[0]
    # 0G takes a memory limit away (control daemons 535, 550, 555; driver 580); nothing else can be unset.
    setter = f"{command} {value.shown or '0G'}"
    one = value.desired
    return Reading(one.what, one.kind, one.getter, setter, value.shown, value.server)


def put_back(world: World, former: Former) -> tuple[Optional[str], Optional[Report]]:
    """Bring the former files back and in force; why that cannot be proven, or None, and what was read back."""
    try:
        for path, (text, mode) in former.files.items():
            if files.read_text(path) != text or path.stat().st_mode & 0o7777 != mode:
                files.write(path, text, mode)
        units = [instance.unit for instance in former.instances]
        problem = world.systemd.act("reload", units) if units else None
        for instance in former.instances:
            _set_unmanaged(world, instance, former)
    except (MpsctlError, OSError) as error:
        return one_line(error), None
    seen = look_again(world, former.instances)
    wrong = [
        f"{instance.unit}: {'; '.join(lines)}"
        for instance in former.instances
        for lines in [_not_as_before(seen, instance.name)]
        if lines
    ]
    return (" ".join([*wrong, *([problem] if problem else [])]) if wrong else None), seen


def _not_as_before(seen: Report, name: str) -> list[str]:
    if RESTART not in seen.mends(name):
        return not_as_desired(seen, name, touched=True)
    # Only an instance whose restart was withheld already gets here: its limits are what counts.
    return limits_not_in_force(seen.facts.instances[name])


def limits_not_in_force(facts: InstanceFacts) -> list[str]:
    """Which limits the daemon of an instance does not show, whatever else of its desired state is missing."""
    if not facts.answer.complete:
        return [f"its daemon does not tell ({facts.answer.words or facts.answer.kind})"]
    return [
        f"{value.desired.what}: shows {value.shown or 'nothing'}, desired {value.desired.desired}"
        for value in facts.every_value
        if not value.in_force
    ]


def problem_of_withheld(seen: Report, steps: Sequence[Step]) -> Optional[str]:
    """What of the limits is not in force in instances whose restart is withheld: the read-back does not judge these."""
    for step in steps:
        facts = None if step.withheld is None else seen.facts.instances.get(step.instance or "")
        lines = [] if facts is None else limits_not_in_force(facts)
        if facts is not None and lines:
            return f"{facts.unit.name}: {'; '.join(lines)}"
    return None


def _set_unmanaged(world: World, instance: Instance, former: Former) -> None:
    """:raises NotInForce: if a value does not read back as it was found."""
    due = list(former.unmanaged[instance.name])
    if not due:
        return
    running = record.read(world, instance.name)
    if running is None:
        raise NotReady(f"no daemon of {instance.unit} is on record")
    daemon = terminate.running_daemon(world, instance, running.pid)
    defaults = [reading for reading in due if reading.server is None]
    for server in control.servers(daemon):
        if server.pid not in former.servers[instance.name]:  # it was started meanwhile, with the defaults of then
            due += [_of_server(reading, server.pid) for reading in defaults if reading.kind != CLIENT_PRIORITY]
    daemon.ask([reading.setter for reading in due])
    for reading, lines in zip(due, daemon.ask([reading.getter for reading in due])):
        shown = " / ".join(lines) or None
        gone = reading.server is not None and control.no_such_server(lines)
        if shown != reading.shown and not gone:
            raise NotInForce(f"{reading.what}: had {reading.shown or 'none'}, reads back {shown or 'none'}")


def _of_server(reading: Reading, pid: int) -> Reading:
    """The same value of one server: the commands have the server's pid behind the verb."""

    def command(text: str) -> str:
        verb, _, rest = text.replace("_default_", "_", 1).partition(" ")
        return f"{verb} {pid} {rest}".rstrip()

    return replace(reading, getter=command(reading.getter), setter=command(reading.setter), server=pid)
