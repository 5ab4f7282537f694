"""What a running server says of itself in the journal: the one exact source for its memory limits."""

from __future__ import annotations

from typing import Callable, Optional, Sequence

from mpsctl.adapters import daemon_log
from mpsctl.adapters.daemon_log import DaemonLog, ServerLog
from mpsctl.store.world import World

Bytes = tuple[Optional[int], ...]
"""A limit in bytes per ordinal; None where the journal has no line."""


def read(world: World, invocation: str, settled: bool = False) -> DaemonLog:
    """What the journal has of one start of an instance's unit, by its InvocationID.

    ``settled`` waits for lines that are still on their way.
    """
    return daemon_log.read(world.systemd.journal_of_start(invocation, daemon_log.WANTED, settled) if invocation else [])


def begin(world: World, invocation: str, last_s: Optional[float] = None) -> Callable[[], DaemonLog]:
    """Begin to read what the journal has so far; what is returned waits for it.

    ``last_s`` are the last seconds that are read, None for the whole start.
    """
    begun = world.systemd.begin_journal_of_start(invocation, daemon_log.WANTED, last_s)
    return lambda: daemon_log.read(begun())


def of_unit(world: World, unit: str) -> DaemonLog:
    """What the journal has of the unit's present start, all that was written so far."""
    return read(world, world.systemd.show([unit]).get(unit, {}).get("InvocationID", ""), settled=True)


def limits(server: Optional[ServerLog], devices: Sequence[str]) -> Bytes:
    """The limits of a server now, for the daemon's devices by UUID in the order of their ordinals."""
    by_device = server.limit_bytes if server else {}
    return tuple(daemon_log.of_device(by_device, ordinal, uuid) for ordinal, uuid in enumerate(devices))


def defaults(log: DaemonLog, devices: Sequence[str]) -> Bytes:
    """The default limits that the daemon was last told, by its own log, for its devices by UUID."""
    return tuple(daemon_log.of_device(log.default_bytes, ordinal, uuid) for ordinal, uuid in enumerate(devices))
