"""Who computes on the GPUs of an instance, and why those outside MPS are there.

NVML's list of compute processes has clients, servers and what runs outside; its list of MPS clients has the
clients alone (driver 580, H200). Whose clients they are only the daemon can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Mapping, Optional, Sequence

from mpsctl.adapters import hardware, procfs
from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.model.finding import Reason
from mpsctl.observe import reachability

CLIENT, SERVER, OUTSIDE, OF_ANOTHER, UNKNOWN = "client", "server", "outside MPS", "of another daemon", "cannot tell"
_TWO_DAEMONS = "two-daemons-one-gpu"
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
    top: Path = reachability.TOP
    """where the way to the pipe directory begins, for tests"""


@dataclass(frozen=True)
class GpuProcess:
    """One process with a compute context. ``kind`` is one of the words above, ``reasons`` say why it is no client."""

    pid: int
    kind: str
    memory_mib: Optional[int]
    uid: Optional[int]
    user: Optional[str]
    command: str
    container: Optional[str]
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        who = self.user or self.uid
        held = "memory not told" if self.memory_mib is None else f"{self.memory_mib} MiB"
        where = f", container {self.container}" if self.container else ""
        return (
            f"pid {self.pid} ({self.command or 'command not told'}, user {'not told' if who is None else who}{where},"
            f" {held}) is {self.kind}: {self.reasons[0] if self.reasons else ''}"
        )


def look(daemon: OfDaemon, compute: Listed, clients: Optional[Listed]) -> list[GpuProcess]:
    """Every process of NVML's two lists, in the order of their pids; ``clients`` None where NVML does not tell."""
    return [_look_at(pid, daemon, compute, clients) for pid in sorted({*compute, *(clients or {})})]


def _look_at(pid: int, daemon: OfDaemon, compute: Listed, clients: Optional[Listed]) -> GpuProcess:
    kind, reasons = _judge(pid, daemon, clients)
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
        reasons=tuple(reasons),
    )


def _judge(pid: int, daemon: OfDaemon, clients: Optional[Listed]) -> tuple[str, list[Reason]]:
    if pid in daemon.servers or (daemon.pid and procfs.parent(pid) == daemon.pid):
        return SERVER, []
    if pid in (daemon.clients or ()):
        return CLIENT, []
    if not procfs.state(pid):
        return UNKNOWN, [Reason("", "/proc does not show it: it is of another pid namespace, or has just ended")]
    if clients is None:
        return UNKNOWN, [Reason("", "NVML does not tell which processes are MPS clients")]
    if pid not in clients:
        served = _served_by(procfs.parent(pid))
        if served and not daemon.pid and daemon.clients is None:
            return UNKNOWN, [Reason("", f"the server of {served}, and which daemon is the unit's is not known")]
        if served:
            return OF_ANOTHER, [Reason(_TWO_DAEMONS, f"the server of {served}")]
        return OUTSIDE, reasons_outside(pid, daemon)
    if daemon.clients is None:
        return UNKNOWN, [Reason("", "it is an MPS client, and the daemon did not tell its clients")]
    directory = (procfs.environment(pid) or {}).get(PIPE_DIRECTORY)
    why = f"an MPS client of the daemon on {directory or 'a directory that cannot be read'}"
    return OF_ANOTHER, [Reason(_TWO_DAEMONS, why)]


def _served_by(pid: int) -> Optional[str]:
    """The control daemon whose process this is, in words; by what it was started with."""
    if hardware.mps_program(pid) != hardware.CONTROL_DAEMON:
        return None
    directory = (procfs.environment(pid) or {}).get(PIPE_DIRECTORY)
    return f"the control daemon {pid}" + (f" on {directory}" if directory else "")


def reasons_outside(pid: int, daemon: OfDaemon) -> list[Reason]:
    """Why a process is no client, the likeliest first; there is always one."""
    state = procfs.state(pid)
    if state in ("Z", "X", "D"):
        # To read more of a process that hangs may hang.
        return [Reason("zombie-client", f"it has ended or cannot be woken (state {state})")]
    environment = procfs.environment(pid)
    if environment is None:
        return [Reason("", "its environment cannot be read")]
    found = reachability.obstacles(pid, environment, [daemon.public], daemon.devices, daemon.pid, daemon.top)
    return found or [Reason("", "its environment is right: it started while the daemon was down, or changed it itself")]
