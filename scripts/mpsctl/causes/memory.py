"""Out of memory: the client's own limit or the full card, and what took it, with the numbers of this machine.

What NVML says that a process holds is within a few MiB of what its limit counts (driver 580, H200). CUDA's error is
the same in both cases; PyTorch's text has numbers that tell them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import hardware, procfs
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.checks import training
from mpsctl.model import fit
from mpsctl.model import plan as plans
from mpsctl.model.costs import Costs
from mpsctl.model.errors import MpsctlError
from mpsctl.model.gpu import Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.observe.clients import TOLERANCE_MIB, Client
from mpsctl.observe.status import Status
from mpsctl.store import configuration, fitting, measured
from mpsctl.store.world import World

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
_OTHER = re.compile(rf"Process \d+ has {_SIZE} memory in use")


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
            found.append(diagnose("own-limit-reached", LIKELY, sum_, f"{why}: `free` is what the limit leaves"))
        else:
            found.append(diagnose("card-full", LIKELY, sum_, "what is held adds up to the card"))
    if numbers.idle is not None and numbers.idle >= numbers.tried:
        idle = f"PyTorch keeps {numbers.idle:.0f} MiB that it does not use, and tried for {numbers.tried:.0f} MiB"
        split = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 (or expandable_segments:True) against pieces too small"
        found.append(diagnose("framework-cache", LIKELY, idle, remedy=split))
    return found


@dataclass(frozen=True)
class _Device:
    """One device of an instance: who holds what there, in MiB, and what contexts cost."""

    name: str
    ordinal: int
    total_mib: Optional[int]
    """None where NVML does not tell it: then only limits can be judged"""
    held_mib: Mapping[int, int]
    clients: Sequence[Client]
    costs: Costs
    instance: Instance

    @property
    def free_mib(self) -> Optional[int]:
        if self.total_mib is None:
            return None
        return max(0, self.total_mib - self.costs.reserved_mib - sum(self.held_mib.values()))

    def held(self, client: Client) -> Optional[int]:
        return client.memory_mib[self.ordinal] if self.ordinal < len(client.memory_mib) else None

    def limit(self, client: Client) -> Optional[int]:
        known = client.limits_mib[self.ordinal] if self.ordinal < len(client.limits_mib) else None
        if known is None and self.instance.limit is not None:
            return self.instance.limit.on(self.total_mib)
        return known


def on_host(world: World, found: Sequence[Status], gpus: Sequence[Gpu], asked: bool) -> list[Diagnosis]:
    """The walk over the devices of the instances.

    Unless ``asked`` (somebody did meet the error), nothing is said while no client is at its limit and no card is
    full.
    """
    diagnoses = []
    driver = hardware.driver_version()
    for status in found:
        try:
            instance = configuration.load(world, status.instance)
            devices = configuration.resolve(instance, gpus)
        except MpsctlError:
            continue  # told by the status
        clients = [client for server in status.servers for client in server.clients]
        for ordinal, device in enumerate(devices):
            one = _look_at(world, instance, device, ordinal, clients, driver)
            primary = [*_limits(one), *_card(one)]
            if primary or asked:
                diagnoses += [*primary, *_why(one)]
    return diagnoses


def _look_at(
    world: World, instance: Instance, device: Device, ordinal: int, clients: Sequence[Client], driver: Optional[str]
) -> _Device:
    kind = fitting.kind_of(device, driver)
    costs = measured.costs_of(world, kind.name, driver, instance.thread_percentage)
    try:
        with world.nvml() as nvml:
            listed = nvml.compute_memory_mib(device.uuid) or {}
    except MpsctlError:
        listed = {}
    held = {pid: mib for pid, mib in listed.items() if mib is not None}
    return _Device(f"{instance.name}: {device}", ordinal, device.memory_mib, held, clients, costs, instance)


def _limits(device: _Device) -> list[Diagnosis]:
    found = []
    desired = None if device.instance.limit is None else device.instance.limit.on(device.total_mib)
    if desired is not None and desired < device.costs.least_limit_mib:
        figures = f"limit {desired} MiB, a client needs {device.costs.least_limit_mib} MiB ({device.costs.origin})"
        sure = LIKELY if device.costs.borrowed else CERTAIN
        found.append(diagnose("limit-below-context", sure, f"{device.name}: {figures}"))
    for client in device.clients:
        held, limit = device.held(client), device.limit(client)
        if held is None or limit is None or (device.total_mib is not None and limit > device.total_mib):
            continue
        left = limit - held
        free = (
            "its free memory is not told" if device.free_mib is None else f"{device.free_mib} MiB of the card are free"
        )
        line = f"{client} holds {held} MiB of its limit of {limit} MiB, {free}"
        if left < -TOLERANCE_MIB:
            found.append(diagnose("limit-over-reached", CERTAIN, line))
        elif left <= TOLERANCE_MIB:
            found.append(diagnose("own-limit-reached", CERTAIN, line))
        elif held > _NEAR * limit:
            found.append(diagnose("own-limit-reached", LIKELY, line))
    return found


def _card(device: _Device) -> list[Diagnosis]:
    if not device.held_mib or device.free_mib is None or device.free_mib >= device.costs.context_mib:
        return []
    sums = (
        f"{device.name}: {sum(device.held_mib.values())} of {device.total_mib} MiB are held, {device.free_mib} MiB free"
    )
    needs = f"a context alone needs {device.costs.context_mib} MiB ({device.costs.origin})"
    return [diagnose("card-full", CERTAIN, sums, needs, *_holders(device))]


def _holders(device: _Device, shown: int = 8) -> list[str]:
    clients = {client.pid for client in device.clients}
    ranked = sorted(device.held_mib.items(), key=lambda row: -row[1])
    lines = [
        f"pid {pid} holds {mib} MiB: {procfs.command(pid) or 'command not told'}"
        f"{'' if pid in clients or hardware.mps_program(pid) == hardware.SERVER else ', no MPS client'}"
        for pid, mib in ranked[:shown]
    ]
    rest = ranked[shown:]
    return lines + ([f"{len(rest)} more hold {sum(mib for _, mib in rest)} MiB"] if rest else [])


def _why(device: _Device) -> list[Diagnosis]:
    return [*_promises(device), *_density(device), *_uneven(device), *_frameworks(device)]


def _promises(device: _Device) -> list[Diagnosis]:
    limits = [limit for limit in map(device.limit, device.clients) if limit is not None]
    if device.total_mib is None or sum(limits) <= device.total_mib:
        return []
    line = (
        f"{device.name}: the limits of {len(limits)} client processes add up to {sum(limits)} of {device.total_mib} MiB"
    )
    return [diagnose("limits-oversubscribed", CERTAIN, line), diagnose("limit-is-per-process", POSSIBLE, line)]


def _density(device: _Device) -> list[Diagnosis]:
    contexts = len(device.clients) * device.costs.context_mib
    few = device.total_mib is None or contexts <= _MANY_CONTEXTS * device.total_mib
    if few and len(device.clients) <= fit.MANY:
        return []
    share = f"{contexts} MiB" if device.total_mib is None else f"{contexts} of {device.total_mib} MiB"
    line = (
        f"{device.name}: {len(device.clients)} contexts of {device.costs.context_mib} MiB are {share}"
        f" ({device.costs.origin})"
    )
    return [diagnose("density-too-high", POSSIBLE if device.costs.borrowed else LIKELY, line)]


def _uneven(device: _Device) -> list[Diagnosis]:
    """Ranks of one run, or processes of one command, of which one holds much more than the others."""
    alike: dict[object, list[tuple[int, Client]]] = {}
    for client in device.clients:
        held = device.held(client)
        if held is not None:
            rank = training.rank_of(procfs.environment(client.pid))
            alike.setdefault(rank.run if rank else client.command, []).append((held, client))
    found = []
    for members in alike.values():
        held_mib = sorted((held for held, _ in members), reverse=True)
        # Without the context, which is the same for all, the difference shows.
        data = [max(1, held - device.costs.context_mib) for held in held_mib]
        if len(data) > 1 and data[0] > _UNEVEN * median(data[1:]) and data[0] > device.costs.context_mib:
            greatest = max(members, key=lambda member: member[0])
            others = ", ".join(map(str, held_mib[1:6]))
            line = f"{greatest[1]} holds {greatest[0]} MiB, the others of its kind {others} MiB"
            found.append(diagnose("uneven-ranks", LIKELY, line))
    return found


def _frameworks(device: _Device) -> list[Diagnosis]:
    found = []
    for client in device.clients:
        limit, held = device.limit(client), device.held(client)
        if device.total_mib is None or limit is None or held is None or limit >= device.total_mib:
            continue
        hints = plans.hints(device.total_mib, limit, device.costs)
        if not hints:
            continue  # the limit leaves a framework nothing: told as limit-below-context or own-limit-reached
        environment = procfs.environment(client.pid) or {}
        title = procfs.title(client.pid)
        fraction = re.search(r"--gpu[-_]memory[-_]utilization[= ](\d(?:\.\d+)?|\.\d+)", title)
        if "vllm" in title.lower():
            share = float(fraction[1]) if fraction else 0.9
            total_mib, context_mib = device.costs.cuda_total_mib(device.total_mib), device.costs.context_mib
            if share * total_mib > limit - context_mib:
                line = (
                    f"{client} takes {share:g} of {total_mib} MiB, its limit of {limit} MiB leaves"
                    f" {limit - context_mib} MiB beside a context of {context_mib} MiB"
                )
                found.append(diagnose("framework-cache", LIKELY, line, remedy=hints[2]))
        elif held > _NEAR * limit and procfs.maps(client.pid, "libtensorflow"):
            if environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() != "true":
                line = f"{client} uses TensorFlow without TF_FORCE_GPU_ALLOW_GROWTH: it takes all that is free"
                found.append(diagnose("framework-cache", LIKELY, line, remedy=hints[1]))
        elif held > _NEAR * limit and procfs.maps(client.pid, "libtorch_cuda"):
            line = f"{client} uses PyTorch, whose allocator keeps what it once had"
            found.append(diagnose("framework-cache", POSSIBLE, line, remedy=hints[0]))
    return found
