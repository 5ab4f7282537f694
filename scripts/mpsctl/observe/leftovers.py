"""Who is connected to each instance, and which processes were left over on the GPUs.

A process that holds GPU memory is taken for left over by what the kernel and logind say, never by its age or its
name. It is one of these:

* it has ended, and the daemon still lists it, or its parent has not taken note of it (a zombie);
* it waits in the kernel (state D) at every look within a second: no signal ends it;
* its parent is process 1, so that whoever started it is gone, and what it was started in is gone too: the login
  session has ended (logind has no such session, or only keeps it open for what is left in it), the container's
  runtime no longer stands above it (a container's processes that lose their parent go to the container's own first
  process or to the runtime's shim; only without these they go to process 1), or the batch job has no step daemon
  any more;
* it is an MPS server whose control daemon is gone, whether or not NVML lists it.

A service, or a job that somebody left behind on purpose in a session that is still there, is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.observe import host as host_look
from mpsctl.observe.facts import ClientFacts, InstanceFacts, ServerFacts
from mpsctl.observe.host import HostFacts
from mpsctl.store.world import World

_LOOKS, _PAUSE_S = 3, 0.5
_STEP_DAEMON = "slurmstepd"
_DEAD = ("Z", "X")

GONE, ZOMBIE, HANGS, SERVER, CONTAINER, SESSION, JOB = (
    "gone",
    "zombie",
    "hangs",
    "server-without-daemon",
    "container-gone",
    "session-ended",
    "job-ended",
)


@dataclass(frozen=True)
class Why:
    """Why a process is taken for left over: ``kind`` is one of the words above.

    ``of`` is the container, session or job that is gone; ``parent`` and ``parent_command`` who has not taken note of a
    zombie.
    """

    kind: str
    of: str = ""
    parent: int = 0
    parent_command: str = ""


@dataclass(frozen=True)
class Connected:
    """A client of an instance with its server's pid; ``left_over`` says why nobody minds it any more, or is None."""

    instance: str
    server: int
    client: ClientFacts
    age_s: Optional[int]
    left_over: Optional[Why] = None


@dataclass(frozen=True)
class LeftOver:
    """A process that was left over. ``memory_mib`` is what it holds by the device's UUID, None where NVML does not
    tell; ``instance`` is the one whose client it is, or None."""

    pid: int
    uid: Optional[int]
    user: Optional[str]
    command: str
    age_s: Optional[int]
    state: str
    container: Optional[str]
    memory_mib: dict[str, Optional[int]]
    instance: Optional[str]
    why: Why


@dataclass
class Found:
    """Who is connected to each instance, and what was left over; ``host`` is the look on which it stands."""

    host: HostFacts
    connected: dict[str, list[Connected]] = field(default_factory=dict)
    left_over: list[LeftOver] = field(default_factory=list)

    @property
    def unknown(self) -> list[InstanceFacts]:
        """The instances of which nobody can tell who is connected."""
        return [one for one in self.host.instances.values() if one.clients_unknown]


def look(world: World, names: Optional[Sequence[str]] = None) -> Found:
    """The clients of the named instances, or of all, and what was left over on any GPU of this host. Raises nothing."""
    host = host_look.look(world, names, isolated=True)
    held = _held_mib(host)
    whose = {client.pid: one for one in host.instances.values() for _, client in _clients(one)}
    servers = {server.pid: server.daemon is None for server in host.processes.servers}
    why = _judge(world, list(dict.fromkeys([*whose, *held, *servers])), servers)
    found = Found(host)
    for one in host.instances.values():
        found.connected[one.name] = [
            Connected(one.name, server.pid, client, procfs.age_s(client.started_at, host.now_s), why.get(client.pid))
            for server, client in _clients(one)
        ]
    for pid, reason in why.items():
        found.left_over.append(_left_over(host, pid, reason, held.get(pid, {}), whose.get(pid)))
    return found


def _left_over(
    host: HostFacts, pid: int, why: Why, held_mib: dict[str, Optional[int]], instance: Optional[InstanceFacts]
) -> LeftOver:
    hangs = why.kind == HANGS
    uid = procfs.uid(pid)
    return LeftOver(
        pid,
        uid,
        None if uid is None else procfs.user(uid),
        # To read more of a process that hangs may hang.
        procfs.name(pid) if hangs else procfs.command(pid),
        procfs.age_s(procfs.started_at(pid), host.now_s),
        procfs.state(pid),
        procfs.container(pid),
        held_mib,
        instance.name if instance else None,
        why,
    )


def _clients(one: InstanceFacts) -> Iterable[tuple[ServerFacts, ClientFacts]]:
    return ((server, client) for server in one.servers for client in server.clients)


def _held_mib(host: HostFacts) -> dict[int, dict[str, Optional[int]]]:
    """What each process holds on each GPU, by pid and UUID."""
    held: dict[int, dict[str, Optional[int]]] = {}
    for uuid, listed in host.gpus.compute.items():
        for pid, mib in (listed or {}).items():
            held.setdefault(pid, {})[uuid] = mib
    return held


def _judge(world: World, pids: Sequence[int], servers: Mapping[int, bool]) -> dict[int, Why]:
    """Why each of these processes is left over; those that are not are left out.

    ``servers`` are the MPS servers among them, by whether their control daemon is gone.
    """
    found = {pid: why for pid in pids for why in [_why(world, pid, servers.get(pid))] if why}
    waiting = [pid for pid in pids if pid not in found and procfs.state(pid) == "D"]
    for _ in range(_LOOKS - 1):  # work on a disk or the driver is in that state for a moment as well
        if not waiting:
            break
        world.sleep_s(_PAUSE_S)
        waiting = [pid for pid in waiting if procfs.state(pid) == "D"]
    found.update((pid, Why(HANGS)) for pid in waiting)
    return {pid: found[pid] for pid in pids if pid in found}


def _why(world: World, pid: int, daemon_is_gone: Optional[bool]) -> Optional[Why]:
    state, parent = procfs.state(pid), procfs.parent(pid)
    if not state:
        return Why(GONE)
    if state in _DEAD:
        return Why(ZOMBIE, parent=parent, parent_command=procfs.command(parent))
    if daemon_is_gone is not None:
        return Why(SERVER) if daemon_is_gone else None
    if parent != 1 or state == "D":
        return None
    container = procfs.container(pid)
    if container is not None:
        return Why(CONTAINER, container)
    session = procfs.session(pid)
    if session is not None and world.systemd.session_state(session) in (None, "closing"):
        return Why(SESSION, session)
    job = (procfs.environment(pid) or {}).get("SLURM_JOB_ID")
    if job and not any(procfs.title(one).startswith(f"{_STEP_DAEMON}: [{job}.") for one in procfs.pids()):
        return Why(JOB, job)
    return None
