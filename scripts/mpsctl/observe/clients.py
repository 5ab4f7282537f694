"""The clients of a server: who they are, which limit each really has, and which shook theirs off.

A client keeps the limit that its server had when it connected, and the server's log tells which that was. It
loses every limit by a variable of its own that does not parse or names a GPU it cannot see (driver 580, H200).
Its environment tells, as it was when the program was started; what a program sets for itself later only the
memory that it holds can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from mpsctl.adapters import daemon_log, procfs
from mpsctl.adapters.daemon_log import ServerLog
from mpsctl.adapters.nvml import ClientMemory
from mpsctl.model import client_variable

_MIB = 1 << 20
TOLERANCE_MIB = 64
"""NVML counts a little more than the limit does: 48 clients that each took 64 MiB beside their context showed
about 3 MiB more apiece (driver 580, H200). One at the edge of its limit has not bypassed it."""


@dataclass
class Client:
    """One client of a server. Lists go by the ordinals of the daemon's devices.

    ``limits_mib`` is what the server's log says it connected with, ``memory_mib`` what NVML says it holds,
    each None where that cannot be told. ``older`` says in one line that its limit is not what is desired now:
    no fault, it connected before the change. ``bypassed`` says why no limit holds it, ``unlimited`` that it got
    in when its server had none, ``cannot_tell`` what could not be looked at. ``state`` is the kernel's letter,
    empty where the process is gone.
    """

    pid: int
    uid: Optional[int]
    user: Optional[str]
    command: str
    since: Optional[str]
    limits_mib: list[Optional[int]]
    memory_mib: list[Optional[int]]
    started_at: Optional[int]
    state: str = ""
    container: Optional[str] = None
    older: Optional[str] = None
    bypassed: Optional[str] = None
    unlimited: Optional[str] = None
    cannot_tell: Optional[str] = None

    def __str__(self) -> str:
        who = self.user or self.uid
        return f"client {self.pid} ({self.command or 'command not told'}, user {'not told' if who is None else who})"


def look(
    pids: Sequence[int],
    log: Optional[ServerLog],
    devices: Sequence[str],
    desired_mib: Sequence[Optional[int]],
    memory: ClientMemory,
) -> list[Client]:
    """Each client of a server. ``log`` is the server's in the journal, ``devices`` its daemon's by UUID."""
    return [_look_at_one(pid, log, devices, desired_mib, memory) for pid in pids]


def _look_at_one(
    pid: int,
    log: Optional[ServerLog],
    devices: Sequence[str],
    desired_mib: Sequence[Optional[int]],
    memory: ClientMemory,
) -> Client:
    uid = procfs.uid(pid)
    entry = log.clients.get(pid) if log else None
    limits = [daemon_log.of_device(entry.limit_bytes, n, uuid) if entry else None for n, uuid in enumerate(devices)]
    client = Client(
        pid=pid,
        uid=uid,
        user=None if uid is None else procfs.user(uid),
        command=procfs.command(pid),
        since=entry.since if entry else None,
        limits_mib=[None if limit is None else limit // _MIB for limit in limits],
        memory_mib=[memory.held_mib(uuid, pid) for uuid in devices],
        started_at=procfs.started_at(pid),
        state=procfs.state(pid),
        container=procfs.container(pid),
    )
    desired = [*desired_mib, *[None] * (len(devices) - len(desired_mib))]
    if entry is not None:
        _compare(client, limits, desired, whole=bool(log and log.whole))
    if any(value is not None for value in (*desired, *limits)):
        _look_for_limit_bypass(client, devices, desired)
    return client


def _compare(client: Client, limits: Sequence[Optional[int]], desired: Sequence[Optional[int]], whole: bool) -> None:
    """Hold what a client connected with against what is desired now."""
    older, without = [], []
    for ordinal, (limit, mib) in enumerate(zip(limits, desired)):
        if mib is None:
            continue
        if limit is None:
            without.append(str(ordinal))
        elif limit != mib * _MIB:
            device = f" on device {ordinal}" if len(desired) > 1 else ""
            older.append(
                f"holds {limit // _MIB} MiB{device} since {client.since}, desired {mib} MiB: connected before the change"
            )
    client.older = "; ".join(older) or None
    if without and whole:
        client.unlimited = f"its server had no limit for device {', '.join(without)} when it connected"
        client.unlimited += f" ({client.since})"
    elif without:
        client.cannot_tell = "the journal has no line of its server's limit"


def _look_for_limit_bypass(client: Client, devices: Sequence[str], desired: Sequence[Optional[int]]) -> None:
    reasons, unknown = [], [client.cannot_tell] if client.cannot_tell else []
    environment = procfs.environment(client.pid)
    if environment is None:
        unknown.append("its environment cannot be read")
    else:
        why = client_variable.limit_bypass(environment, devices)
        reasons += [why] if why else []
    for ordinal, (held, limit, mib) in enumerate(zip(client.memory_mib, client.limits_mib, desired)):
        if held is None:
            continue
        if limit is not None and held > limit + TOLERANCE_MIB:
            reasons.append(f"it holds {held} MiB on device {ordinal}, above its limit of {limit} MiB")
        elif limit is None and mib is not None and held > mib + TOLERANCE_MIB and not client.unlimited:
            unknown.append(f"it holds {held} MiB on device {ordinal}, and the journal has no line of its limit")
    client.bypassed = "; ".join(reasons) or None
    client.cannot_tell = "; ".join(unknown) or None
