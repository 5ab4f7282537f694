"""What is desired of a running daemon, as the commands that set it and the answers that prove it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, Optional, Sequence

from mpsctl.model import quantity
from mpsctl.model.errors import NotReady
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance
from mpsctl.store.record import InForce

MEMORY_LIMIT, THREAD_PERCENTAGE, CLIENT_PRIORITY = "memory limit", "active thread percentage", "client priority"

_ROUNDED_FROM_MIB = 1024
"""From here on the getters print whole GiB (control daemons 535, 550, 555; driver 580)."""


@dataclass(frozen=True)
class Desired:
    """What is desired of a running daemon: per ordinal the limit in MiB (None: not managed), and the rest."""

    limits_mib: tuple[Optional[int], ...]
    thread_percentage: Optional[float]
    client_priority: Optional[int]

    @classmethod
    def of(cls, instance: Instance, memory_mib: Sequence[Optional[int]]) -> Desired:
        """``memory_mib`` is that of each device, None where NVML does not tell it.

        :raises BadValue: for a limit in percent of a memory that is not told.
        """
        limits = tuple(None if instance.limit is None else instance.limit.on(mib) for mib in memory_mib)
        return cls(limits, instance.thread_percentage, instance.client_priority)

    def recorded(self, pid: int, started_at: int, since_s: float) -> InForce:
        return InForce(pid, started_at, since_s, self.limits_mib, self.thread_percentage, self.client_priority)


def memory_of(devices: Sequence[str], gpus: Sequence[Gpu]) -> list[Optional[int]]:
    """The memory in MiB of each device by UUID, None where NVML does not tell it.

    :raises NotReady: if one of them is gone.
    """
    known: Mapping[str, Optional[int]] = {
        **{gpu.uuid: gpu.memory_mib for gpu in gpus},
        **{mig.uuid: mig.memory_mib for gpu in gpus for mig in gpu.mig_devices},
    }
    for uuid in devices:
        if uuid not in known:
            raise NotReady(f"{uuid}, which the daemon serves, is gone from this host; see `mpsctl gpus` and dmesg")
    return [known[uuid] for uuid in devices]


@dataclass(frozen=True)
class DesiredValue:
    """One value: how it is set and read, and what must read back. ``kind`` is one of MEMORY_LIMIT, THREAD_PERCENTAGE
    and CLIENT_PRIORITY, ``ordinal`` the device's of a memory limit.

    ``certain`` is False where the getter rounds and neither the log nor our record proves the value: reading alone
    cannot tell it from its neighbours then, and it is set again. ``said_bytes`` is what the server's log says of a
    memory limit, or the daemon's own of a default; None where it does not.
    """

    kind: str
    getter: str
    setter: str
    desired: str
    reads: str
    ordinal: Optional[int] = None
    certain: bool = True
    desired_bytes: Optional[int] = None
    said_bytes: Optional[int] = None

    @property
    def lines(self) -> list[str]:
        """What the getter prints once it is in force: nothing where there is no limit."""
        return [self.reads] if self.reads else []

    @property
    def what(self) -> str:
        """Its name for people."""
        return self.kind if self.ordinal is None else f"{self.kind} of device {self.ordinal}"

    @property
    def exact(self) -> bool:
        """Whether what the getter or the log shows is the value itself; where it is not, our record alone can vouch."""
        if self.kind != MEMORY_LIMIT or self.desired_bytes is None:
            return True
        return self.said_bytes is not None or self.desired_bytes < _ROUNDED_FROM_MIB << 20

    def in_force(self, lines: Sequence[str]) -> bool:
        """Whether what the getter printed proves the value."""
        return self.certain and list(lines) == self.lines


def values(
    desired: Desired, known: Optional[InForce], server: str = "", said: Sequence[Optional[int]] = ()
) -> list[DesiredValue]:
    """What is to be set and read, for the defaults or for one server by its pid.

    ``said`` holds the limits in bytes as the server's own log has them, or the daemon's for its defaults; no record
    outweighs it. What is not managed any more and was set by us, by the record, is taken back, whoever set something
    over it since: so a daemon that runs has what one has that starts anew. What others set where we never set anything
    is left.
    """
    scope, pid = ("", f"{server} ") if server else ("default_", "")
    found = [] if known is None else list(_taken_back(desired, known, scope, pid, bool(server)))
    found += [
        _memory_limit(ordinal, mib, known, scope, pid, said[ordinal] if ordinal < len(said) else None)
        for ordinal, mib in enumerate(desired.limits_mib)
        if mib is not None
    ]
    if desired.thread_percentage is not None:
        found.append(
            DesiredValue(
                THREAD_PERCENTAGE,
                getter=f"get_{scope}active_thread_percentage {pid}".rstrip(),
                setter=f"set_{scope}active_thread_percentage {pid}{desired.thread_percentage:g}",
                desired=f"{desired.thread_percentage:g} %",
                reads=f"{desired.thread_percentage:.1f}",
            )
        )
    if desired.client_priority is not None and not server:
        # There is no command for one server; the default reaches running ones too (driver 580, H200: the
        # server logs "Client Priority set to").
        found.append(
            DesiredValue(
                CLIENT_PRIORITY,
                getter="get_default_client_priority",
                setter=f"set_default_client_priority {desired.client_priority}",
                desired=str(desired.client_priority),
                reads=str(desired.client_priority),
            )
        )
    return found


def _taken_back(desired: Desired, known: InForce, scope: str, pid: str, of_server: bool) -> Iterator[DesiredValue]:
    """0G takes a memory limit away (control daemons 535, 550, 555; driver 580); the others go back to where a daemon
    begins."""
    for ordinal, (mib, had) in enumerate(zip(desired.limits_mib, known.limits_mib)):
        if mib is None and had is not None:
            yield DesiredValue(
                MEMORY_LIMIT,
                getter=f"get_{scope}device_pinned_mem_limit {pid}{ordinal}",
                setter=f"set_{scope}device_pinned_mem_limit {pid}{ordinal} 0G",
                desired="no limit, as it is no longer managed",
                reads="",
                ordinal=ordinal,
            )
    if desired.thread_percentage is None and known.thread_percentage is not None:
        yield DesiredValue(
            THREAD_PERCENTAGE,
            getter=f"get_{scope}active_thread_percentage {pid}".rstrip(),
            setter=f"set_{scope}active_thread_percentage {pid}100",
            desired="100 %, as it is no longer managed",
            reads="100.0",
        )
    if desired.client_priority is None and known.client_priority is not None and not of_server:
        yield DesiredValue(
            CLIENT_PRIORITY,
            getter="get_default_client_priority",
            setter="set_default_client_priority 0",
            desired="0, as it is no longer managed",
            reads="0",
        )


def _memory_limit(
    ordinal: int, mib: int, known: Optional[InForce], scope: str, pid: str, said_bytes: Optional[int]
) -> DesiredValue:
    on_record = mib < _ROUNDED_FROM_MIB or (known is not None and known.limits_mib[ordinal : ordinal + 1] == (mib,))
    return DesiredValue(
        MEMORY_LIMIT,
        getter=f"get_{scope}device_pinned_mem_limit {pid}{ordinal}",
        setter=f"set_{scope}device_pinned_mem_limit {pid}{ordinal} {mib}M",
        desired=f"{mib} MiB",
        reads=quantity.displayed(mib),
        ordinal=ordinal,
        certain=on_record if said_bytes is None else said_bytes == mib << 20,
        desired_bytes=mib << 20,
        said_bytes=said_bytes,
    )
