"""What an instance is, beside what is desired of it: every word of it read back from the host."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import hardware, pipe, procfs
from mpsctl.adapters.background import Background
from mpsctl.adapters.nvml import ClientMemory
from mpsctl.model import daemon_environment
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.model.gpu import Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, desired_values, drains, record, saved_compute_modes
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.observe.clients import Client


NO_LINE = "cannot tell, the journal has no line"


@dataclass
class Value:
    """One limit of the defaults or of a server: desired, and as the daemon shows it (rounded from 1 GiB on).

    ``log`` is what the server's own log says of a memory limit, exact to the byte; None for what it is not
    asked about. Where it says nothing, the getter and our record decide.
    """

    what: str
    desired: str
    shown: Optional[str]
    in_force: bool
    log: Optional[str] = None
    log_bytes: Optional[int] = None


@dataclass
class ServerStatus:
    """A server of the daemon; ``state`` is None where the daemon does not tell (535)."""

    pid: int
    uid: Optional[int]
    state: Optional[str]
    values: list[Value]
    clients: list[Client]


@dataclass
class Status:
    """One instance as found. ``findings`` says in one line each what is not in the desired state; empty is good.

    ``client_findings`` are those of them that speak of clients, which no reload can mend; ``notes`` are worth
    knowing and no fault.
    ``restart_needed`` names what only a restart can change, ``reload_needed`` is whether a reload would
    bring what differs into force.
    """

    instance: str
    as_desired: bool = False
    findings: list[str] = field(default_factory=list)
    client_findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unit: dict[str, Any] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    serves: list[str] = field(default_factory=list)
    """the devices of the running daemon by UUID, whatever is desired"""
    pipe_directory: Optional[str] = None
    door_open: bool = False
    daemon_answers: bool = False
    daemon_problem: Optional[str] = None
    """why the daemon did not tell all that it was asked"""
    unresponsive: bool = False
    """the daemon's process lives and was asked, and nobody answered"""
    values: list[Value] = field(default_factory=list)
    servers: list[ServerStatus] = field(default_factory=list)
    clients_unknown: bool = False
    """whether the daemon is there and did not answer, so that nobody knows who is connected"""
    restart_needed: Optional[str] = None
    reload_needed: bool = False
    short_lives: int = 0
    drained: Optional[str] = None
    """since when no new client is let in, as the line among the findings that says so"""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def active(self) -> bool:
        """Up, whether or not its limits are just being set anew."""
        return self.unit.get("active_state") in ("active", "reloading")

    @property
    def own_findings(self) -> list[str]:
        """What is for the host to mend. A clients without their limit is told, and fails no run: the limits are in force. Nor
        does a drain, which an operator ends."""
        return [line for line in self.findings if line not in self.client_findings and line != self.drained]

    @property
    def every_value(self) -> list[Value]:
        """Those of the defaults and of each server."""
        return [*self.values, *(value for server in self.servers for value in server.values)]

    @property
    def connected(self) -> list[Client]:
        return [client for server in self.servers for client in server.clients]

    @property
    def clients(self) -> list[int]:
        return [client.pid for client in self.connected]


def status_of_all(world: World, names: Sequence[str]) -> list[Status]:
    """The status of each named instance."""
    instances: list[Instance] = []
    broken: dict[str, Status] = {}
    for name in names:
        try:
            instances.append(configuration.load(world, name))
        except BadValue as error:
            broken[name] = Status(name, findings=[str(error)])
    units = [instance.unit for instance in instances]
    shown = Background(lambda: world.systemd.show(units))  # systemd answers while NVML is asked
    gpus, problem = host_gpus(world)
    found = {status.instance: status for status in look(world, instances, gpus, problem, shown.result())}
    return [found[name] if name in found else broken[name] for name in names]


def left_behind(world: World, found: Sequence[Status]) -> list[str]:
    """One line for each GPU that is in a mode of ours though no instance has it; NVML is asked only in need.

    ``found`` is the status of every instance of the host.
    """
    had = {gpu["uuid"] for status in found for gpu in status.gpus} | {uuid for one in found for uuid in one.serves}
    if not saved_compute_modes.recorded(world) - had:
        return []
    gpus, _ = host_gpus(world)
    return [
        f"{gpu}: compute mode is {gpu.compute_mode}, and no instance has it: nobody can use it; a run was interrupted, run"
        f" site.yml or playbooks/remove.yml again (it was {mode} before the first start)"
        for gpu, mode in saved_compute_modes.left_behind(world, gpus, had)
    ]


def host_gpus(world: World) -> tuple[list[Gpu], Optional[str]]:
    """The host's GPUs, or an empty list with the reason why NVML does not show them."""
    try:
        with world.nvml() as nvml:
            return nvml.gpus(), None
    except NotReady as error:
        return [], str(error)


def look(
    world: World,
    instances: Iterable[Instance],
    gpus: Sequence[Gpu],
    problem: Optional[str],
    shown: Optional[Mapping[str, Mapping[str, str]]] = None,
) -> list[Status]:
    """The status of instances whose desired state is given, whether or not it is what their files say.

    ``shown`` is what systemd shows of their units, where the caller has asked already.
    """
    instances = list(instances)
    if shown is None:
        shown = world.systemd.show([instance.unit for instance in instances])
    with ExitStack() as stack:
        memory = ClientMemory(world.nvml, stack)
        return [
            _look_at_one(world, instance, gpus, problem, shown.get(instance.unit, {}), memory) for instance in instances
        ]


def _look_at_one(
    world: World,
    instance: Instance,
    gpus: Sequence[Gpu],
    problem: Optional[str],
    shown: Mapping[str, str],
    memory: ClientMemory,
) -> Status:
    status = Status(instance.name, pipe_directory=instance.pipe_directory, simulated=hardware.simulated())
    status.short_lives = record.short_lives(world, instance.name) or 0
    status.unit = _unit(world, instance, shown)
    drain = drains.read(world, instance.name)
    if drain is not None:
        status.drained = f"drained since {drain.since}: no new client is let in"
        status.drained += (
            f" before `mpsctl undrain {instance.name}`"
            if drain.run_pid is None
            else f" while pid {drain.run_pid} waits"
        )
        status.findings.append(status.drained)
    if problem:
        status.findings.append(problem)
    devices: tuple[Device, ...] = ()
    try:
        devices = () if problem else configuration.resolve(instance, gpus)
    except BadValue as error:
        status.findings.append(str(error))
    for ordinal, device in enumerate(devices):
        status.gpus.append(_gpu(instance, ordinal, device))
        desired = instance.compute_mode if status.active else instance.compute_mode_when_down
        if desired is not None and device.gpu.compute_mode != desired:
            status.reload_needed = True
            status.findings.append(
                f"{device}: compute mode is {device.gpu.compute_mode or 'not told by NVML'}, desired {desired}"
            )
    _look_at_unit(status)
    pid = int(status.unit["main_pid"])
    if pid:
        _look_at_daemon(world, instance, devices, gpus, pid, memory, status)
    elif any(device.gpu.compute_mode not in (None, "default", instance.compute_mode_when_down) for device in devices):
        status.findings.append("the GPU is not in default compute mode and no daemon serves it: nobody can use it")
    status.as_desired = not status.findings
    return status


def _unit(world: World, instance: Instance, shown: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": instance.unit,
        "active_state": shown.get("ActiveState", "unknown"),
        "sub_state": shown.get("SubState", "unknown"),
        "result": shown.get("Result", ""),
        "main_pid": int(shown.get("MainPID") or 0),
        "restarts": int(shown.get("NRestarts") or 0),
        "enabled": world.systemd.enabled(instance.unit),
        "active_since": shown.get("ActiveEnterTimestamp", ""),
        "needs_daemon_reload": shown.get("NeedDaemonReload") == "yes",
        "invocation": shown.get("InvocationID", ""),
    }


def _look_at_unit(status: Status) -> None:
    unit = status.unit
    if not unit["enabled"]:
        status.findings.append(f"{unit['name']} is not enabled: it will not start at boot")
    if unit["active_state"] == "active":
        return
    if unit["active_state"] == "reloading":
        # What it reads of a file that is replaced meanwhile cannot be told: another reload makes it certain.
        status.reload_needed = True
    state = f"{unit['name']} is {unit['active_state']} ({unit['sub_state']})"
    if unit["result"] == "exec-condition":
        state += ": skipped on this host, the journal says why"
    elif status.short_lives > 1:
        state += f": {status.short_lives} starts in a row did not last"
    status.findings.append(f"{state}; see `journalctl -u {unit['name']}`")


def _gpu(instance: Instance, ordinal: int, device: Device) -> dict[str, Any]:
    gpu = device.gpu
    return {
        "ordinal": ordinal,
        "index": gpu.index,
        "uuid": device.uuid,
        "pci_address": gpu.pci_address,
        "name": gpu.name,
        "memory_mib": device.memory_mib,
        "compute_mode": gpu.compute_mode,
        "compute_mode_desired": instance.compute_mode,
    }


def _look_at_daemon(
    world: World,
    instance: Instance,
    devices: Sequence[Device],
    gpus: Sequence[Gpu],
    pid: int,
    memory: ClientMemory,
    status: Status,
) -> None:
    public = Path(instance.pipe_directory)
    running = daemon_environment.of_process(procfs.environment(pid))
    private = running.pipe_directory if running else pipe.behind_door(public)
    status.door_open = private is not None and pipe.behind_door(public) == private
    if running is not None:
        status.serves = list(running.devices)
        desired_devices = tuple(device.uuid for device in devices)
        if running.pipe_directory.parent != public:
            status.restart_needed = f"the daemon serves {running.pipe_directory.parent}, desired {public}"
        elif desired_devices and running.devices != desired_devices:
            status.restart_needed = (
                f"the daemon serves {', '.join(running.devices)}, desired {', '.join(desired_devices)}"
            )
        elif not _is_member(instance, pid):
            status.restart_needed = f"the daemon is no member of the group {instance.group}, nor are its servers"
        elif hardware.serves_several_users(procfs.command(pid)) != instance.multi_user:
            status.restart_needed = (
                f"the daemon serves {'one user' if instance.multi_user else 'several users'} at a time"
            )
        else:
            status.restart_needed = hardware.replaced(pid)
    if status.restart_needed:
        status.findings.append(f"a restart is needed: {status.restart_needed} (taken at the next start)")
    if private is None:
        if status.active and not status.drained:
            status.findings.append("the front door is closed: no client can connect (or ask as root, who sees why)")
        return
    if procfs.state(pid) == "T":
        status.unresponsive = status.clients_unknown = True
        status.daemon_problem = (
            f"the control daemon (pid {pid}) is stopped by a signal: it answers nobody until `kill -CONT {pid}`"
        )
        status.findings.append(status.daemon_problem)
        return
    try:
        _look_at_limits(world, instance, running, gpus, private, pid, memory, status)
    except MpsctlError as error:
        status.daemon_problem = str(error)
        status.findings.append(status.daemon_problem)
        status.clients_unknown = isinstance(error, control.NotServed)
    _look_at_access(instance, private, status)
    if status.drained and status.door_open:
        status.reload_needed = True
        status.findings.append(
            f"the front door is open though the instance is drained: clients find the daemon on {public}"
        )
    if status.active and not status.door_open and not status.drained:
        status.reload_needed = True
        status.findings.append(f"the front door is closed: no client finds the daemon on {public}")


def _is_member(instance: Instance, pid: int) -> bool:
    """Whether the daemon may pass its own door; True where that cannot be told."""
    gid, groups = None if instance.group is None else procfs.gid(instance.group), procfs.groups(pid)
    return gid is None or not groups or gid in groups


def _look_at_access(instance: Instance, private: Path, status: Status) -> None:
    try:
        gid = configuration.gid_of(instance)
        as_desired = pipe.is_restricted_as(private, gid)
    except (BadValue, OSError) as error:
        status.findings.append(str(error))
        return
    if not as_desired:
        desired = f"the group {instance.group}" if instance.group else "everyone"
        status.reload_needed = True
        status.findings.append(f"who may connect is not in the desired state ({desired}): {private}")


def _look_at_limits(
    world: World,
    instance: Instance,
    running: Optional[daemon_environment.DaemonEnvironment],
    gpus: Sequence[Gpu],
    private: Path,
    pid: int,
    memory: ClientMemory,
    status: Status,
) -> None:
    daemon = world.daemon_of(instance.name, private)
    served = running.devices if running else tuple(gpu["uuid"] for gpu in status.gpus)
    memory_mib = desired_values.memory_of(served, gpus) if gpus else []
    desired_of_daemon = desired_values.Desired.of(instance, memory_mib)
    known = record.read(world, instance.name, pid)
    desired = desired_values.steps(desired_of_daemon, known)
    try:
        *shown, listed = daemon.ask([*(step.getter for step in desired), control.SERVER_LIST])
    except (control.NotServed, control.Unreachable):
        status.unresponsive = procfs.alive(pid)
        raise
    status.values = values_of(desired, shown)
    status.daemon_answers = True
    found = control.servers(daemon, listed)
    if found:
        from mpsctl.observe import servers  # a host on which nobody works does not pay for it

        of_devices = servers.OfDaemon(world, daemon, served, desired_of_daemon, known, memory)
        servers.look(of_devices, found, memory_mib, status)
    if status.active and instance.eager_server is not None and not status.servers:
        status.reload_needed = True
        status.findings.append(f"no server of user {instance.eager_server} holds the GPU, as mps_server_user asks")
    for where, values in [("default", status.values)] + [(f"server {s.pid}", s.values) for s in status.servers]:
        for value in values:
            if not value.in_force:
                status.reload_needed = True
                shows = f"the daemon shows {value.shown or 'nothing'}"
                if value.log_bytes is not None and f"{value.log_bytes >> 20} MiB" != value.desired:
                    shows = f"the server's log says {value.log}"
                status.findings.append(f"{value.what} ({where}): {shows}, desired {value.desired}")


def values_of(
    steps: Sequence[desired_values.Step], answers: Sequence[Sequence[str]], of_server: bool = False
) -> list[Value]:
    return [
        Value(
            step.what,
            step.desired,
            " / ".join(lines) or None,
            step.in_force(lines),
            _said(step) if of_server and step.is_memory_limit else None,
            step.said_bytes,
        )
        for step, lines in zip(steps, answers)
    ]


def _said(step: desired_values.Step) -> str:
    if step.said_bytes is None:
        return NO_LINE
    return f"0x{step.said_bytes:x} bytes ({step.said_bytes >> 20} MiB)"
