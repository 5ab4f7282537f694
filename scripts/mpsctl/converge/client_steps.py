"""Steps for what clients of the instances are given: the file of variables of each instance, and the drop-ins of the
units that are wired to one.

A drop-in of ours is told by its name and its first line together; every other is somebody else's and left alone. No
unit is restarted for one: it holds from the unit's next start on.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import control_groups, procfs
from mpsctl.converge import ours, statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.file_steps import WriteFile, differs, remove_with_folder
from mpsctl.converge.removal_steps import RemoveFile
from mpsctl.converge.request import File
from mpsctl.converge.situation import Situation
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.model import run_environment
from mpsctl.model.client_unit import END, SYSTEM, USER, ClientUnit
from mpsctl.model.errors import BadValue
from mpsctl.model.gpu import Device, Gpu, resolve
from mpsctl.model.instance import Instance
from mpsctl.model.places import CLIENT_DROP_IN, FINGERPRINT, INSTANCE_DROP_IN, PROGRAM, Places
from mpsctl.model.run_environment import Lower
from mpsctl.observe import client_environment
from mpsctl.store import configuration

_HEAD = f"{FINGERPRINT}: written by the role mps (mps_clients), changes by hand are lost."
_SPARE_S = 10
"""What systemd gives a stop beyond the time in which our command ends all processes."""


def environment_files(found: Situation, moving: Mapping[str, Optional[Path]]) -> Iterator[WriteFile]:
    """The files of variables that say something else than they should.

    ``moving`` are the instances whose daemon needs a restart, with the public directory where clients find it until
    then, None where that stays. Such a one has clients of the daemon that runs: its start writes the file anew.
    """
    for instance in found.desired.instances:
        facts = found.facts(instance.name)
        devices = [device.uuid for device in configuration.resolve(instance, found.gpus)]
        public = instance.pipe_directory
        if instance.name in moving:
            devices = list(facts.serves) or devices
            public = str(moving[instance.name] or public)
        text = client_environment.file(instance.name, client_environment.variables(public, devices))
        file = File(found.world.places.client_environment(instance.name), text)
        if differs(file):
            yield WriteFile(file, instance.name, live=True, blocked=_why_foreign(file.path))


def _why_foreign(path: Path) -> Optional[str]:
    """The line for a file of somebody else's where one of ours belongs; None where there is none."""
    if not ours.is_others(path):
        return None
    return f"found {path}, which is not ours, expected none or one of ours; move it away"


# -- drop-ins


@dataclass(frozen=True)
class _Host:
    """What drop-ins are made of: where files lie, the desired instances, and the GPUs."""

    places: Places
    instances: Sequence[Instance]
    gpus: Sequence[Gpu]

    def instance(self, client: ClientUnit) -> Instance:
        """The desired instance that a unit is wired to.

        :raises BadValue: if there is none.
        """
        named = f"the instance {client.instance}"
        for one in self.instances:
            if client.gpu is None and one.name == client.instance:
                return one
        if client.gpu is not None:
            device = self._device(client, client.gpu)
            for one in self.instances:
                if device in configuration.resolve(one, self.gpus):
                    return one
            named = f"{device}, which no instance serves"
        known = ", ".join(one.name for one in self.instances) or "none"
        raise BadValue(f"{client.place}: {named}", f"one of this host's: {known}", "correct it", variable="mps_clients")

    def _device(self, client: ClientUnit, gpu: str) -> Device:
        try:
            return resolve(gpu, self.gpus)
        except BadValue as error:
            found = f"{client.place}: {error.found}"
            raise BadValue(found, error.expected, error.remedy, variable="mps_clients") from None

    def lower(self, client: ClientUnit, instance: Instance) -> dict[str, str]:
        """The variables of what its processes have less than the instance gives.

        :raises BadValue: for more than that.
        """
        devices = configuration.resolve(instance, self.gpus)
        asked, called = Lower(client.memory, client.thread_percentage), ("memory_limit", "active_thread_percentage")
        try:
            given = run_environment.build({}, instance, devices, asked, called).given
        except BadValue as error:
            found = f"{client.place}: {error.found}"
            raise BadValue(found, error.expected, error.remedy, variable="mps_clients") from None
        common = client_environment.variables(instance.pipe_directory, [device.uuid for device in devices])
        return {key: value for key, value in given.items() if key not in common}


def drop_ins(
    places: Places, clients: Sequence[ClientUnit], instances: Sequence[Instance], gpus: Sequence[Gpu]
) -> list[File]:
    """The desired drop-ins: of the units, and of the instances that start some of them.

    :raises BadValue: for a unit of an instance that is not desired here, or with more than that gives.
    """
    host = _Host(places, instances, gpus)
    made: list[File] = []
    started: dict[str, list[str]] = {}
    for client in clients:
        instance = host.instance(client)
        folder = places.user_units if client.scope == USER else places.units
        made.append(File(folder / f"{client.unit}.d" / CLIENT_DROP_IN, _drop_in(host, client, instance)))
        if client.scope == SYSTEM and client.when_mps_stops == END and not client.is_template:
            started.setdefault(instance.unit, []).append(client.unit)
    for unit, names in sorted(started.items()):
        lines = (_HEAD, "# A start of MPS starts these: its stop has ended them.", "[Unit]", f"Wants={' '.join(names)}")
        made.append(File(places.units / f"{unit}.d" / INSTANCE_DROP_IN, "\n".join(lines) + "\n"))
    return made


def _drop_in(host: _Host, client: ClientUnit, instance: Instance) -> str:
    lines = [_HEAD]
    if client.scope == SYSTEM:
        unit = instance.unit
        # No Wants=: a unit that starts anew while MPS stops would have systemd cancel the stop (252, 257).
        lines += ["[Unit]", f"After={unit} {instance.door}"]
        lines += [f"PartOf={unit}"] if client.when_mps_stops == END else []
    lines += ["[Service]", f"EnvironmentFile={host.places.client_environment(instance.name)}"]
    lines += [f"Environment={key}={value}" for key, value in host.lower(client, instance).items()]
    if client.scope == SYSTEM:
        end = "" if client.end_within_s is None else f" --end --timeout {client.end_within_s}"
        lines.append(f"ExecStop=-+{PROGRAM} evict --unit %n{end}")
        lines += [] if client.end_within_s is None else [f"TimeoutStopSec={client.end_within_s + _SPARE_S}"]
    return "\n".join(lines) + "\n"


def present(places: Places) -> list[Path]:
    """The drop-ins of ours that are there."""
    found = [path for folder in folders(places) for name in _NAMES for path in sorted(folder.glob(f"*.d/{name}"))]
    return [path for path in found if ours.is_ours(path)]


_NAMES = (CLIENT_DROP_IN, INSTANCE_DROP_IN)


def folders(places: Places) -> tuple[Path, ...]:
    return places.units, places.user_units


def of(found: Situation) -> list[File]:
    """The drop-ins that are desired of a host."""
    return drop_ins(found.world.places, found.request.clients, found.desired.instances, found.gpus)


def writes(found: Situation) -> Iterator[WriteFile]:
    """The drop-ins that are not there or say something else."""
    for file in of(found):
        if differs(file):
            yield WriteFile(file, blocked=_why_foreign(file.path))


def removals(found: Situation) -> Iterator[RemoveFile]:
    """The drop-ins of ours that are no longer desired."""
    desired = {file.path for file in of(found)}
    for path in present(found.world.places):
        if path not in desired:
            yield RemoveDropIn(path)


@dataclass(eq=False, repr=False)
class RemoveDropIn(RemoveFile):
    """Remove a drop-in of ours, and its folder where nothing else is in it."""

    kind = "remove-drop-in"

    @classmethod
    def act(cls, steps: Sequence[RemoveFile], context: Context) -> None:
        del context
        for step in steps:
            remove_with_folder(step.path)


@dataclass(eq=False, repr=False)
class ReloadUserManagers(Step):
    """Have the service managers of users who are there read their units anew: SIGHUP does that (systemd(1)). A manager
    that starts later reads them as they are then."""

    kind = "reload-user-managers"
    live = True
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "reload the units of users' own managers"

    def differences(self) -> list[Difference]:
        return [state("users' managers", "older units loaded", "units as on disk")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.SYSTEMD_RELOADED),)

    @classmethod
    def act(cls, steps: Sequence[ReloadUserManagers], context: Context) -> None:
        del steps, context
        for pid in _user_managers():
            started_at = procfs.started_at(pid)
            with suppress(OSError):
                if started_at is not None:
                    procfs.send(pid, started_at, signal.SIGHUP)


def _user_managers() -> Iterator[int]:
    """By the group that root's manager made for each. A user may have a process of his own in there, and no other's."""
    for pid in procfs.pids():
        if procfs.name(pid) == "systemd":
            whole, made = control_groups.paths(pid)
            if whole[-1:] == ("init.scope",) and any(part.startswith("user@") for part in made):
                yield pid


def reloads(folder: Path, steps: Sequence[Step]) -> bool:
    """Whether one of these steps changes a unit in a folder."""
    paths = [step.file.path for step in steps if isinstance(step, WriteFile) and step.due]
    paths += [step.path for step in steps if isinstance(step, RemoveFile)]
    return any(path.is_relative_to(folder) for path in paths)
