"""Bringing a host into the desired state: what the role asks for in one call.

First everything is looked at and planned; a plan that is refused changes nothing. Then files are written
whole, and instances are started, reloaded or restarted, in that order of preference. An instance whose
clients would die by a restart is left running and reported as pending.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Sequence, TypeVar

from mpsctl.adapters import bytecode, files, hardware, procfs, systemd
from mpsctl.converge import host_lock
from mpsctl.lifecycle import compute_modes, prepare, stop
from mpsctl.model.checked_values import DRAIN_TIMEOUT_S, REFUSE, TERMINATE, check_on_clients, check_timeout_s
from mpsctl.model.errors import BadValue, MpsctlError, NotReady, TooLarge, Unreadable
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance, check_gpus, one_gpu_twice
from mpsctl.model.instance_file import parse_conf
from mpsctl.observe import status as proofs
from mpsctl.observe.status import Status
from mpsctl.store import configuration, drains, saved_compute_modes
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.lifecycle.drain import Drained
    from mpsctl.observe.clients import Client

_Held = Mapping[int, Optional[int]]
T = TypeVar("T")

FINGERPRINT = "# Managed by mps-fleet"
"""The beginning of the first line of every file that is ours; others are left alone."""

DAEMON_PLACE = "@NVIDIA_CUDA_MPS_CONTROL@"
"""Stands in the unit's template where the path of this host's control daemon belongs."""

UNIT = "mps-control@.service"

USUAL_DAEMON = f"/usr/bin/{hardware.CONTROL_DAEMON}"
"""Shown where the daemon is yet to be installed."""


_MOST_PROGRAM_BYTES = 64 << 20
"""Far above the size of any build of this program."""


@dataclass(frozen=True)
class File:
    """A file that is desired on the host."""

    path: Path
    content: str
    mode: int = 0o644


@dataclass(frozen=True)
class Request:
    """What is desired of a host: files that belong to no instance, and the instances' files.

    With ``instance_per_gpu`` there is one instance for each GPU, named by its index, and the text is the
    file of each (``%i`` stands for the name). ``atomic`` lets only changed limits through, and puts the host
    back to what it had where they do not come into force.
    """

    files: tuple[File, ...]
    instances: tuple[tuple[str, str], ...]
    instance_per_gpu: Optional[str] = None
    atomic: bool = False
    units: tuple[str, ...] = ()
    """units beside the instances' own that are to be enabled and active, such as timers"""
    on_clients: str = REFUSE
    """what becomes of a restart that would end clients: REFUSE, WAIT for ``drain_timeout_s``, or TERMINATE after it"""
    drain_timeout_s: int = DRAIN_TIMEOUT_S
    remove: bool = False
    """everything of ours is to go instead"""

    @classmethod
    def from_json(cls, data: Any) -> Request:
        """:raises BadValue: if the request is not of format 1, or says nothing that can be done with clients."""
        try:
            if data["format"] != 1:
                raise ValueError
            listed = tuple(
                File(Path(entry["path"]), str(entry["content"]), int(str(entry.get("mode", "0644")), 8))
                for entry in data["files"]
            )
            instances = tuple((str(entry["name"]), str(entry["conf"])) for entry in data.get("instances") or ())
            template = data.get("instance_per_gpu")
            units = tuple(str(name) for name in data.get("units") or ())
            per_gpu = None if template is None else str(template)
            atomic, remove = data.get("atomic") is True, data.get("remove") is True
            policy = _checked(data, "on_clients", check_on_clients, REFUSE)
            timeout_s = _checked(data, "drain_timeout_s", check_timeout_s, DRAIN_TIMEOUT_S)
            return cls(listed, instances, per_gpu, atomic, units, policy, timeout_s, remove)
        except (KeyError, TypeError, ValueError):
            raise BadValue(
                "a request that is not of format 1",
                "a JSON object with format, files and instances",
                "use a role and a program of the same release",
            ) from None


def _checked(data: Mapping[str, Any], key: str, check: Callable[[object], T], default: T) -> T:
    try:
        return check(data[key]) if key in data else default
    except BadValue as error:
        raise error.named(key, f"mps_{key}") from None


@dataclass
class Answer:
    """What was found and, without ``check``, done."""

    check: bool
    changed: bool = False
    refused: Optional[str] = None
    missing: Optional[dict[str, str]] = None
    error: Optional[str] = None
    diff: list[dict[str, str]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    instances: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)
    put_back: Optional[bool] = None
    """after an atomic change that failed: whether the host is proven to have what it had"""
    put_back_why: Optional[str] = None

    def as_json(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self)}


@dataclass
class _Plan:
    """What differs from the desired state. ``leftovers`` are instances of ours that are no longer desired, ``gpu_missing`` those
    of a desired state for every GPU whose GPU is not there."""

    instances: list[Instance]
    statuses: dict[str, Status]
    files: list[File]
    program: Optional[Path]
    leftovers: list[str]
    units: dict[str, Mapping[str, str]]
    """the other desired units, as systemd shows them"""
    units_to_enable: list[str]
    gpu_missing: list[str]
    partial_files: list[Path]
    """halves of files that runs which were interrupted left beside ours"""
    freed: list[tuple[Gpu, str]]
    """GPUs in a mode of ours that no instance has any more, with the mode from before the first start"""
    waiting: dict[str, tuple[str, list[Client]]] = field(default_factory=dict)
    """instances that are deferred: why, and for which clients"""

    def in_the_way(self) -> list[str]:
        """Those of them whose own clients are the reason."""
        return [name for name in self.waiting if self.statuses[name].clients]

    def rewritten(self, world: World) -> list[Instance]:
        """Those whose file is written anew."""
        paths = {file.path for file in self.files}
        return [i for i in self.instances if world.places.conf(i.name) in paths]

    def to_enable(self) -> list[str]:
        mine = [i.unit for i in self.instances if not self.statuses[i.name].unit["enabled"]]
        return mine + self.units_to_enable

    def caught_starting(self, world: World) -> list[Instance]:
        """Those of to_start that systemd tries at this moment with what they had before: to start is to join that."""
        anew = self.rewritten(world)
        shared = any(file.path == world.places.units / UNIT for file in self.files)
        return [
            i
            for i in self.to_start()
            if self.statuses[i.name].unit["active_state"] == "activating" and (shared or i in anew)
        ]

    def units_to_start(self) -> list[str]:
        return [name for name, shown in self.units.items() if shown.get("ActiveState") != "active"]

    def units_to_restart(self) -> list[str]:
        anew = {file.path.name for file in self.files}
        return [name for name in self.units if name in anew and name not in self.units_to_start()]

    def to_start(self) -> list[Instance]:
        return [i for i in self.instances if not self.statuses[i.name].active]

    def to_restart(self) -> list[Instance]:
        return [i for i in self.instances if self.statuses[i.name].active and self.statuses[i.name].restart_needed]

    def to_reload(self) -> list[Instance]:
        return [i for i in self.instances if self.statuses[i.name].active and self._reload_helps(self.statuses[i.name])]

    def _reload_helps(self, status: Status) -> bool:
        if not status.restart_needed:
            return status.reload_needed
        # Its restart is deferred: the clients to come get the new limits all the same.
        return status.instance in self.waiting and not all(value.in_force for value in status.every_value)


def reconcile(world: World, request: Request, check: bool, program: Optional[Path] = None) -> Answer:
    """Bring the host into the desired state, or with ``check`` only say what would be done.

    ``program`` is the file this program runs from, installed where the host lacks it or has another.
    Everything that goes wrong stands in the answer: ``refused`` (nothing was changed), ``missing`` (the
    daemon is not installed; nothing was changed), ``error`` (what could not be brought about).
    """
    if request.remove:
        from mpsctl.converge import remove  # seldom needed

        return remove.remove(world, check)
    try:
        if check:
            host_lock.wait_for_others(world)
            return _reconcile(world, request, check, program)
        with host_lock.taken(world):
            return _reconcile(world, request, check, program)
    except host_lock.Busy as error:
        return Answer(check, error=str(error))


def _reconcile(world: World, request: Request, check: bool, program: Optional[Path]) -> Answer:
    answer = Answer(check=check, host={**hardware.os_release(), "driver_version": hardware.driver_version()})
    answer.missing = _missing()
    try:
        with world.nvml() as nvml:
            gpus = nvml.gpus()
            answer.host["driver_version"] = nvml.driver_version()
            listed = {gpu.uuid: (nvml.compute_memory_mib(gpu.uuid), nvml.client_memory_mib(gpu.uuid)) for gpu in gpus}
    except NotReady as error:
        # Where the daemon is missing that is what matters: its package may bring the driver as well.
        answer.error = None if answer.missing else str(error)
        return answer
    try:
        instances, texts = _desired_instances(request, gpus)
        answer.warnings += _fit(world, instances, gpus, answer.host["driver_version"])
    except NotReady as error:
        answer.error = str(error)
        return answer
    except BadValue as error:
        answer.refused = f"{error.variable or 'mps_instances'}: {error}"
        return answer
    try:
        plan = _plan(world, request, instances, texts, gpus, program)
        if request.atomic:
            answer.refused = _beyond_a_live_reload(world, plan)
        if answer.refused or (answer.missing and not check):
            return answer
        if plan.in_the_way() and request.on_clients != REFUSE and not request.atomic:
            if check:
                _describe_drains(plan, request, answer)
            else:
                drained = _drain(world, plan, request, answer)
                plan = _plan(world, request, instances, texts, gpus, program)
                _give_up(world, [one for one in drained if one.instance in plan.waiting])
        _describe(world, plan, gpus, answer)
        answer.warnings += _outsiders(world, plan, listed)
        if not check and answer.changed:
            carry_out = _carry_out_whole if request.atomic else _carry_out
            carry_out(world, plan, gpus, answer)
    except (MpsctlError, OSError) as error:
        answer.error = str(error)
    return answer


def _outsiders(world: World, plan: _Plan, listed: Mapping[str, tuple[Optional[_Held], Optional[_Held]]]) -> list[str]:
    """Who computes on a served GPU and is no client of its instance: of verify's checks what NVML tells at once."""
    found: list[str] = []
    for instance in plan.instances:
        status = plan.statuses[instance.name]
        for uuid in status.serves if status.active else ():
            compute, clients = listed.get(uuid, (None, None))
            if set(compute or ()) <= {*(clients or ()), *(server.pid for server in status.servers)}:
                continue
            from mpsctl.observe import gpu_processes  # a host on which all is well does not pay for it

            daemon = gpu_processes.OfDaemon(
                public=Path(instance.pipe_directory),
                devices=status.serves,
                pid=int(status.unit["main_pid"]),
                servers=[server.pid for server in status.servers],
                clients=status.clients if status.daemon_answers else None,
                top=world.places.root,
            )
            outside = (gpu_processes.OUTSIDE, gpu_processes.OF_ANOTHER)
            every = gpu_processes.look(daemon, compute or {}, clients)
            found += [f"{instance.name}: {process}" for process in every if process.kind in outside]
    return found


def _describe_drains(plan: _Plan, request: Request, answer: Answer) -> None:
    then = " and end those that are left" if request.on_clients == TERMINATE else ""
    for name in plan.in_the_way():
        unit = f"mps-control@{name}.service"
        count, why = len(plan.statuses[name].clients), plan.waiting[name][0]
        action = f"drain {unit}, wait up to {request.drain_timeout_s} s for its {count} clients{then}: {why}"
        describe_state(answer, action, unit, f"{count} clients", "no clients")


def _drain(world: World, plan: _Plan, request: Request, answer: Answer) -> list[Drained]:
    """Wait for the clients in the way, or end them, as the request says; who still has some gets the front door back."""
    from mpsctl.lifecycle import drain  # seldom needed, and a look has to be quick

    desired = {instance.name: instance for instance in plan.instances}
    instances = [desired.get(name) or configuration.load(world, name) for name in plan.in_the_way()]
    drained = drain.drain(world, instances, request.drain_timeout_s, request.on_clients == TERMINATE, of_this_run=True)
    for one in drained:
        lines = [f"drain mps-control@{one.instance}.service: {line}" for line in one.progress]
        if one.empty:
            drains.forget_of_this_run(world, one.instance)  # the front door stays closed until the restart opens it
        # A wait for nothing changes nothing; an end of clients does.
        (answer.actions if one.empty or one.ended else answer.warnings).extend(lines)
    _give_up(world, [one for one in drained if not one.empty])
    return drained


def _give_up(world: World, drained: Sequence[Drained]) -> None:
    from mpsctl.lifecycle import drain

    for one in drained:
        drain.give_up(world, one)


def _beyond_a_live_reload(world: World, plan: _Plan) -> Optional[str]:
    from mpsctl.converge import atomic  # seldom needed, and a look has to be quick

    others = [f"install {world.places.program}"] if plan.program is not None else []
    others += [f"write {file.path}" for file in plan.files if file.path.parent != world.places.configuration]
    others += [f"remove instance {name}" for name in plan.leftovers]
    others += [f"enable {unit}" for unit in plan.to_enable()]
    others += [f"start {unit}" for unit in (*(one.unit for one in plan.to_start()), *plan.units_to_start())]
    others += [
        f"restart {instance.unit}: {plan.statuses[instance.name].restart_needed}"
        for instance in plan.to_restart()
        if instance.name not in plan.waiting  # it is deferred anyway, and holds back no limit
    ]
    changed = (atomic.beyond_limits(world, instance) for instance in plan.rewritten(world))
    return atomic.refusal([*others, *filter(None, changed)])


def _carry_out_whole(world: World, plan: _Plan, gpus: Sequence[Gpu], answer: Answer) -> None:
    """Carry the plan out and, where it does not come into force, put the host back to what it had."""
    from mpsctl.converge import atomic

    rewritten = plan.rewritten(world)
    touched = rewritten + [instance for instance in plan.to_reload() if instance not in rewritten]
    former = atomic.remember(world, touched, plan.statuses, [file.path for file in plan.files], gpus)
    try:
        _carry_out(world, plan, gpus, answer)
        answer.error = answer.error or atomic.problem_of_deferred(plan.waiting, answer.instances)
    except (MpsctlError, OSError) as error:
        answer.error = str(error)
    if not answer.error:
        return
    answer.put_back_why, statuses = atomic.put_back(world, former)
    answer.put_back = answer.put_back_why is None
    answer.changed = not answer.put_back
    answer.instances.update({status.instance: status.as_json() for status in statuses})
    told = "the former limits are in force again" if answer.put_back else f"NOT put back: {answer.put_back_why}"
    answer.error = f"{answer.error}; {told}"


def _missing() -> Optional[dict[str, str]]:
    for what in (hardware.CONTROL_DAEMON, hardware.SERVER):
        if hardware.binary(what) is None:
            places = ", ".join(hardware.SEARCH_PATH)
            return {"what": what, "message": f"{what} was found in none of {places}; install it or set mps_package"}
    return None


def _desired_instances(request: Request, gpus: Sequence[Gpu]) -> tuple[list[Instance], dict[str, str]]:
    """The desired instances and the text of each one's file.

    :raises BadValue: for anything that only this host can refuse.
    """
    listed = list(request.instances)
    if request.instance_per_gpu is not None:
        if not gpus:
            # The host's fault and no bad input: it must not stop the rest of the fleet.
            raise NotReady("no GPU of this host answers; look at `nvidia-smi` and dmesg, or take the host out")
        listed = [(str(gpu.index), request.instance_per_gpu) for gpu in gpus]
    instances = [parse_conf(text, name) for name, text in listed]
    check_gpus(instances)
    for instance in instances:
        configuration.gid_of(instance)
    if any(instance.multi_user for instance in instances) and hardware.multi_user_flag() is None:
        raise prepare.no_multi_user()
    owners: dict[str, str] = {}
    for instance in instances:
        for device in configuration.resolve(instance, gpus):
            if device.uuid in owners:
                raise one_gpu_twice(device.uuid, owners[device.uuid], instance.name)
            owners[device.uuid] = instance.name
    return instances, dict(listed)


def _fit(world: World, instances: Sequence[Instance], gpus: Sequence[Gpu], driver: Optional[str]) -> list[str]:
    """The arithmetic of every instance that says enough for one; what it warns of.

    :raises BadValue: if clients cannot fit, or cannot even start.
    """
    found: list[str] = []
    for instance in instances:
        if instance.limit is not None or instance.expected_clients is not None:
            from mpsctl.store import fitting  # spares its reading on hosts that do without

            found += fitting.judge(world, instance, configuration.resolve(instance, gpus), driver)
    return found


def _plan(
    world: World,
    request: Request,
    instances: list[Instance],
    texts: Mapping[str, str],
    gpus: Sequence[Gpu],
    program: Optional[Path],
) -> _Plan:
    desired = [
        *map(_with_binary, request.files),
        *(File(world.places.conf(name), text) for name, text in texts.items()),
    ]
    differing = [file for file in desired if not _is_as_desired(file)]
    shown = world.systemd.show([*(instance.unit for instance in instances), *request.units])
    statuses = {status.instance: status for status in proofs.look(world, instances, gpus, None, shown)}
    leftovers = [name for name in configuration.names(world) if name not in texts and is_ours(world.places.conf(name))]
    gpu_missing = [] if request.instance_per_gpu is None else [n for n in leftovers if _named_by_its_gpu(world, n)]
    leftovers = [name for name in leftovers if name not in gpu_missing]
    if leftovers:
        statuses.update({status.instance: status for status in proofs.status_of_all(world, leftovers)})
    plan = _Plan(
        instances=instances,
        statuses=statuses,
        files=differing,
        program=program if program is not None and not _same_file(program, world.places.program) else None,
        leftovers=leftovers,
        units={name: shown.get(name, {}) for name in request.units},
        units_to_enable=[name for name in request.units if not world.systemd.enabled(name)],
        gpu_missing=gpu_missing,
        partial_files=partial_files(world, [file.path for file in request.files]),
        freed=saved_compute_modes.left_behind(
            world,
            gpus,
            [device.gpu.uuid for instance in instances for device in configuration.resolve(instance, gpus)]
            + [uuid for status in statuses.values() for uuid in status.serves],
        ),
    )
    plan.waiting = _who_waits(plan, gpus)
    return plan


def partial_files(world: World, paths: Iterable[Path]) -> list[Path]:
    """What interrupted runs left beside our files: ``paths``, and those that are always ours."""
    places = world.places
    found = [left for path in (*paths, places.program) for left in files.partial_files(path.parent, path.name)]
    found += files.partial_files(places.configuration, "*.conf")
    for directory in (places.state, saved_compute_modes.directory(world), places.cache):
        found += files.partial_files(directory)
    return found


def _named_by_its_gpu(world: World, name: str) -> bool:
    """Whether an instance is one of a desired state for every GPU. Without its GPU it is not taken for not desired: a GPU that
    fell off the bus comes back with a reboot, and MPS with it."""
    try:
        return configuration.load(world, name).gpus == (name,)
    except BadValue:
        return False


def _who_waits(plan: _Plan, gpus: Sequence[Gpu]) -> dict[str, tuple[str, list[Client]]]:
    """An end of these daemons would end their clients; and who is to have a GPU of theirs waits with them."""
    ending = {one.name: str(plan.statuses[one.name].restart_needed) for one in plan.to_restart()}
    ending.update(dict.fromkeys(plan.leftovers, "the instance is no longer desired"))
    waiting = {}
    for name, why in ending.items():
        status = plan.statuses[name]
        if status.clients:
            waiting[name] = (why, status.connected)
        elif status.clients_unknown:
            waiting[name] = (f"{why}; its daemon does not answer, so who is connected cannot be told", [])
    due = [*plan.to_start(), *plan.to_restart()]
    while True:
        taken = {uuid: name for name in waiting for uuid in plan.statuses[name].serves}
        late = [
            (instance.name, device, taken[device.uuid])
            for instance in due
            for device in configuration.resolve(instance, gpus)
            if instance.name not in waiting and device.uuid in taken
        ]
        if not late:
            return waiting
        for name, device, other in late:
            waiting[name] = (f"the instance {other!r} still serves {device}", waiting[other][1])


def is_ours(path: Path) -> bool:
    """Whether a file is this project's, by its first line; what cannot be read is not."""
    try:
        return (files.read_text(path) or "").startswith(FINGERPRINT)
    except Unreadable:
        return False


def _with_binary(file: File) -> File:
    """The file with this host's daemon in it: distributions keep it in different places."""
    binary = hardware.binary(hardware.CONTROL_DAEMON) or USUAL_DAEMON
    return replace(file, content=file.content.replace(DAEMON_PLACE, str(binary)))


def _is_as_desired(file: File) -> bool:
    try:
        mode = file.path.stat().st_mode & 0o7777
    except (FileNotFoundError, NotADirectoryError):
        return False
    return mode == file.mode and _text(file.path) == file.content


def _text(path: Path) -> Optional[str]:
    """The text of a file that is about to be written or removed, as far as a diff can show it.

    :raises NotAFile: if it is none: what is not ours is not replaced.
    """
    try:
        return files.read_text(path)
    except TooLarge as error:
        return f"(larger than {error.most_bytes} bytes)\n"


def _same_file(one: Path, other: Path) -> bool:
    try:
        return files.read_bytes(one, _MOST_PROGRAM_BYTES) == files.read_bytes(other, _MOST_PROGRAM_BYTES)
    except TooLarge:
        return False


def _describe(world: World, plan: _Plan, gpus: Sequence[Gpu], answer: Answer) -> None:
    """Put the plan into the answer: diff, actions, what is deferred, what stands in no need of change."""
    if plan.program is not None:
        _describe_program(world, plan.program, answer)
    for file in plan.files:
        answer.actions.append(f"write {file.path}")
        add_diff(answer, str(file.path), _text(file.path), file.content)
    for path in plan.partial_files:
        describe_state(answer, f"remove {path}: a run was interrupted", str(path), "present", "absent")
    for name in plan.leftovers:
        if name not in plan.waiting:
            describe_leftover(world, name, plan.statuses[name], answer)
    for unit in plan.to_enable():
        describe_state(answer, f"enable {unit}", unit, "not started at boot", "started at boot")
    for instance in plan.to_start():
        if instance.name in plan.waiting:
            continue
        state = str(plan.statuses[instance.name].unit["active_state"])
        describe_state(answer, f"start {instance.unit}", instance.unit, state, "active")
    for unit in plan.units_to_start():
        state = str(plan.units[unit].get("ActiveState", "unknown"))
        describe_state(answer, f"start {unit}", unit, state, "active")
    for unit in plan.units_to_restart():
        describe_state(answer, f"restart {unit}: its file has changed", unit, "as before", "as its file says")
    for instance in plan.to_restart():
        if instance.name not in plan.waiting:
            why = str(plan.statuses[instance.name].restart_needed)
            describe_state(answer, f"restart {instance.unit}: {why}", instance.unit, why, "restarted")
    for instance in plan.to_reload():
        findings = "; ".join(plan.statuses[instance.name].own_findings)
        describe_state(answer, f"reload {instance.unit}: {findings}", instance.unit, findings, "in force")
    for gpu, mode in plan.freed:
        describe_state(answer, f"bring back the compute mode of {gpu}: {mode}", str(gpu), str(gpu.compute_mode), mode)
    if not plan.files and _stale(plan):
        describe_state(answer, "reload systemd's units", "systemd", "older units loaded", "units as on disk")
    for name, (why, clients) in plan.waiting.items():
        defer(world, answer, name, why, clients)
    if answer.missing and answer.actions:
        answer.warnings.append(
            f"{answer.missing['what']} is not installed yet: the unit is shown with its usual path {USUAL_DAEMON}"
        )
    if any(file.path == world.places.units / UNIT for file in plan.files) and any(
        instance not in plan.to_start() and instance not in plan.to_restart() for instance in plan.instances
    ):
        answer.warnings.append(
            f"{UNIT} has changed: daemons that run take it at their next start, none is restarted for it"
        )
    answer.changed = bool(answer.actions)
    answer.instances = {i.name: plan.statuses[i.name].as_json() for i in plan.instances}
    answer.warnings += _about_clients(plan.statuses.values())
    for name in plan.gpu_missing:
        unit = f"mps-control@{name}.service"
        answer.warnings.append(
            f"instance {name} is kept, but GPU {name} is gone from this host: see `mpsctl gpus` and dmesg; if it is to"
            f" stay away, `systemctl disable --now {unit}` and remove {world.places.conf(name)}"
        )
    for gpu in gpus:
        if gpu.pre_volta:
            answer.warnings.append(f"{gpu} is older than Volta: at most 16 clients, no memory protection between them")


def _describe_program(world: World, program: Path, answer: Answer) -> None:
    installed = world.places.program
    answer.actions.append(f"install {installed}")
    add_diff(answer, str(installed), _digest(installed), _digest(program))


def _digest(path: Path) -> str:
    try:
        content = files.read_bytes(path, _MOST_PROGRAM_BYTES)
    except TooLarge as error:
        return f"larger than {error.most_bytes} bytes\n"
    return "" if content is None else f"sha256 {hashlib.sha256(content).hexdigest()}\n"


def describe_leftover(world: World, name: str, status: Status, answer: Answer) -> None:
    unit = str(status.unit.get("name", f"mps-control@{name}.service"))
    describe_state(answer, f"stop and remove {unit}", unit, str(status.unit.get("active_state", "unknown")), "absent")
    path = world.places.conf(name)
    add_diff(answer, str(path), files.read_text(path) or "", None)


def describe_state(answer: Answer, action: str, what: str, before: str, after: str) -> None:
    answer.actions.append(action)
    add_diff(answer, what, f"{before}\n", f"{after}\n")


def add_diff(answer: Answer, what: str, before: Optional[str], after: Optional[str]) -> None:
    """None stands for a file that is not there."""
    answer.diff.append(
        {
            "before_header": what if before is not None else f"{what} (absent)",
            "after_header": what if after is not None else f"{what} (absent)",
            "before": before or "",
            "after": after or "",
        }
    )


def defer(world: World, answer: Answer, name: str, why: str, clients: Sequence[Client]) -> None:
    """A restart would end these clients: it waits until they are gone, or the operator ends them."""
    described = [
        {
            "pid": client.pid,
            "uid": client.uid,
            "user": client.user,
            "command": client.command,
            "age_s": procfs.age_s(client.started_at, world.now_s()),
        }
        for client in clients
    ]
    answer.pending.append({"instance": name, "why": why, "clients": described})


def _carry_out(world: World, plan: _Plan, gpus: Sequence[Gpu], answer: Answer) -> None:
    if plan.program is not None:
        files.write(world.places.program, plan.program.read_bytes(), 0o755)
    # Before systemd calls the program many times at once.
    bytecode.keep(world.places)
    for file in plan.files:
        files.write(file.path, file.content, file.mode)
    for path in plan.partial_files:
        path.unlink(missing_ok=True)
    problems = []
    if plan.to_enable():
        problems.append(world.systemd.act("enable", plan.to_enable()))
    if _stale(plan) or plan.to_enable() or any(file.path.is_relative_to(world.places.units) for file in plan.files):
        systemd.ensure(world.systemd.act("daemon-reload"), "systemctl daemon-reload")
    for name in plan.leftovers:
        if name not in plan.waiting:
            remove_instance(world, name)
    begun = [one for one in plan.to_start() if one.name not in plan.waiting]
    caught = [one for one in begun if one in plan.caught_starting(world)]
    anew = [one for one in plan.to_restart() if one.name not in plan.waiting]
    problems += [
        world.systemd.act(verb, units)
        for verb, units in (
            ("start", [*(i.unit for i in begun if i not in caught), *plan.units_to_start()]),
            ("restart", [*(i.unit for i in [*caught, *anew]), *plan.units_to_restart()]),
            ("reload", [i.unit for i in plan.to_reload()]),
        )
        if units
    ]
    _restore_freed_gpus(world, plan, gpus)
    _read_back(world, plan, answer, [problem for problem in problems if problem])


def remove_instance(world: World, name: str) -> None:
    """Stop an instance that is no longer desired; its own stop path brings the compute mode back."""
    unit = f"mps-control@{name}.service"
    systemd.ensure(world.systemd.act("disable", [unit]), f"systemctl disable {unit}")
    systemd.ensure(world.systemd.act("stop", [unit]), f"systemctl stop {unit}")
    try:
        # Where a GPU is closed while MPS is down, the stop left it so.
        stop.restore_modes(world, configuration.load(world, name))
    except BadValue as error:
        world.say(f"the compute modes of {name} were left as they are: {error}")
    drains.forget(world, name)
    world.places.conf(name).unlink(missing_ok=True)
    files.sync_directory(world.places.configuration)


def _restore_freed_gpus(world: World, plan: _Plan, gpus: Sequence[Gpu]) -> None:
    """Bring back the former compute mode of GPUs that an instance served and serves no longer."""
    ended = [*(instance.name for instance in plan.to_restart()), *plan.leftovers]
    if not plan.freed and all(name in plan.waiting for name in ended):
        return
    served = {device.uuid for instance in plan.instances for device in configuration.resolve(instance, gpus)}
    served.update(uuid for name in plan.waiting for uuid in plan.statuses[name].serves)
    served.update(saved_compute_modes.had_by(world, configuration.names(world), gpus))
    with world.nvml() as nvml:
        for gpu in nvml.gpus():
            if gpu.uuid not in served:
                compute_modes.restore(world, nvml, gpu, "exclusive_process")
                saved_compute_modes.forget(world, gpu)


def _read_back(world: World, plan: _Plan, answer: Answer, problems: Sequence[str]) -> None:
    """Nothing is reported done that the host does not show."""
    gpus, problem = proofs.host_gpus(world)
    shown = world.systemd.show([*(instance.unit for instance in plan.instances), *plan.units])
    statuses = proofs.look(world, plan.instances, gpus, problem, shown)
    answer.instances = {status.instance: status.as_json() for status in statuses}
    wrong = [
        f"{status.unit['name']}: {'; '.join(status.own_findings)}"
        for status in statuses
        if status.own_findings and status.instance not in plan.waiting
    ]
    for unit in plan.units:
        state = shown.get(unit, {}).get("ActiveState", "unknown")
        if state != "active" or not world.systemd.enabled(unit):
            wrong.append(f"{unit}: it is {state}, expected enabled and active; see `systemctl status {unit}`")
    answer.warnings += [line for line in _about_clients(statuses) if line not in answer.warnings]
    for status in statuses:
        if not status.as_desired and status.instance not in plan.waiting and not status.active:
            last = world.systemd.journal(str(status.unit["name"]), 3)
            wrong.append(f"its journal ends: {' | '.join(last)}")
    if wrong:
        answer.error = " ".join([*wrong, *problems])
    elif problems:
        answer.warnings.extend(problems)


def _about_clients(statuses: Iterable[Status]) -> list[str]:
    """What is told, and fails no run: clients without their limit, and drains."""
    lines = (
        (status.instance, [*status.client_findings, *([status.drained] if status.drained else [])])
        for status in statuses
    )
    return [f"{name}: {line}" for name, of_one in lines for line in of_one]


def _stale(plan: _Plan) -> bool:
    """Whether systemd holds older units than lie on the disk."""
    return any(status.unit.get("needs_daemon_reload") for status in plan.statuses.values()) or any(
        shown.get("NeedDaemonReload") == "yes" for shown in plan.units.values()
    )


def own_file() -> Optional[Path]:
    """The one file this program runs from, or None when it runs from its sources."""
    path = Path(sys.argv[0])
    return path if path.is_file() and path.suffix != ".py" else None
