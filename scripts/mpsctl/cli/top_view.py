"""What top shows of one look: rows of plain values, for a screen and as JSON. None means: not told."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

from mpsctl.checks import waits, words
from mpsctl.checks.report import Report
from mpsctl.model.finding import OK
from mpsctl.model.shares import ALL
from mpsctl.observe import plain
from mpsctl.observe.facts import ClientFacts, InstanceFacts, Value
from mpsctl.store.desired_values import MEMORY_LIMIT, THREAD_PERCENTAGE, DesiredValue

FORMAT = 2


@dataclass(frozen=True)
class Limit:
    """A limit: what is ``desired`` (empty: nothing), and what is ``in_force``, in the daemon's words where that is
    something else; None where it is not told."""

    desired: str
    in_force: Optional[str]

    @property
    def holds(self) -> bool:
        return self.desired == self.in_force


@dataclass(frozen=True)
class DeviceRow:
    """A GPU or a MIG device, of an instance or (``limit`` None) of none."""

    gpu: Optional[int]
    uuid: str
    name: str
    mig: bool
    used_mib: Optional[int]
    memory_mib: Optional[int]
    utilisation_percent: Optional[int]
    limit: Optional[Limit] = None


@dataclass(frozen=True)
class InstanceRow:
    """An instance: its word, how many clients are in and how many ``places`` there are (None: no number is held), how
    many wait, and the first thing that is amiss, or why nobody knows."""

    name: str
    word: str
    state: str
    clients: Optional[int]
    places: Optional[int]
    waiting: int
    devices: tuple[DeviceRow, ...]
    threads: Limit
    amiss: str


@dataclass(frozen=True)
class ClientRow:
    """``memory_mib`` is what it holds on all its devices together; ``unlimited`` whether it is known that no limit
    holds it."""

    instance: str
    pid: int
    user: str
    memory_mib: Optional[int]
    limits_mib: tuple[Optional[int], ...]
    unlimited: bool
    container: Optional[str]
    command: str


@dataclass(frozen=True)
class View:
    """One look. ``looked_at`` is a time for people, ``free`` are devices of no instance, and ``waiting`` is a line for
    each client that waits, with its instance."""

    host: str
    looked_at: str
    simulated: bool
    worst: str
    word_of_host: str
    amiss: str
    gpus_unread: str
    instances: tuple[InstanceRow, ...]
    free: tuple[DeviceRow, ...]
    waiting: tuple[tuple[str, str], ...]
    clients: tuple[ClientRow, ...]

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **plain.of(self)}


def of(found: Report) -> View:
    """The rows of what was judged; clients by their memory, the largest first."""
    facts = found.facts
    every = list(facts.instances.values())
    clients = [_client(one.name, client) for one in every for client in one.clients]
    clients.sort(key=lambda one: (one.memory_mib is None, -(one.memory_mib or 0), one.instance, one.pid))
    return View(
        host=os.uname().nodename,
        looked_at=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        simulated=facts.simulated,
        worst=found.worst,
        word_of_host=found.word_of_host,
        amiss=_amiss(found, None),
        gpus_unread=words.unread(facts.gpus.unread) if facts.gpus.unread else "",
        instances=tuple(_instance(found, one) for one in every),
        free=tuple(_free(found)),
        waiting=tuple((one.name, waits.reason(one, each).line) for one in every for each in one.waiting),
        clients=tuple(clients),
    )


def _instance(found: Report, one: InstanceFacts) -> InstanceRow:
    load = found.facts.gpus.load
    room = next((place for place in one.room.places if place.name == ALL), None) if one.room else None
    return InstanceRow(
        name=one.name,
        word=found.word(one.name),
        state=one.unit.active_state,
        clients=None if one.clients_unknown else len(one.clients),
        places=room.most if room else None,
        waiting=len(one.waiting),
        devices=tuple(
            DeviceRow(
                gpu=device.gpu.index,
                uuid=device.uuid,
                name=device.mig.name if device.mig else device.gpu.name,
                mig=device.mig is not None,
                used_mib=load(device.uuid).used_mib,
                memory_mib=device.memory_mib,
                utilisation_percent=load(device.uuid).utilisation_percent,
                limit=_limit(one, MEMORY_LIMIT, ordinal),
            )
            for ordinal, device in enumerate(one.devices)
        ),
        threads=_limit(one, THREAD_PERCENTAGE, None),
        amiss=_amiss(found, one.name),
    )


def _limit(one: InstanceFacts, kind: str, ordinal: Optional[int]) -> Limit:
    values = [each for each in one.every_value if (each.desired.kind, each.desired.ordinal) == (kind, ordinal)]
    if values:
        differs = next((each for each in values if not each.in_force), None)
        desired = _desired(values[0].desired)
        return Limit(desired, desired if differs is None else _shown(differs))
    # Nobody answered, or nothing is desired.
    return Limit(_of_file(one, kind), "" if one.pid and one.answer.complete else None)


def _desired(one: DesiredValue) -> str:
    if one.kind == THREAD_PERCENTAGE:
        return f"{float(one.reads):g} %"
    return "none" if one.desired_bytes is None else f"{one.desired_bytes >> 20} MiB"


def _shown(value: Value) -> Optional[str]:
    if value.only_unproven:
        return None
    return value.shown or "none"


def _of_file(one: InstanceFacts, kind: str) -> str:
    desired = one.desired
    if desired is None:
        return ""
    if kind == MEMORY_LIMIT:
        return "" if desired.limit is None else str(desired.limit)
    return "" if desired.thread_percentage is None else f"{desired.thread_percentage:g} %"


def _amiss(found: Report, name: Optional[str]) -> str:
    """The first of the worst that is not ok, in one line."""
    checks = found.host if name is None else found.instances[name]
    word = found.word_of_host if name is None else found.word(name)
    if word == OK:
        return ""
    first = next(one for one in checks if one.level == word)
    more = sum(one.amiss for one in checks) - 1
    return f"{first.name}: {first.found}" + (f"; {more} more, see `mpsctl status`" if more > 0 else "")


def _free(found: Report) -> Iterator[DeviceRow]:
    gpus = found.facts.gpus
    taken = {device.uuid for one in found.facts.instances.values() for device in one.devices}
    with_mig = {device.gpu.uuid for one in found.facts.instances.values() for device in one.devices if device.mig}
    for gpu in gpus.gpus:
        devices: Sequence[tuple[str, str, Optional[int], bool]] = [
            *([(gpu.uuid, gpu.name, gpu.memory_mib, False)] if gpu.uuid not in with_mig else []),
            *((mig.uuid, mig.name, mig.memory_mib, True) for mig in gpu.mig_devices),
        ]
        for uuid, name, memory_mib, mig in devices:
            if uuid not in taken:
                load = gpus.load(uuid)
                yield DeviceRow(gpu.index, uuid, name, mig, load.used_mib, memory_mib, load.utilisation_percent)


def _client(instance: str, one: ClientFacts) -> ClientRow:
    told = [mib for mib in one.memory_mib if mib is not None]
    return ClientRow(
        instance=instance,
        pid=one.pid,
        user=one.user or ("?" if one.uid is None else str(one.uid)),
        memory_mib=sum(told) if told and len(told) == len(one.memory_mib) else None,
        limits_mib=tuple(one.limits_mib),
        unlimited=one.unlimited,
        container=one.container,
        command=one.command,
    )
