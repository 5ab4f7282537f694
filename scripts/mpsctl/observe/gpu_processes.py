"""Who computes on the GPUs of an instance, and what keeps those outside MPS from being clients.

NVML's list of compute processes has clients, servers and what runs outside; its list of MPS clients has the
clients alone (driver 580, H200). Whose clients they are only the daemon can tell.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Collection, Mapping, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.model import fit, mps_variables
from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.observe import process_facts, reachability
from mpsctl.observe.daemons import MpsProcesses
from mpsctl.observe.facts import NO_RIGHT, NOT_TOLD, Held
from mpsctl.observe.process_facts import (
    CLIENT,
    LEFT_OVER,
    OF_ANOTHER,
    OF_LEFT_OVER,
    OUTSIDE,
    SERVER,
    UNTOLD,
    GpuProcess,
    Obstacle,
)

_GONE = "of another pid namespace, or just ended"
_ENDED_OR_HANGS = ("Z", "X", "D")


@dataclass(frozen=True)
class OfDaemon:
    """The daemon that serves the devices. ``clients`` is None where it did not tell them; ``others`` is every control
    daemon and server of the host."""

    public: Path
    devices: Sequence[str]
    others: MpsProcesses
    pid: int = 0
    servers: Collection[int] = ()
    clients: Optional[Collection[int]] = None
    top: Path = reachability.TOP
    """where the way to the pipe directory begins, for tests"""


def look(daemon: OfDaemon, compute: Held, clients: Optional[Held]) -> list[GpuProcess]:
    """Every process of NVML's two lists, in the order of their pids; ``clients`` None where NVML does not tell."""
    return [_look_at(pid, daemon, compute, clients) for pid in sorted({*compute, *(clients or {})})]


def _look_at(pid: int, daemon: OfDaemon, compute: Held, clients: Optional[Held]) -> GpuProcess:
    state = procfs.state(pid)
    # To read more of a process that hangs may hang.
    environment = None if state in _ENDED_OR_HANGS or not state else procfs.environment(pid)
    uid, held = procfs.uid(pid), compute.get(pid)
    process = GpuProcess(
        pid=pid,
        kind=UNTOLD,
        memory_mib=(clients or {}).get(pid) if held is None else held,
        uid=uid,
        user=None if uid is None else procfs.user(uid),
        command=procfs.command(pid),
        container=procfs.container(pid),
        readable=environment is not None,
        variables=_mps_variables(environment or {}),
        max_connections=fit.max_connections_of(environment or {}),
    )
    return _with_kind(process, state, environment, daemon, clients)


def _mps_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(mps_variables.PREFIX)}


def _with_kind(
    process: GpuProcess,
    state: str,
    environment: Optional[Mapping[str, str]],
    daemon: OfDaemon,
    clients: Optional[Held],
) -> GpuProcess:
    pid = process.pid
    server = daemon.others.server(pid)
    if pid in daemon.servers or (daemon.pid and server is not None and server.daemon == daemon.pid):
        return replace(process, kind=SERVER)
    if pid in (daemon.clients or ()):
        return replace(process, kind=CLIENT)
    if server is not None:
        return _of_another_daemon(process, server.daemon, daemon)
    if not state:
        return replace(process, why_untold=_GONE)
    if clients is None:
        return replace(process, why_untold=NOT_TOLD)
    if pid not in clients:
        return replace(process, kind=OUTSIDE, obstacles=tuple(_obstacles(pid, state, environment, daemon)))
    if daemon.clients is None:
        return replace(process, why_untold=NOT_TOLD)
    if environment is None:
        return replace(process, kind=OF_ANOTHER)
    directory = environment.get(PIPE_DIRECTORY)
    here = directory is not None and os.path.normpath(directory) == str(daemon.public)
    left = any(server.daemon is None for server in daemon.others.servers)
    return replace(process, kind=OF_LEFT_OVER if here and left else OF_ANOTHER, directory=directory)


def _of_another_daemon(process: GpuProcess, other: Optional[int], daemon: OfDaemon) -> GpuProcess:
    if other is None:
        return replace(process, kind=LEFT_OVER)
    known = daemon.others.daemon(other)
    directory = str(known.directory) if known and known.directory else None
    if not daemon.pid and daemon.clients is None:
        # Which daemon is the unit's is not known.
        return replace(process, served_by=other, directory=directory, why_untold=NOT_TOLD)
    return replace(process, kind=OF_ANOTHER, served_by=other, directory=directory)


def _obstacles(pid: int, state: str, environment: Optional[Mapping[str, str]], daemon: OfDaemon) -> Sequence[Obstacle]:
    """Why a process is no client, what lies deepest first; there is always one."""
    if state in _ENDED_OR_HANGS:
        return [Obstacle(process_facts.HANGS, words=state)]
    if environment is None:
        return [Obstacle(process_facts.ENVIRONMENT_UNREAD, words=NO_RIGHT)]
    found = reachability.obstacles(pid, environment, [daemon.public], daemon.devices, daemon.pid, daemon.top)
    return found or [Obstacle(process_facts.NOTHING_WRONG)]
