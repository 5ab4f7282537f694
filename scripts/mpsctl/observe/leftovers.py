"""Who is connected to each instance, and which processes were left over on the GPUs.

A process that holds GPU memory is taken for left over by what the kernel and logind say, never by its age or its
name. It is one of these:

* it has ended, and the daemon still lists it, or its parent has not taken note of it (a zombie);
* it waits in the kernel (state D) at every look within a second: no signal ends it;
* its parent is process 1, so that whoever started it is gone, and what it was started in is gone too: the login
  session has ended (logind has no such session, or only keeps it open for what is left in it), the container's
  runtime no longer stands above it (a container's processes that lose their parent go to the container's own first
  process or to the runtime's shim; only without these they go to process 1), the batch job has no step daemon any
  more, or, for an MPS server, the control daemon.

A service, or a job that somebody left behind on purpose in a session that is still there, is none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Iterable, Optional, Sequence

from mpsctl.adapters import hardware, procfs
from mpsctl.model.errors import NotReady
from mpsctl.observe import status as proofs
from mpsctl.observe.clients import Client
from mpsctl.observe.status import Status
from mpsctl.store.world import World

_LOOKS, _PAUSE_S = 3, 0.5
_STEP_DAEMON = "slurmstepd"


@dataclass(frozen=True)
class Connected:
    """A client of an instance; ``left_over`` says why it is taken for one that nobody minds, or is None."""

    instance: str
    server: int
    client: Client
    age_s: Optional[int]
    left_over: Optional[str] = None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.client), "server": self.server, "age_s": self.age_s, "left_over": self.left_over}


@dataclass(frozen=True)
class LeftOver:
    """A process that was left over. ``memory_mib`` is what it holds by the device's UUID, None where NVML does not
    tell; ``instance`` is the one whose client it is, or None."""

    pid: int
    user: Optional[str]
    command: str
    age_s: Optional[int]
    state: str
    container: Optional[str]
    memory_mib: dict[str, Optional[int]]
    instance: Optional[str]
    why: str


@dataclass
class Found:
    """``unknown`` says of an instance why its clients cannot be told; ``problem`` why NVML shows no processes."""

    connected: dict[str, list[Connected]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    left_over: list[LeftOver] = field(default_factory=list)
    problem: Optional[str] = None


def look(world: World, names: Sequence[str]) -> Found:
    """The clients of the named instances, and what was left over on any GPU of this host."""
    statuses = proofs.status_of_all(world, names)
    held, problem = _held_mib(world)
    of_instance = {client.pid: (one.instance, server.pid) for one in statuses for server, client in _clients(one)}
    others = {server.pid for one in statuses for server in one.servers if procfs.parent(server.pid) != 1}
    why = _judge(world, [*of_instance, *(pid for pid in held if pid not in of_instance and pid not in others)])
    found = Found(problem=problem)
    for status in statuses:
        found.connected[status.instance] = [
            Connected(
                status.instance,
                server.pid,
                client,
                procfs.age_s(client.started_at, world.now_s()),
                why.get(client.pid),
            )
            for server, client in _clients(status)
        ]
        if status.unit.get("main_pid") and not status.daemon_answers:
            found.unknown[status.instance] = "; ".join(status.findings) or "the daemon was not asked"
    for pid, reason in why.items():
        uid = procfs.uid(pid)
        found.left_over.append(
            LeftOver(
                pid,
                None if uid is None else procfs.user(uid) or str(uid),
                procfs.command(pid),
                procfs.age_s(procfs.started_at(pid), world.now_s()),
                procfs.state(pid),
                procfs.container(pid),
                held.get(pid, {}),
                of_instance[pid][0] if pid in of_instance else None,
                reason,
            )
        )
    return found


def _clients(status: Status) -> Iterable[tuple[proofs.ServerStatus, Client]]:
    return ((server, client) for server in status.servers for client in server.clients)


def _held_mib(world: World) -> tuple[dict[int, dict[str, Optional[int]]], Optional[str]]:
    """What each process holds on each GPU, by pid and UUID; or why NVML does not tell."""
    held: dict[int, dict[str, Optional[int]]] = {}
    try:
        with world.nvml() as nvml:
            for gpu in nvml.gpus():
                for device in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)):
                    for pid, mib in (nvml.compute_memory_mib(device) or {}).items():
                        held.setdefault(pid, {})[device] = mib
    except NotReady as error:
        return {}, str(error)
    return held, None


def _judge(world: World, pids: Sequence[int]) -> dict[int, str]:
    """Why each of these processes is left over; those that are not are left out."""
    found = {pid: why for pid in pids for why in [_why(world, pid)] if why}
    waiting = [pid for pid in pids if pid not in found and procfs.state(pid) == "D"]
    for _ in range(_LOOKS - 1):  # work on a disk or the driver is in that state for a moment as well
        if not waiting:
            break
        world.sleep_s(_PAUSE_S)
        waiting = [pid for pid in waiting if procfs.state(pid) == "D"]
    for pid in waiting:
        found[pid] = "it waits in the kernel (state D) and no signal ends it; see dmesg: the GPU may need a reset"
    return {pid: found[pid] for pid in pids if pid in found}


def _why(world: World, pid: int) -> Optional[str]:
    state, parent = procfs.state(pid), procfs.parent(pid)
    if not state:
        return "its process is gone and the GPU is still in its name"
    if state in "ZX":
        return f"it has ended (zombie) and its parent, pid {parent} ({procfs.command(parent)}), has not taken note"
    if parent != 1:
        return None
    if hardware.mps_program(pid) == hardware.SERVER:
        return "an MPS server whose control daemon is gone"
    container = procfs.container(pid)
    if container is not None:
        return f"of container {container}, which nothing runs any more: its parent is process 1"
    session = procfs.session(pid)
    if session is not None and world.systemd.session_state(session) in (None, "closing"):
        return f"of login session {session}, which has ended, and its parent with it"
    job = (procfs.environment(pid) or {}).get("SLURM_JOB_ID")
    if job and not any(procfs.title(one).startswith(f"{_STEP_DAEMON}: [{job}.") for one in procfs.pids()):
        return f"of batch job {job}, which has no {_STEP_DAEMON} any more, and its parent is gone"
    return None
