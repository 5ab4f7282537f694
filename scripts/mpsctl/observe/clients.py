"""The clients of a server: who they are, which limit each really has, and which dropped theirs.

A client keeps the limit that its server had when it connected, and the server's log tells which that was. It
loses every limit by a variable of its own that does not parse or names a GPU it cannot see (driver 580, H200).
Its environment tells, as it was when the program was started; what a program sets for itself later only the
memory that it holds can tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import daemon_log, procfs
from mpsctl.adapters.daemon_log import ClientLog, ServerLog
from mpsctl.model import client_variable
from mpsctl.observe import ranks
from mpsctl.observe.facts import ClientFacts, GpuFacts, OlderLimit, OverLimit

_MIB = 1 << 20
TOLERANCE_MIB = 64
"""NVML counts a little more than the limit does: 48 clients that each took 64 MiB beside their context showed
about 3 MiB more apiece (driver 580, H200). One at the edge of its limit has not dropped it."""


def look(
    pids: Sequence[int],
    log: Optional[ServerLog],
    devices: Sequence[str],
    desired_mib: Sequence[Optional[int]],
    gpus: GpuFacts,
    trusted: bool = True,
) -> list[ClientFacts]:
    """Each client of a server. ``log`` is the server's in the journal, ``devices`` its daemon's by UUID; ``trusted`` is
    whether nobody else can have written that log."""
    found = [_look_at_one(pid, log, devices, desired_mib, gpus) for pid in pids]
    return found if trusted else [_without_proof(one) for one in found]


def _look_at_one(
    pid: int,
    log: Optional[ServerLog],
    devices: Sequence[str],
    desired_mib: Sequence[Optional[int]],
    gpus: GpuFacts,
) -> ClientFacts:
    uid = procfs.uid(pid)
    entry = log.clients.get(pid) if log else None
    limits = [daemon_log.of_device(entry.limit_bytes, n, uuid) if entry else None for n, uuid in enumerate(devices)]
    environment = procfs.environment(pid)
    client = ClientFacts(
        pid=pid,
        uid=uid,
        user=None if uid is None else procfs.user(uid),
        command=procfs.command(pid),
        since=entry.since if entry else None,
        limits_mib=[None if limit is None else limit // _MIB for limit in limits],
        memory_mib=[(gpus.clients.get(uuid) or {}).get(pid) for uuid in devices],
        started_at=procfs.started_at(pid),
        state=procfs.state(pid),
        container=procfs.container(pid),
        readable=environment is not None,
        rank=ranks.of_client(pid, environment),
    )
    desired = [*desired_mib, *[None] * (len(devices) - len(desired_mib))]
    _compare(client, entry, limits, desired, whole=bool(log and log.whole))
    if any(value is not None for value in (*desired, *limits)):
        _look_for_bypass(client, environment, devices, desired)
    return client


def _without_proof(client: ClientFacts) -> ClientFacts:
    """The client where others could have written the lines about its limit: they tell, and prove nothing."""
    return replace(
        client,
        without=(),
        limit_untold=client.limit_untold or bool(client.without),
        over=tuple(replace(one, limit_mib=None) for one in client.over),
    )


def _compare(
    client: ClientFacts,
    entry: Optional[ClientLog],
    limits: Sequence[Optional[int]],
    desired: Sequence[Optional[int]],
    whole: bool,
) -> None:
    """Hold what a client connected with against what is desired now."""
    if entry is None:
        return
    wanted = [(ordinal, limit, mib) for ordinal, (limit, mib) in enumerate(zip(limits, desired)) if mib is not None]
    client.older = tuple(
        OlderLimit(ordinal, limit // _MIB, mib)
        for ordinal, limit, mib in wanted
        if limit is not None and limit != mib * _MIB
    )
    without = tuple(ordinal for ordinal, limit, _ in wanted if limit is None)
    client.began_here = entry.began_here
    if whole:
        client.without = without
    else:
        client.limit_untold = bool(without)


def _look_for_bypass(
    client: ClientFacts,
    environment: Optional[Mapping[str, str]],
    devices: Sequence[str],
    desired: Sequence[Optional[int]],
) -> None:
    if environment is not None:
        client.bypass = client_variable.limit_bypass(environment, devices)
    over = []
    for ordinal, (held, limit, mib) in enumerate(zip(client.memory_mib, client.limits_mib, desired)):
        most = mib if limit is None else limit
        if held is None or most is None or held <= most + TOLERANCE_MIB:
            continue
        if limit is not None or not client.without:
            over.append(OverLimit(ordinal, held, limit))
    client.over = tuple(over)
