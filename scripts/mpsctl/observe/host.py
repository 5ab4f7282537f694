"""The host: one look on which every verb stands."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import files, hardware, procfs, systemd
from mpsctl.adapters.background import Background
from mpsctl.adapters.bounded import Call
from mpsctl.adapters.trusted import WeakPoint
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY
from mpsctl.model.errors import BadValue, MpsctlError, NotReady, one_line
from mpsctl.model.instance import Instance
from mpsctl.model.names import HEALTH, TIMER, door_service, door_unit
from mpsctl.model.places import FINGERPRINT, Places
from mpsctl.observe import daemons, gpus, instance, remains, units, ways
from mpsctl.observe.asked import OF_HOST, Asked, unit_of, units_of
from mpsctl.observe.daemons import MpsProcesses
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import NO_ANSWER, DaemonProcess, GpuFacts, InstanceFacts, Unread
from mpsctl.observe.instance import Journal, Surroundings
from mpsctl.observe.remains import Remains
from mpsctl.store import configuration, front_door_notes, last_good, metrics_file, saved_compute_modes
from mpsctl.store.metrics_file import Written
from mpsctl.store.world import World

INSTANCE_TIMEOUT_S = 30.0
"""For an instance that is looked at in a process of its own; above all bounds inside: it is met only where /proc or a
file system hangs."""
_TOGETHER_TIMEOUT_S = 120.0
"""For one that is looked at in this process, whose daemon may take its time; met as the bound above is."""
DAEMON_TIMEOUT_S = 5.0
"""For all questions to one daemon together, where a look is bounded."""
_JAMMED_TIMEOUT_S = 1.0
"""The same where the front door found the daemon jammed: clients wait for its end."""

Refused = dict[str, BadValue]
Look = Callable[[Optional[Journal]], InstanceFacts]

DEFAULT_DIRECTORIES = (DEFAULT_PIPE_DIRECTORY, "/run/nvidia-mps")
"""The second is the default of root's daemon in MPS v3 (NVIDIA's documentation of driver r615)."""


@dataclass(frozen=True)
class LeftBehind:
    """A default directory in which a daemon's files lie, whoever serves it."""

    path: Path
    uid: int


@dataclass(frozen=True)
class Managers:
    """Who else may manage MPS here. ``kubernetes`` is what runs, by pid; ``slurm`` are files with what they do.

    ``units`` are files of units that run a control daemon, by name, with the unit's state and whether it is wanted at
    boot. ``kubernetes_places`` are sockets and directories of Kubernetes' plugins for GPUs, which may be left over.
    """

    kubernetes: Mapping[int, str]
    slurm: Mapping[str, str]
    units: Mapping[str, tuple[Path, str, bool]]
    kubernetes_places: Mapping[str, str] = field(default_factory=dict)


@dataclass
class HostFacts:
    """The host, and the instances that were asked for.

    ``every`` are the desired instances of all its files, ``refused`` the files that are refused, by name.

    ``saved_modes`` are the compute modes from before the first start, by the UUID of each GPU that is on record;
    ``modes_set`` are those GPUs whose mode we set since boot.
    ``timer`` is the unit of the look each minute, ``ours_installed`` whether this project's unit is on the host.
    """

    gpus: GpuFacts
    processes: MpsProcesses
    every: dict[str, Instance]
    refused: Refused
    units: dict[str, UnitFacts]
    instances: dict[str, InstanceFacts] = field(default_factory=dict)
    systemd_unread: Optional[Unread] = None
    saved_modes: dict[str, str] = field(default_factory=dict)
    modes_set: frozenset[str] = frozenset()
    timer: Optional[UnitFacts] = None
    health: Optional[UnitFacts] = None
    """the service that the timer starts"""
    doors: dict[str, UnitFacts] = field(default_factory=dict)
    """the front doors' socket units, by instance"""
    door_services: dict[str, UnitFacts] = field(default_factory=dict)
    """the services behind them"""
    ours_installed: bool = False
    without_file: list[str] = field(default_factory=list)
    """instances that start at boot and have no file"""
    nvidia_on_bus: bool = True
    simulated: bool = False
    is_root: bool = True
    metrics: Optional[Written] = None
    """where the look each minute writes metrics, and whether it could; None: nowhere, or it may not be read"""
    now_s: float = 0
    """since boot"""
    wall_s: float = 0
    """since 1970"""
    places: Places = field(default_factory=Places)
    remains: Optional[Remains] = None
    """what interrupted runs left; None: not looked at"""
    default_directories: list[LeftBehind] = field(default_factory=list)
    weak_points: list[WeakPoint] = field(default_factory=list)
    """where others than root can change what root reads, writes, runs or deletes"""
    managers: Optional[Managers] = None
    """who else manages MPS here; None: not looked at"""
    boot: Optional[list[str]] = None
    """what systemd said of ordering cycles in this boot; None: not looked at, or it may not be read"""

    @property
    def foreign(self) -> list[DaemonProcess]:
        """The control daemons that are no instance's; without systemd those that are on no instance's directory."""
        mine = {unit.main_pid for unit in self.units.values()}
        others = [daemon for daemon in self.processes.daemons if daemon.pid not in mine]
        if self.systemd_unread is None:
            return others
        mine_by_place = [self.directories(one) for one in self.every.values()]
        return [
            one
            for one in others
            if one.directory and not any(daemons.on_directory(one, *places) for places in mine_by_place)
        ]

    def directories(self, desired: Instance) -> tuple[Path, Path]:
        """The public directory of an instance and its daemon's own."""
        return Path(desired.pipe_directory), self.places.pipe(desired.name)

    def unit(self, world: World, name: str) -> UnitFacts:
        """The unit of an instance, whether or not that has a file."""
        return self.units.get(name) or units.unknown(world, unit_of(name))

    def devices(self, daemon: DaemonProcess) -> Optional[tuple[str, ...]]:
        """What a control daemon offers by UUID; None where that is not told."""
        return None if self.gpus.unread else daemons.devices(daemon, self.gpus.gpus)


def look(
    world: World,
    names: Optional[Sequence[str]] = None,
    desired: Iterable[Instance] = (),
    isolated: bool = False,
    deep: bool = False,
    known_gpus: Optional[GpuFacts] = None,
    begun: Optional[Asked] = None,
    nvml_timeout_s: float = gpus.TIMEOUT_S,
    proc_timeout_s: float = daemons.TIMEOUT_S,
    instance_timeout_s: float = INSTANCE_TIMEOUT_S,
) -> HostFacts:
    """Look at the host and at the named instances, or at all that have a file. Changes nothing and raises nothing.

    ``desired`` are instances whose desired state is given, whether or not it is what their files say. With ``isolated``
    each instance is looked at in a process of its own, all at once and each daemon within DAEMON_TIMEOUT_S: what hangs
    on one holds up no other. ``deep`` looks also at what takes long: other managers, and the journal of this boot.
    ``known_gpus`` are those of a caller who asked NVML already, ``begun`` is what a caller began to ask.
    """
    # Processes are begun before any thread is.
    asked = None if known_gpus is not None else begun.nvml if begun else gpus.begin(world, nvml_timeout_s)
    mps = daemons.begin(proc_timeout_s)
    beside = Call(partial(_look_deep, world), instance_timeout_s, "the look at other managers") if deep else None
    given = {one.name: one for one in desired}
    every, refused = _files(world, names or ())
    every.update(given)
    found = HostFacts(GpuFacts(), MpsProcesses(), every, {n: e for n, e in refused.items() if n not in given}, {})
    _look_at_units(world, found, begun)
    known = sorted([*every, *refused], key=configuration.natural)
    wanted = [*given, *(name for name in (known if names is None else names) if name not in given)]
    with suppress(MpsctlError, OSError):
        text = files.read_text(world.places.units / "mps-control@.service") or ""
        found.ours_installed = text.startswith(FINGERPRINT)
    found.gpus = gpus.answer(asked) if asked is not None else known_gpus or GpuFacts()
    found.processes = daemons.answer(mps, proc_timeout_s)
    found.nvidia_on_bus = hardware.nvidia_on_bus() if found.gpus.unread or not found.gpus.gpus else True
    found.simulated, found.is_root = hardware.simulated(), os.geteuid() == 0
    found.now_s, found.wall_s, found.places = world.now_s(), world.wall_s(), world.places
    with suppress(OSError):
        enabled = systemd.enabled_instances(world.places.units)
        found.without_file = [name for name in enabled if name not in (*every, *refused)]
    found.default_directories = list(_default_directories(world))
    if deep:
        found.remains = remains.look(world, public_in_use(world, found))
    found.weak_points = ways.weak_points(world.places, every.values())
    if beside is not None:
        with suppress(NotReady):
            found.managers, found.boot = beside.answer()
    _look_at_records(world, found)
    around = Surroundings(found.gpus, found.processes, whole_journal=deep)
    looks = _looks(world, found, list(dict.fromkeys(wanted)), isolated, around)
    if isolated:
        _look_isolated(found, looks, instance_timeout_s)
    else:
        units_of = {name: found.unit(world, name) for name in looks}
        journals = {name: instance.begin_journal(world, unit, around) for name, unit in units_of.items()}
        _look_together(found, looks, journals)
    found.instances = {name: found.instances[name] for name in wanted}
    return found


def _look_at_records(world: World, found: HostFacts) -> None:
    with suppress(MpsctlError):
        found.metrics = metrics_file.read(world.places)
    with suppress(OSError):
        found.saved_modes = saved_compute_modes.all_recorded(world)
        found.modes_set = frozenset(uuid for uuid in found.saved_modes if saved_compute_modes.was_set(world, uuid))


def public_in_use(world: World, found: HostFacts) -> set[Path]:
    """The public directories where clients look, or are to look, and all that a daemon serves."""
    used = {Path(one.pipe_directory) for one in found.every.values()}
    for name in found.refused:
        kept = last_good.read(world, name)
        used |= {Path(kept.pipe_directory)} if kept is not None else set()
    doors = [door for door in found.doors.values() if door.active and door.listens_on is not None]
    used |= {door.listens_on.parent for door in doors if door.listens_on is not None}
    for daemon in found.processes.daemons:
        used |= {daemon.directory, daemon.directory.parent} if daemon.directory is not None else set()
    return used


def _files(world: World, names: Sequence[str]) -> tuple[dict[str, Instance], Refused]:
    """The files of all instances: what is not asked about counts beside the others."""
    every: dict[str, Instance] = {}
    refused: Refused = {}
    for name in dict.fromkeys([*configuration.names(world), *names]):
        try:
            every[name] = configuration.load(world, name)
        except BadValue as error:
            refused[name] = error
    return every, refused


def _default_directories(world: World) -> Iterator[LeftBehind]:
    for default in DEFAULT_DIRECTORIES:
        directory = world.places.root / default.lstrip("/")
        with suppress(OSError):
            if os.path.lexists(directory / "control") or os.path.lexists(directory / "control_lock"):
                yield LeftBehind(Path(default), directory.stat().st_uid)


def _look_deep(world: World) -> tuple[Optional[Managers], Optional[list[str]]]:
    """What takes long to look at; what cannot be looked at is None."""
    from mpsctl.adapters import managers

    root, others, boot = world.places.root, None, None
    with suppress(Exception):
        paths = managers.units(root)
        shown = units.look(world, list(paths)) if paths else {}
        others = Managers(
            managers.kubernetes(),
            {str(path): what for path, what in managers.slurm(root).items()},
            {unit: (path, shown[unit].active_state, managers.wanted(unit, root)) for unit, path in paths.items()},
            managers.kubernetes_places(root),
        )
    with suppress(Exception):
        boot = world.systemd.journal_of_boot("ordering cycle")
    return others, boot


def _look_at_units(world: World, found: HostFacts, begun: Optional[Asked]) -> None:
    names = [*found.every, *found.refused]
    wanted = [*units_of(names), *OF_HOST]
    try:
        shown: Mapping[str, UnitFacts] = units.look(world, wanted, begun.shown(wanted) if begun else None)
    except (MpsctlError, OSError) as error:
        found.systemd_unread = Unread("systemd", NO_ANSWER, one_line(error))
        shown = {name: units.unknown(world, name) for name in wanted}
    found.units = {name: shown[unit_of(name)] for name in names}
    found.doors = {name: shown[door_unit(name)] for name in names}
    found.door_services = {name: shown[door_service(name)] for name in names}
    found.timer, found.health = shown[TIMER], shown[HEALTH]


def _looks(
    world: World, found: HostFacts, names: Sequence[str], isolated: bool, around: Surroundings
) -> dict[str, Look]:
    """How each instance is looked at; those whose file is refused are done."""
    looks: dict[str, Look] = {}
    for name in names:
        unit = found.unit(world, name)
        if name in found.every:
            timeout_s = _JAMMED_TIMEOUT_S if _found_jammed(world, name, unit.main_pid) else DAEMON_TIMEOUT_S
            inside = world.hurried(world.now_s() + timeout_s, unit.main_pid) if isolated else world
            door = (
                found.doors.get(name) or units.unknown(world, door_unit(name)),
                found.door_services.get(name) or units.unknown(world, door_service(name)),
            )
            looks[name] = partial(instance.look, inside, found.every[name], unit, door, around)
        else:
            found.instances[name] = InstanceFacts(name, unit, refused=found.refused.get(name))
    return looks


def _found_jammed(world: World, name: str, pid: int) -> bool:
    """Whether the front door found that this daemon answers no question about its server."""
    jammed = front_door_notes.read(world.places, name).jammed
    return jammed is not None and (jammed.daemon_pid, jammed.daemon_started_at) == (pid, procfs.started_at(pid))


def _look_isolated(found: HostFacts, looks: Mapping[str, Look], timeout_s: float) -> None:
    """Each in a process of its own, all at once."""
    calls = {name: Call(partial(one, None), timeout_s, f"instance {name}") for name, one in looks.items()}
    for name, call in calls.items():
        try:
            found.instances[name] = call.answer()
        except NotReady as error:
            found.instances[name] = _unread(found, name, str(error))


def _look_together(found: HostFacts, looks: Mapping[str, Look], journals: Mapping[str, Optional[Journal]]) -> None:
    """All at once, in this process: they wait for their daemons most of the time."""
    begun = {name: Background(partial(one, journals[name])) for name, one in looks.items()}
    for name, one in begun.items():
        try:
            found.instances[name] = one.result(_TOGETHER_TIMEOUT_S)
        except TimeoutError:
            found.instances[name] = _unread(found, name, f"it did not end within {_TOGETHER_TIMEOUT_S:g} s")
        except Exception as error:  # of one instance, and no other's
            found.instances[name] = _unread(found, name, f"{type(error).__name__}: {error} (a fault of mpsctl)")


def _unread(found: HostFacts, name: str, why: str) -> InstanceFacts:
    return InstanceFacts(name, found.units[name], found.every[name], unread=Unread("instance", NO_ANSWER, why))
