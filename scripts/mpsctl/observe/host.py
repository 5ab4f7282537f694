"""The one look at a host on which all checks stand. Everything in it is bounded in time."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import bounded, daemon_log, procfs
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.adapters.nvml import Nvml
from mpsctl.model import daemon_environment
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.model.gpu import Device, Gpu, Load
from mpsctl.model.instance import Instance
from mpsctl.observe import gpu_processes
from mpsctl.observe import status as statuses
from mpsctl.observe.gpu_processes import GpuProcess, OfDaemon
from mpsctl.observe.status import Status
from mpsctl.store import configuration
from mpsctl.store.world import World

DEADLINE_S = 5.0
"""All questions to one daemon together."""
NVML_TIMEOUT_S = 10.0
NO_DAEMON = "no daemon runs"

Held = dict[int, Optional[int]]


@dataclass
class Seen:
    """What NVML showed, taken once; it answers as NVML does. ``problem`` says why it showed nothing.

    ``compute``, ``clients`` and ``loads`` are by the UUID of each GPU and MIG device, None where NVML does not tell.
    """

    gpus_seen: list[Gpu] = field(default_factory=list)
    driver: str = ""
    compute: dict[str, Optional[Held]] = field(default_factory=dict)
    clients: dict[str, Optional[Held]] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    problem: Optional[str] = None
    cuda: Optional[int] = None

    @contextmanager
    def opened(self) -> Iterator[Nvml]:
        if self.problem:
            raise NotReady(self.problem)
        yield self

    def driver_version(self) -> str:
        return self.driver

    def cuda_version(self) -> Optional[int]:
        return self.cuda

    def gpus(self) -> list[Gpu]:
        return self.gpus_seen

    def compute_memory_mib(self, uuid: str) -> Optional[Held]:
        return self.compute.get(uuid)

    def client_memory_mib(self, uuid: str) -> Optional[Held]:
        return self.clients.get(uuid)

    def load(self, uuid: str) -> Load:
        return self.loads.get(uuid, Load())

    def set_compute_mode(self, gpu: Gpu, mode: str) -> None:
        raise AssertionError(f"verify changes nothing: {gpu}, {mode}")


def at_nvml(world: World, timeout_s: float) -> Seen:
    """NVML's answers, asked in a process of its own: a hung driver holds whoever asks."""

    def ask() -> Seen:
        with world.nvml() as nvml:
            gpus = nvml.gpus()
            uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
            return Seen(
                gpus,
                nvml.driver_version(),
                {uuid: nvml.compute_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.client_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.load(uuid) for uuid in uuids},
                cuda=nvml.cuda_version(),
            )

    try:
        return bounded.call(ask, timeout_s, "NVML")
    except NotReady as error:
        return Seen(problem=str(error))


@dataclass(frozen=True)
class ControlDaemon:
    """A control daemon's process. ``directory`` and ``devices`` (UUIDs) are None where /proc does not tell.

    ``elsewhere`` is whether its directory is not this host's of that name: a container has its own.
    """

    pid: int
    command: str
    user: Optional[str]
    container: Optional[str]
    directory: Optional[Path]
    devices: Optional[tuple[str, ...]]
    elsewhere: bool = False

    def __str__(self) -> str:
        where = self.directory or "a directory that cannot be read"
        inside = ", in another namespace" if self.elsewhere else ""
        inside = f", container {self.container}" if self.container else inside
        gpus = "GPUs that cannot be read" if self.devices is None else ", ".join(self.devices) or "no GPU"
        return f"pid {self.pid} ({self.command}, user {self.user or 'not told'}{inside}) on {where} with {gpus}"


def control_daemons(gpus: Sequence[Gpu]) -> list[ControlDaemon]:
    """Every control daemon of this host, by environment; servers, which inherit it, are not among them."""
    return [_control_daemon(pid, gpus) for pid in _daemon_pids()]


def _daemon_pids() -> list[int]:
    pids = list(control.processes(front_ends=False))
    return [pid for pid in pids if procfs.parent(pid) not in pids]


def _daemons_within_bounds(gpus: Sequence[Gpu]) -> list[ControlDaemon]:
    """The same in bounded time: of one that hangs in the kernel, what /proc tells may hang as well.

    :raises NotReady: if not even the list of processes comes.
    """
    try:
        return bounded.call(lambda: control_daemons(gpus), DEADLINE_S, "the look at the control daemons")
    except NotReady:
        pids = bounded.call(_daemon_pids, DEADLINE_S, "the list of processes")
    calls = {pid: bounded.Call(partial(_control_daemon, pid, gpus), DEADLINE_S, f"process {pid}") for pid in pids}
    found = []
    for pid, call in calls.items():
        try:
            found.append(call.answer())
        except NotReady:
            found.append(ControlDaemon(pid, "it hangs: its environment does not come", None, None, None, None))
    return found


def _control_daemon(pid: int, gpus: Sequence[Gpu]) -> ControlDaemon:
    environment, uid = procfs.environment(pid), procfs.uid(pid)
    user = None if uid is None else procfs.user(uid) or str(uid)
    about = ControlDaemon(pid, procfs.command(pid), user, procfs.container(pid), None, None)
    if environment is None:
        return about
    directory = Path(environment.get(daemon_environment.PIPE_DIRECTORY) or daemon_environment.DEFAULT_PIPE_DIRECTORY)
    return replace(
        about, directory=directory, devices=_devices(environment, gpus), elsewhere=_elsewhere(pid, directory)
    )


def _elsewhere(pid: int, directory: Path) -> bool:
    """Whether a daemon of another pid namespace has another directory of this name than this host."""
    namespace = procfs.namespace(pid, "pid")
    if namespace is None or namespace == procfs.namespace(os.getpid(), "pid"):
        return False
    try:
        return not os.path.samefile(directory, procfs.root(pid) / str(directory).lstrip("/"))
    except OSError:
        return True


def _devices(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What a daemon with this environment offers: without the variable every GPU (driver 580, H200)."""
    chosen = environment.get(daemon_environment.VISIBLE_DEVICES)
    if chosen is None:
        return tuple(gpu.uuid for gpu in gpus)
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
    found = []
    for word in (part.strip() for part in chosen.split(",")):
        found += [gpu.uuid for gpu in gpus if word == str(gpu.index)]
        if word.startswith(("GPU-", "MIG-")):
            found += [uuid for uuid in uuids if uuid.startswith(word)] or [word]
    return tuple(found)


@dataclass
class HostLook:
    """The host. ``shown`` is what systemd shows of the instances' units, None where it does not tell.

    ``daemons_problem`` says why it is not known which control daemons run.
    """

    world: World
    seen: Seen
    daemons: list[ControlDaemon]
    instances: dict[str, Instance]
    refused: dict[str, BadValue]
    shown: Optional[Mapping[str, Mapping[str, str]]] = None
    systemd_problem: Optional[str] = None
    daemons_problem: Optional[str] = None

    def main_pid(self, instance: Instance) -> int:
        return int((self.shown or {}).get(instance.unit, {}).get("MainPID") or 0)

    @property
    def foreign(self) -> list[ControlDaemon]:
        """The daemons that are no instance's."""
        mine = {self.main_pid(instance) for instance in self.instances.values()}
        return [daemon for daemon in self.daemons if daemon.pid not in mine]

    def devices(self, instance: Instance) -> tuple[Device, ...]:
        try:
            return configuration.resolve(instance, self.seen.gpus_seen)
        except BadValue:
            return ()


@dataclass
class InstanceLook:
    """One instance. ``log`` is its unit's present start, ``log_problem`` why that is not known."""

    host: HostLook
    instance: Instance
    status: Status
    devices: tuple[Device, ...]
    log: DaemonLog = field(default_factory=DaemonLog)
    log_problem: Optional[str] = None
    processes: dict[str, list[GpuProcess]] = field(default_factory=dict)
    """by the UUID of the device"""

    @property
    def pid(self) -> int:
        return self.host.main_pid(self.instance)

    @property
    def public(self) -> Path:
        return Path(self.instance.pipe_directory)

    @property
    def why_no_answer(self) -> Optional[str]:
        """Why what only the daemon tells is not known; None where it told all."""
        if self.status.daemon_answers and not self.status.daemon_problem:
            return None
        if self.host.systemd_problem:
            return self.host.systemd_problem
        if not self.pid:
            return NO_DAEMON
        return "the daemon did not tell (see daemon-answers)"


def at_host(world: World, names: Sequence[str], nvml_timeout_s: float) -> HostLook:
    """Look at the host, and at the files of all its instances: what is not asked about counts beside the others."""
    seen = at_nvml(world, nvml_timeout_s)
    bounded_world = replace(world, nvml=seen.opened)
    instances, refused = {}, {}
    for name in dict.fromkeys([*configuration.names(world), *names]):
        try:
            instances[name] = configuration.load(world, name)
        except BadValue as error:
            refused[name] = error
    look = HostLook(bounded_world, seen, [], instances, refused)
    try:
        look.daemons = _daemons_within_bounds(seen.gpus_seen)
    except NotReady as error:
        look.daemons_problem = str(error)
    try:
        look.shown = world.systemd.show([instance.unit for instance in instances.values()])
    except (MpsctlError, OSError) as error:
        look.systemd_problem = str(error)
    return look


def status_of(host: HostLook, instance: Instance) -> Status:
    """An instance's status; its daemon is asked for at most DEADLINE_S seconds, and not at all while it is stopped."""
    world = host.world.hurried(host.world.now_s() + DEADLINE_S, host.main_pid(instance))
    (status,) = statuses.look(world, [instance], host.seen.gpus_seen, host.seen.problem, host.shown or {})
    return status


def at_instance(host: HostLook, instance: Instance) -> InstanceLook:
    """Look at one instance."""
    look = InstanceLook(host, instance, status_of(host, instance), host.devices(instance))
    _read_log(look)
    _list_processes(look)
    return look


def _read_log(look: InstanceLook) -> None:
    invocation = look.status.unit.get("invocation", "")
    if not invocation or not look.pid:
        look.log_problem = look.host.systemd_problem or NO_DAEMON
        return
    try:
        lines = look.host.world.systemd.journal_of_start(invocation, daemon_log.WANTED)
    except (MpsctlError, OSError) as error:
        look.log_problem = str(error)
        return
    look.log = daemon_log.read(lines)
    if not lines and os.geteuid() != 0:
        look.log_problem = "the journal shows this user nothing: ask as root"


def _list_processes(look: InstanceLook) -> None:
    status = look.status
    daemon = OfDaemon(
        public=look.public,
        devices=[device.uuid for device in look.devices],
        pid=look.pid,
        servers=[server.pid for server in status.servers],
        clients=status.clients if look.why_no_answer in (None, NO_DAEMON) else None,
        top=look.host.world.places.root,
    )
    for device in look.devices:
        compute = look.host.seen.compute.get(device.uuid)
        if compute is not None:
            look.processes[device.uuid] = gpu_processes.look(daemon, compute, look.host.seen.clients.get(device.uuid))
