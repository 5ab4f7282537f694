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

from dataclasses import dataclass, field
from typing import Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.observe.facts import ClientFacts, InstanceFacts
from mpsctl.observe.host import HostFacts
from mpsctl.observe.host import look as look_at_host
from mpsctl.store.world import World

_LOOKS, _PAUSE_S = 3, 0.5
_STEP_DAEMON = "slurmstepd"

GONE, ZOMBIE, WAITS, SERVER, OF_CONTAINER, OF_SESSION, OF_JOB = (
    "gone",
    "zombie",
    "waits-in-kernel",
    "server-without-daemon",
    "container-gone",
    "session-ended",
    "job-gone",
)


@dataclass(frozen=True)
class Mark:
    """By what a process is known to be left over: one of the words above. ``of`` is the container, the login session or
    the batch job that is gone; a zombie's ``parent`` has not taken note of its end."""

    kind: str
    of: str = ""
    parent: int = 0
    parent_command: str = ""


@dataclass(frozen=True)
class Connected:
    """A client of an instance; ``left_over`` where it is one that nobody minds."""

    instance: str
    server: int
    client: ClientFacts
    age_s: Optional[int]
    left_over: Optional[Mark] = None


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
    mark: Mark


@dataclass
class Found:
    """``unknown`` are the instances whose clients cannot be told: their daemon did not tell all."""

    host: HostFacts
    connected: dict[str, list[Connected]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    left_over: list[LeftOver] = field(default_factory=list)


def look(world: World, names: Sequence[str]) -> Found:
    """The clients of the named instances, and what was left over on any GPU of this host."""
    host = look_at_host(world, names)
    found = Found(host)
    of_instance = {
        client.pid: (name, server.pid)
        for name, one in host.instances.items()
        for server in one.servers
        for client in server.clients
    }
    held = _held_mib(host)
    marks = _judge(world, host, [*of_instance, *(pid for pid in held if pid not in {*of_instance, *_served(host)})])
    for name, one in host.instances.items():
        found.connected[name] = _connected(world, one, marks)
        if one.clients_unknown:
            found.unknown.append(name)
    for pid, mark in marks.items():
        instance = of_instance[pid][0] if pid in of_instance else None
        found.left_over.append(_left_over(world, pid, mark, held.get(pid, {}), instance))
    return found


def _served(host: HostFacts) -> set[int]:
    """The servers of daemons that live."""
    told = {server.pid for one in host.instances.values() for server in one.servers}
    known = {server.pid: server.daemon for server in host.processes.servers}
    return {pid for pid in {*told, *known} if known.get(pid, 0) is not None}


def _connected(world: World, one: InstanceFacts, marks: dict[int, Mark]) -> list[Connected]:
    return [
        Connected(
            one.name,
            server.pid,
            client,
            procfs.age_s(client.started_at, world.now_s()),
            marks.get(client.pid),
        )
        for server in one.servers
        for client in server.clients
    ]


def _left_over(
    world: World, pid: int, mark: Mark, memory_mib: dict[str, Optional[int]], instance: Optional[str]
) -> LeftOver:
    uid = procfs.uid(pid)
    return LeftOver(
        pid,
        None if uid is None else procfs.user(uid) or str(uid),
        procfs.command(pid),
        procfs.age_s(procfs.started_at(pid), world.now_s()),
        procfs.state(pid),
        procfs.container(pid),
        memory_mib,
        instance,
        mark,
    )


def _held_mib(host: HostFacts) -> dict[int, dict[str, Optional[int]]]:
    """What each process holds on each GPU, by pid and UUID; empty where NVML does not tell."""
    held: dict[int, dict[str, Optional[int]]] = {}
    for device, listed in host.gpus.compute.items():
        for pid, mib in (listed or {}).items():
            held.setdefault(pid, {})[device] = mib
    return held


def _judge(world: World, host: HostFacts, pids: Sequence[int]) -> dict[int, Mark]:
    """By what each of these processes is left over; those that are not are left out."""
    found = {pid: mark for pid in pids for mark in [_mark(world, host, pid)] if mark}
    waiting = [pid for pid in pids if pid not in found and procfs.state(pid) == "D"]
    for _ in range(_LOOKS - 1):  # work on a disk or the driver is in that state for a moment as well
        if not waiting:
            break
        world.sleep_s(_PAUSE_S)
        waiting = [pid for pid in waiting if procfs.state(pid) == "D"]
    found.update((pid, Mark(WAITS)) for pid in waiting)
    return {pid: found[pid] for pid in pids if pid in found}


def _mark(world: World, host: HostFacts, pid: int) -> Optional[Mark]:
    state, parent = procfs.state(pid), procfs.parent(pid)
    if not state:
        return Mark(GONE)
    if state in "ZX":
        return Mark(ZOMBIE, parent=parent, parent_command=procfs.command(parent))
    server = host.processes.server(pid)
    if server is not None:
        return Mark(SERVER) if server.daemon is None else None
    if parent != 1:
        return None
    container = procfs.container(pid)
    if container is not None:
        return Mark(OF_CONTAINER, container)
    session = procfs.session(pid)
    if session is not None and world.systemd.session_state(session) in (None, "closing"):
        return Mark(OF_SESSION, session)
    job = (procfs.environment(pid) or {}).get("SLURM_JOB_ID")
    if job and not any(procfs.title(one).startswith(f"{_STEP_DAEMON}: [{job}.") for one in procfs.pids()):
        return Mark(OF_JOB, job)
    return None
