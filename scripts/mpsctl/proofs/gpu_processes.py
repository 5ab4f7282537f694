"""Who computes on the GPUs of an instance, and why those outside MPS are there.

NVML's list of compute processes has clients, servers and what runs outside; its list of MPS clients has the
clients alone (driver 580, H200). Whose clients they are only the daemon can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Mapping, Optional, Sequence

from mpsctl.outside import procfs
from mpsctl.proofs import way_in
from mpsctl.values.daemon_environment import PIPE_DIRECTORY

CLIENT, SERVER, OUTSIDE, OF_ANOTHER, UNKNOWN = "client", "server", "outside MPS", "of another daemon", "cannot tell"
Listed = Mapping[int, Optional[int]]
"""What NVML lists: by process id what each holds in MiB, None where it does not tell."""


@dataclass(frozen=True)
class OfDaemon:
    """The daemon that serves the devices. ``clients`` is None where it did not tell them."""

    public: Path
    devices: Sequence[str]
    pid: int = 0
    servers: Collection[int] = ()
    clients: Optional[Collection[int]] = None
    top: Path = way_in.TOP
    """where the way to the pipe directory begins, for tests"""


@dataclass(frozen=True)
class GpuProcess:
    """One process with a compute context. ``kind`` is one of the words above, ``reason`` says why it is no client."""

    pid: int
    kind: str
    memory_mib: Optional[int]
    uid: Optional[int]
    user: Optional[str]
    command: str
    container: Optional[str]
    reason: str = ""

    def __str__(self) -> str:
        who = self.user or self.uid
        held = "memory not told" if self.memory_mib is None else f"{self.memory_mib} MiB"
        where = f", container {self.container}" if self.container else ""
        return (
            f"pid {self.pid} ({self.command or 'command not told'}, user {'not told' if who is None else who}{where},"
            f" {held}) is {self.kind}: {self.reason}"
        )


def look(daemon: OfDaemon, compute: Listed, clients: Optional[Listed]) -> list[GpuProcess]:
    """Every process of NVML's two lists, in the order of their pids; ``clients`` None where NVML does not tell."""
    return [_look_at(pid, daemon, compute, clients) for pid in sorted({*compute, *(clients or {})})]


def _look_at(pid: int, daemon: OfDaemon, compute: Listed, clients: Optional[Listed]) -> GpuProcess:
    kind, reason = _judge(pid, daemon, clients)
    uid = procfs.uid(pid)
    held = compute.get(pid)
    return GpuProcess(
        pid=pid,
        kind=kind,
        memory_mib=(clients or {}).get(pid) if held is None else held,
        uid=uid,
        user=None if uid is None else procfs.user(uid),
        command=procfs.command(pid),
        container=procfs.container(pid),
        reason=reason,
    )


def _judge(pid: int, daemon: OfDaemon, clients: Optional[Listed]) -> tuple[str, str]:
    if pid in daemon.servers or (daemon.pid and procfs.parent(pid) == daemon.pid):
        return SERVER, ""
    if pid in (daemon.clients or ()):
        return CLIENT, ""
    if not procfs.state(pid):
        return UNKNOWN, "/proc does not show it: it is of another pid namespace, or has just ended"
    if clients is None:
        return UNKNOWN, "NVML does not tell which processes are MPS clients"
    if pid not in clients:
        served = _served_by(procfs.parent(pid))
        if served and not daemon.pid and daemon.clients is None:
            return UNKNOWN, f"the server of {served}, and which daemon is the unit's is not known"
        if served:
            return OF_ANOTHER, f"the server of {served}"
        return OUTSIDE, reason_outside(pid, daemon)
    if daemon.clients is None:
        return UNKNOWN, "it is an MPS client, and the daemon did not tell its clients"
    directory = (procfs.environment(pid) or {}).get(PIPE_DIRECTORY)
    return OF_ANOTHER, f"an MPS client of the daemon on {directory or 'a directory that cannot be read'}"


def _served_by(pid: int) -> Optional[str]:
    """The control daemon whose process this is, in words; by what it was started with."""
    if not procfs.command(pid).split(" ")[0].endswith("nvidia-cuda-mps-control"):
        return None
    directory = (procfs.environment(pid) or {}).get(PIPE_DIRECTORY)
    return f"the control daemon {pid}" + (f" on {directory}" if directory else "")


def reason_outside(pid: int, daemon: OfDaemon) -> str:
    """The likeliest reason why a process is no client, in one line."""
    environment = procfs.environment(pid)
    if environment is None:
        return "its environment cannot be read"
    wrong = way_in.wrong_variables(environment, daemon.public, daemon.devices)
    directory = environment.get(PIPE_DIRECTORY)
    if wrong and not wrong.startswith(PIPE_DIRECTORY):
        return wrong
    if directory is None:
        return f"no {PIPE_DIRECTORY} in its environment"
    try:
        missing = way_in.absent(Path(directory), procfs.root(pid))
        closed = None if wrong else _closed(pid, daemon)
    except OSError as error:
        return wrong or f"what it sees of the pipe directory cannot be looked at ({error.strerror})"
    if wrong:
        return wrong + (", and that directory does not exist where it stands" if missing else "")
    if missing:
        inside = procfs.namespace(pid, "mnt") != procfs.namespace(daemon.pid or 1, "mnt")
        why = "its mount namespace does not have it: mount it" if inside else "it is not there"
        return f"{daemon.public} does not exist where the process stands; {why}"
    if closed:
        return closed
    mine, the_daemons = procfs.started_at(pid), procfs.started_at(daemon.pid) if daemon.pid else None
    if mine is not None and the_daemons is not None and mine < the_daemons:
        return "it was started before this daemon, and found none or lost it"
    return "its environment is right: it started while the daemon was down, or changed it itself"


def _closed(pid: int, daemon: OfDaemon) -> Optional[str]:
    user, root = way_in.of_process(pid), procfs.root(pid)
    if user is None:
        return None
    return way_in.closed_directory(daemon.public, user, root, daemon.top) or way_in.closed_socket(
        daemon.public, user, root
    )
