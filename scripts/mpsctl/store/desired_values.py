"""What is desired of a running daemon, as the commands that set it and the answers that prove it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

from mpsctl.model import quantity
from mpsctl.model.errors import NotReady
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance
from mpsctl.store.record import InForce


@dataclass(frozen=True)
class Desired:
    """What is desired of a running daemon: per ordinal the limit in MiB (None: not managed), and the rest."""

    limits_mib: tuple[Optional[int], ...]
    thread_percentage: Optional[float]
    client_priority: Optional[int]

    @classmethod
    def of(cls, instance: Instance, memory_mib: Sequence[int]) -> Desired:
        limits = tuple(None if instance.limit is None else instance.limit.on(mib) for mib in memory_mib)
        return cls(limits, instance.thread_percentage, instance.client_priority)

    def recorded(self, pid: int, started_at: int, since_s: float) -> InForce:
        return InForce(pid, started_at, since_s, self.limits_mib, self.thread_percentage, self.client_priority)


def memory_of(devices: Sequence[str], gpus: Sequence[Gpu]) -> list[int]:
    """The memory in MiB of each device by UUID.

    :raises NotReady: if one of them is gone.
    """
    known: Mapping[str, int] = {
        **{gpu.uuid: gpu.memory_mib for gpu in gpus},
        **{mig.uuid: mig.memory_mib for gpu in gpus for mig in gpu.mig_devices},
    }
    for uuid in devices:
        if uuid not in known:
            raise NotReady(f"{uuid}, which the daemon serves, is gone from this host; see `mpsctl gpus` and dmesg")
    return [known[uuid] for uuid in devices]


@dataclass(frozen=True)
class Step:
    """One value: how it is set and read, and what must read back.

    ``certain`` is False where the getter rounds and neither the server's own log nor our record proves the
    value: reading alone cannot tell it from its neighbours then, and it is set again. ``said_bytes`` is what the
    server's log says of a memory limit, None where it does not.
    """

    what: str
    getter: str
    setter: str
    desired: str
    reads: str
    certain: bool = True
    said_bytes: Optional[int] = None

    @property
    def is_memory_limit(self) -> bool:
        return "pinned_mem_limit" in self.getter

    def in_force(self, lines: Sequence[str]) -> bool:
        """Whether what the getter printed proves the value."""
        return self.certain and list(lines) == [self.reads]


def steps(
    desired: Desired, known: Optional[InForce], server: str = "", probe: Sequence[Optional[int]] = ()
) -> list[Step]:
    """What is to be set and read for a desired state, for the defaults or for one server by its pid.

    ``probe`` holds the server's limits in bytes by its own log, which no record outweighs.
    """
    scope, pid = ("", f"{server} ") if server else ("default_", "")
    found = []
    for ordinal, mib in enumerate(desired.limits_mib):
        if mib is not None:
            said = probe[ordinal] if ordinal < len(probe) else None
            on_record = mib < 1024 or (known is not None and known.limits_mib[ordinal : ordinal + 1] == (mib,))
            found.append(
                Step(
                    what=f"memory limit of device {ordinal}",
                    getter=f"get_{scope}device_pinned_mem_limit {pid}{ordinal}",
                    setter=f"set_{scope}device_pinned_mem_limit {pid}{ordinal} {mib}M",
                    desired=f"{mib} MiB",
                    reads=quantity.displayed(mib),
                    certain=on_record if said is None else said == mib << 20,
                    said_bytes=said,
                )
            )
    if desired.thread_percentage is not None:
        found.append(
            Step(
                what="active thread percentage",
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
            Step(
                what="client priority",
                getter="get_default_client_priority",
                setter=f"set_default_client_priority {desired.client_priority}",
                desired=str(desired.client_priority),
                reads=str(desired.client_priority),
            )
        )
    return found
