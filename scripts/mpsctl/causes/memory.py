"""Out of memory: the client's own limit or the full card, and what took it, with the numbers of this machine.

What NVML says that a process holds is within a few MiB of what its limit counts (driver 580, H200). CUDA's error is
the same in both cases; PyTorch's text has numbers that tell them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median
from typing import Collection, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose, of_instance
from mpsctl.causes.of_checks import reasons_of
from mpsctl.causes.seen import Seen
from mpsctl.checks import words
from mpsctl.checks.client_checks import SPARE_MIB
from mpsctl.checks.process_checks import holders
from mpsctl.model import fit
from mpsctl.model import plan as plans
from mpsctl.model.costs import Costs
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.pattern import Pattern
from mpsctl.observe.clients import TOLERANCE_MIB
from mpsctl.observe.facts import ClientFacts, InstanceFacts
from mpsctl.observe.process_facts import CLIENT, SERVER, GpuProcess

OWN_LIMIT, CARD_FULL, OTHERS = "own-limit-reached", "card-full", "memory-held-by-others"
_SHORTAGES = (OWN_LIMIT, CARD_FULL, OTHERS, "limit-over-reached")
_NEAR = 0.95
"""A client that holds more than this part of its limit is near it."""
_MANY_CONTEXTS = 0.25
_UNEVEN = 2

_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_UNITS_MIB = {"bytes": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024, "TiB": 1 << 20}
_TORCH = {
    "tried": rf"[Tt]ried to allocate {_SIZE}",
    "total": rf"total capacity of {_SIZE}|{_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|{_SIZE} free",
    "own": rf"[Tt]his process has {_SIZE} memory in use",
    "idle": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total by PyTorch",
}
_OTHER = Pattern(rf"Process \d+ has {_SIZE} memory in use")


@dataclass(frozen=True)
class TorchNumbers:
    """What PyTorch's OutOfMemoryError says, in MiB; None for what its version does not say.

    ``others`` is what it counts for other processes, ``idle`` what PyTorch keeps and does not use.
    """

    tried: float
    total: float
    free: float
    own: Optional[float]
    others: float
    idle: Optional[float]

    @property
    def unexplained(self) -> Optional[float]:
        """What is neither free nor held by a process that the text counts: under a limit nearly the whole card."""
        return None if self.own is None else self.total - self.free - self.own - self.others


def _mib(text: str, pattern: str) -> Optional[float]:
    match = re.search(pattern, text)
    if not match:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return float(number) * _UNITS_MIB[unit]


def torch_numbers(text: str) -> Optional[TorchNumbers]:
    """The numbers in PyTorch's text, of versions 1 and 2; None where it is none."""
    found = {name: _mib(text, pattern) for name, pattern in _TORCH.items()}
    if found["tried"] is None or found["total"] is None or found["free"] is None:
        return None
    others = sum(float(number) * _UNITS_MIB[unit] for number, unit in _OTHER.findall(text))
    own = found["own"] if found["own"] is not None else found["reserved"]
    return TorchNumbers(found["tried"], found["total"], found["free"], own, others, found["idle"])


def from_text(text: str) -> list[Diagnosis]:
    """What the numbers of PyTorch's text tell by themselves."""
    numbers = torch_numbers(text)
    if numbers is None:
        return []
    sum_ = f"total {numbers.total:.0f} MiB, free {numbers.free:.0f} MiB"
    if numbers.own is not None:
        sum_ += f", this process {numbers.own:.0f} MiB"
    if numbers.others:
        sum_ += f", other processes {numbers.others:.0f} MiB"
    found = []
    if numbers.unexplained is not None:
        if numbers.unexplained > 0.2 * numbers.total:
            why = f"{numbers.unexplained:.0f} MiB of the card are neither free nor held by a process that it counts"
            found.append(diagnose(OWN_LIMIT, LIKELY, sum_, f"{why}: `free` is what the limit leaves"))
        else:
            found.append(diagnose(CARD_FULL, LIKELY, sum_, "what is held adds up to the card"))
    if numbers.idle is not None and numbers.idle >= numbers.tried:
        idle = f"PyTorch keeps {numbers.idle:.0f} MiB that it does not use, and tried for {numbers.tried:.0f} MiB"
        split = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 (or expandable_segments:True) against pieces too small"
        found.append(diagnose("framework-cache", LIKELY, idle, remedy=split))
    return found


@dataclass(frozen=True)
class _Device:
    """One device of an instance: its clients, who else holds what there, and what contexts cost.

    ``total_mib`` and ``costs`` are None where NVML does not tell the device's memory, ``free_mib`` where it does not
    tell what of it is free.
    """

    device: Device
    ordinal: int
    total_mib: Optional[int]
    free_mib: Optional[int]
    costs: Optional[Costs]
    clients: Sequence[ClientFacts]
    others: Sequence[GpuProcess]
    desired: Instance

    def held(self, client: ClientFacts) -> Optional[int]:
        return client.memory_mib[self.ordinal] if self.ordinal < len(client.memory_mib) else None

    def limit(self, client: ClientFacts) -> Optional[int]:
        known = client.limits_mib[self.ordinal] if self.ordinal < len(client.limits_mib) else None
        return self.desired_mib if known is None else known

    @property
    def desired_mib(self) -> Optional[int]:
        return None if self.desired.limit is None or self.total_mib is None else self.desired.limit.on(self.total_mib)


def on_host(seen: Seen, names: Collection[str], asked: bool) -> list[Diagnosis]:
    """The walk over the devices of the named instances.

    Unless ``asked`` (somebody did meet the error), nothing is said while no client is at its limit and no card is
    full.
    """
    found = []
    for one in seen.instances:
        if one.name not in names:
            continue
        told = {reason.cause for reason in reasons_of(seen.report.instances[one.name], _SHORTAGES)}
        for device in _devices(seen, one):
            own = [each for client in device.clients for each in _near_limit(device, client)]
            primary = [*_below_context(device), *own]
            if primary or told or asked:
                others = _others(device) if asked and OTHERS not in told else []
                found += of_instance(one.name, [*primary, *others, *_why(device)])
    return found


def of_client(seen: Seen, pid: int) -> list[Diagnosis]:
    """Whether one client is at its limit, on any device of its instance."""
    one = seen.client_of(pid)
    if one is None:
        return []
    found = []
    for device in _devices(seen, one):
        for client in (each for each in device.clients if each.pid == pid):
            found += [*_at_limit(device, client), *_near_limit(device, client)]
    return of_instance(one.name, found)


def refutes_own_limit(found: Sequence[Diagnosis]) -> bool:
    """Whether it is seen that a card is full or held by others, and that no client is at or near its limit."""
    full = any(one.name in (CARD_FULL, OTHERS) and one.certainty == CERTAIN for one in found)
    return full and not any(one.name == OWN_LIMIT for one in found)


def _devices(seen: Seen, one: InstanceFacts) -> list[_Device]:
    """The devices of an instance; which client holds what goes by the ordinals of what its daemon serves."""
    if one.desired is None:
        return []
    found = []
    for place, device in enumerate(one.devices):
        uuid = device.uuid
        processes = one.processes.get(uuid) or []
        found.append(
            _Device(
                device,
                one.serves.index(uuid) if uuid in one.serves else place,
                device.memory_mib,
                seen.host.gpus.load(uuid).free_mib,
                one.costs.get(uuid),
                one.clients,
                [each for each in processes if each.kind not in (CLIENT, SERVER) and each.memory_mib],
                one.desired,
            )
        )
    return found


def _below_context(device: _Device) -> list[Diagnosis]:
    desired, costs = device.desired_mib, device.costs
    if desired is None or costs is None or desired >= costs.least_limit_mib:
        return []
    figures = f"limit {desired} MiB, a client needs {costs.least_limit_mib} MiB ({costs.origin})"
    return [diagnose("limit-below-context", LIKELY if costs.borrowed else CERTAIN, f"{device.device}: {figures}")]


def _at_limit(device: _Device, client: ClientFacts) -> list[Diagnosis]:
    """One that has used up its limit, as the check client-memory judges it for all."""
    held, limit = device.held(client), device.limit(client)
    if held is None or limit is None or not limit - SPARE_MIB < held <= limit + TOLERANCE_MIB:
        return []
    return [diagnose(OWN_LIMIT, CERTAIN, _holds(device, client, held, limit))]


def _near_limit(device: _Device, client: ClientFacts) -> list[Diagnosis]:
    """One that has some room, and little: the next large allocation fails."""
    held, limit = device.held(client), device.limit(client)
    if held is None or limit is None or (device.total_mib is not None and limit > device.total_mib):
        return []
    if not _NEAR * limit < held <= limit - SPARE_MIB:
        return []
    return [diagnose(OWN_LIMIT, LIKELY, _holds(device, client, held, limit))]


def _holds(device: _Device, client: ClientFacts, held: int, limit: int) -> str:
    free = "its free memory is not told" if device.free_mib is None else f"{device.free_mib} MiB of the card are free"
    return f"{words.client(client)} holds {held} MiB of its limit of {limit} MiB, {free}"


def _others(device: _Device) -> list[Diagnosis]:
    """Who holds memory and is no client, where the check of free memory finds enough for one more."""
    if not device.others:
        return []
    free = "free memory is not told" if device.free_mib is None else f"{device.free_mib} MiB are free"
    return [diagnose(OTHERS, POSSIBLE, f"{device.device}: {free}", *holders(device.others))]


def _why(device: _Device) -> list[Diagnosis]:
    return [*_promises(device), *_density(device), *_uneven(device), *_frameworks(device)]


def _promises(device: _Device) -> list[Diagnosis]:
    limits = [limit for limit in map(device.limit, device.clients) if limit is not None]
    if device.total_mib is None or sum(limits) <= device.total_mib:
        return []
    line = (
        f"{device.device}: the limits of {len(limits)} client processes add up to {sum(limits)} of"
        f" {device.total_mib} MiB"
    )
    return [diagnose("limits-oversubscribed", CERTAIN, line), diagnose("limit-is-per-process", POSSIBLE, line)]


def _density(device: _Device) -> list[Diagnosis]:
    if device.costs is None or device.total_mib is None:
        return []
    contexts = len(device.clients) * device.costs.context_mib
    if contexts <= _MANY_CONTEXTS * device.total_mib and len(device.clients) <= fit.MANY:
        return []
    line = (
        f"{device.device}: {len(device.clients)} contexts of {device.costs.context_mib} MiB are {contexts} of"
        f" {device.total_mib} MiB ({device.costs.origin})"
    )
    return [diagnose("density-too-high", POSSIBLE if device.costs.borrowed else LIKELY, line)]


def _uneven(device: _Device) -> list[Diagnosis]:
    """Ranks of one run, or processes of one command, of which one holds much more than the others."""
    if device.costs is None:
        return []
    alike: dict[object, list[tuple[int, ClientFacts]]] = {}
    for client in device.clients:
        held = device.held(client)
        if held is not None:
            alike.setdefault(client.rank.run if client.rank else client.command, []).append((held, client))
    found = []
    for members in alike.values():
        held_mib = sorted((held for held, _ in members), reverse=True)
        # Without the context, which is the same for all, the difference shows.
        data = [max(1, held - device.costs.context_mib) for held in held_mib]
        if len(data) > 1 and data[0] > _UNEVEN * median(data[1:]) and data[0] > device.costs.context_mib:
            greatest = max(members, key=lambda member: member[0])
            others = ", ".join(map(str, held_mib[1:6]))
            line = f"{words.client(greatest[1])} holds {greatest[0]} MiB, the others of its kind {others} MiB"
            found.append(diagnose("uneven-ranks", LIKELY, line))
    return found


def _frameworks(device: _Device) -> list[Diagnosis]:
    total, costs = device.total_mib, device.costs
    if total is None or costs is None:
        return []
    found = []
    for client in device.clients:
        limit, held = device.limit(client), device.held(client)
        if limit is not None and held is not None and limit < total:
            found += _framework(client, held, limit, total, costs)
    return found


def _framework(client: ClientFacts, held: int, limit: int, total: int, costs: Costs) -> list[Diagnosis]:
    hints = plans.hints(total, limit, costs)
    if not hints:
        return []  # the limit leaves a framework nothing: told as limit-below-context or own-limit-reached
    title, who = procfs.title(client.pid), words.client(client)
    if "vllm" in title.lower():
        fraction = re.search(r"--gpu[-_]memory[-_]utilization[= ](\d(?:\.\d+)?|\.\d+)", title)
        share = float(fraction[1]) if fraction else 0.9
        total_mib, own_mib = costs.cuda_total_mib(total), limit - costs.context_mib
        line = (
            f"{who} takes {share:g} of {total_mib} MiB, its limit of {limit} MiB leaves {own_mib} MiB beside a context"
            f" of {costs.context_mib} MiB"
        )
        return (
            [diagnose("framework-cache", LIKELY, line, remedy=hints[plans.VLLM])] if share * total_mib > own_mib else []
        )
    if held <= _NEAR * limit:
        return []
    variables = procfs.environment(client.pid) or {}
    if procfs.maps(client.pid, "libtensorflow"):
        if variables.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
            return []
        line = f"{who} uses TensorFlow without TF_FORCE_GPU_ALLOW_GROWTH: it takes all that is free"
        return [diagnose("framework-cache", LIKELY, line, remedy=hints[plans.TENSORFLOW])]
    if procfs.maps(client.pid, "libtorch_cuda"):
        line = f"{who} uses PyTorch, whose allocator keeps what it once had"
        return [diagnose("framework-cache", POSSIBLE, line, remedy=hints[plans.PYTORCH])]
    return []
