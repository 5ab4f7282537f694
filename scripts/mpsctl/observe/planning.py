"""A plan for a GPU of this host, or for one that is only described; and the hints for an instance's numbers."""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.model import plan as plans
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card
from mpsctl.model.gpu import Device, resolve
from mpsctl.model.instance import Instance
from mpsctl.model.plan import Desired, Plan
from mpsctl.store import configuration, fitting, measured
from mpsctl.store.world import World


def on_host(world: World, reference: Optional[str]) -> Card:
    """The card of this host that is named, or of all of them where they are alike.

    :raises NotReady: if NVML does not answer.
    """
    with world.nvml() as nvml:
        gpus, driver = nvml.gpus(), nvml.driver_version()
    if reference is not None:
        return fitting.card(resolve(reference, gpus), driver)
    if not gpus:
        raise BadValue("no GPU on this host", "one", "describe one: --model-memory-mib, --gpu-name, --driver")
    return fitting.card(_only_kind([Device(gpu) for gpu in gpus]), driver)


def of_instance(world: World, instance: Instance) -> Card:
    """The card of an instance, or of all of its devices where they are alike.

    :raises NotReady: if NVML does not answer.
    """
    with world.nvml() as nvml:
        return fitting.card(_only_kind(configuration.resolve(instance, nvml.gpus())), nvml.driver_version())


def _only_kind(devices: Sequence[Device]) -> Device:
    names = [device.mig.name if device.mig else device.gpu.name for device in devices]
    if len({(name, device.memory_mib) for name, device in zip(names, devices)}) > 1:
        kinds = ", ".join(sorted(set(names)))
        raise BadValue(f"GPUs of several kinds ({kinds})", "one to plan for", "name it: --gpu")
    return devices[0]


def plan(world: World, card: Card, desired: Desired) -> Plan:
    """The plan for ``card``, with the figures of its percentage."""
    # The server's cost, by which the number of clients is found, does not depend on the percentage.
    first = measured.costs_of(world, card.name, card.driver, None)
    percentage = plans.choose_percentage(desired, plans.choose_clients(card, first, desired))
    return plans.plan(card, measured.costs_of(world, card.name, card.driver, percentage), desired)


def hints_of(world: World, name: str) -> list[str]:
    """The hints for frameworks, scaled to an instance's limit; for each kind of device where it has several."""
    instance = configuration.load(world, name)
    if instance.limit is None:
        return ["no memory limit is managed here: one process may take the whole GPU"]
    with world.nvml() as nvml:
        devices = configuration.resolve(instance, nvml.gpus())
        driver = nvml.driver_version()
    lines: dict[Optional[Card], list[str]] = {}
    for device in devices:
        if fitting.memory_mib(device) is None:
            lines[None] = [f"no hint for {device}: NVML does not tell its memory, of which frameworks take a fraction"]
            continue
        card = fitting.card(device, driver)
        limit_mib = instance.limit.on(card.memory_mib)
        costs = measured.costs_of(world, card.name, driver, instance.thread_percentage)
        nothing = f"a limit of {limit_mib} MiB leaves nothing for a framework: a context takes {costs.context_mib} MiB"
        lines[card] = list(plans.hints(card.memory_mib, limit_mib, costs).values()) or [nothing]
    if len(lines) == 1:
        return next(iter(lines.values()))
    return [line if card is None else f"{card.name}: {line}" for card, found in lines.items() for line in found]
