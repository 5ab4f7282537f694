"""Whether an instance's clients fit on its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence

from mpsctl.model import fit, share_use
from mpsctl.model.errors import DoesNotFit, NotReady
from mpsctl.model.fit import Card, Demand, Place, Verdict
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.quantity import Quantity
from mpsctl.model.settings import VARIABLES
from mpsctl.store import measured
from mpsctl.store.world import World


def memory_mib(device: Device) -> Optional[int]:
    """The device's memory in MiB; None where NVML does not tell it."""
    return device.memory_mib


def card(device: Device, driver: Optional[str]) -> Card:
    """The device as the arithmetic takes it.

    :raises NotReady: where NVML does not tell its memory: then there is no arithmetic.
    """
    memory = memory_mib(device)
    if memory is None:
        raise NotReady(f"NVML does not tell the memory of {device}: what fits on it cannot be worked out")
    return _card(device, driver, memory)


def kind_of(device: Device, driver: Optional[str]) -> Card:
    """The device by its name and its cap on clients alone, for which its memory need not be known: it is 0 here."""
    return _card(device, driver, 0)


def _card(device: Device, driver: Optional[str], memory: int) -> Card:
    # A MIG device is another machine than its whole GPU: no figure of that holds there.
    return Card(
        name=device.mig.name if device.mig else device.gpu.name,
        memory_mib=memory,
        driver=driver,
        pre_volta=device.gpu.pre_volta,
        mig=device.mig is not None,
    )


def judge(world: World, instance: Instance, devices: Sequence[Device], driver: Optional[str]) -> list[str]:
    """Refuse what cannot fit on a device; the warnings, each naming its variable.

    Where no number of clients is expected, the largest share has to fit.

    :raises DoesNotFit: with key and variable; what it suggests fits on all devices whose memory is known.
    """
    clients, share = fit.to_fit(instance.expected_clients, instance.shares)
    counted = fit.CLIENTS if share is None else fit.SHARES
    verdicts = judge_limit(world, instance.limit, clients, instance.thread_percentage, devices, driver)
    warnings = []
    for device, verdict in zip(devices, verdicts):
        for key, error in verdict.refusals:
            found = f"{error.found} ({device})" if len(devices) > 1 else error.found
            if key == fit.CLIENTS and share is not None:
                key, found = fit.SHARES, f"{share}: {found}"
            raise DoesNotFit(found, error.expected, error.remedy, key, VARIABLES[key])
        variable = VARIABLES[fit.LIMIT if clients is None else counted]
        warnings += [f"instance {instance.name}, {variable}: {warning}" for warning in verdict.warnings]
    if instance.shares:
        places = list(_places(world, devices, driver, instance.thread_percentage).values())
        demand = _demand(None, instance.limit, instance.thread_percentage)
        more = share_use.crowded(instance.shares, instance.expected_clients, places, demand)
        warnings += [f"instance {instance.name}, {VARIABLES[fit.SHARES]}: {warning}" for warning in more]
    return list(dict.fromkeys(warnings))


def _places(
    world: World, devices: Sequence[Device], driver: Optional[str], percentage: Optional[float]
) -> dict[str, Place]:
    """The devices whose memory is known, by UUID."""
    places: dict[str, Place] = {}
    for device in devices:
        if memory_mib(device) is not None:
            one = card(device, driver)
            places[device.uuid] = one, measured.costs_of(world, one.name, driver, percentage)
    return places


def _demand(clients: Optional[int], limit: Optional[Quantity], percentage: Optional[float]) -> Demand:
    """What is to run, for a card of any memory."""
    share = limit if limit is not None and limit.mib is None else None
    return Demand(clients, None if limit is None else limit.mib, percentage, share=share)


def judge_limit(
    world: World,
    limit: Optional[Quantity],
    clients: Optional[int],
    percentage: Optional[float],
    devices: Sequence[Device],
    driver: Optional[str],
) -> list[Verdict]:
    """What there is to say for each device, in their order."""
    places = _places(world, devices, driver, percentage)
    verdicts = []
    for device in devices:
        if device.uuid not in places:
            verdicts.append(_without_memory(device, driver, limit, clients, percentage))
            continue
        kind, costs = places[device.uuid]
        demand = _demand(clients, limit, percentage)
        demand = replace(demand, limit_mib=demand.limit_on(kind))
        verdicts.append(fit.judge(kind, costs, demand, list(places.values())))
    return verdicts


def _without_memory(
    device: Device,
    driver: Optional[str],
    limit: Optional[Quantity],
    clients: Optional[int],
    percentage: Optional[float],
) -> Verdict:
    demand = replace(_demand(clients, limit, percentage), share=None)
    verdict = fit.judge_without_memory(kind_of(device, driver), demand)
    if limit is not None and limit.mib is None:
        found = f"a limit of {limit} on {device}, whose memory NVML does not tell"
        verdict.refuse(fit.LIMIT, found, "a limit in MiB or GiB there", "write for example 4G")
    verdict.warnings.append(f"NVML does not tell the memory of {device}: whether clients fit on it is not worked out")
    return verdict
