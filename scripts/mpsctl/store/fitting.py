"""Whether an instance's clients fit on its devices."""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.model import fit
from mpsctl.model.fit import Card, Demand, Verdict
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.settings import VARIABLES
from mpsctl.store import measured
from mpsctl.store.world import World


def card(device: Device, driver: Optional[str]) -> Card:
    # A MIG device is another machine than its whole GPU: no figure of that holds there.
    return Card(
        name=device.mig.name if device.mig else device.gpu.name,
        memory_mib=device.memory_mib,
        driver=driver,
        pre_volta=device.gpu.pre_volta,
        mig=device.mig is not None,
    )


def judge(world: World, instance: Instance, devices: Sequence[Device], driver: Optional[str]) -> list[str]:
    """Refuse what cannot fit on a device; the warnings, each naming its variable.

    :raises BadValue: with key and variable.
    """
    warnings = []
    for device in devices:
        verdict = of_device(world, instance, device, driver)
        for key, error in verdict.refusals:
            raise error.named(key, VARIABLES[key])
        variable = VARIABLES[fit.LIMIT if instance.expected_clients is None else fit.CLIENTS]
        warnings += [f"instance {instance.name}, {variable}: {warning}" for warning in verdict.warnings]
    return list(dict.fromkeys(warnings))


def of_device(world: World, instance: Instance, device: Device, driver: Optional[str]) -> Verdict:
    demand = Demand(
        clients=instance.expected_clients,
        limit_mib=None if instance.limit is None else instance.limit.on(device.memory_mib),
        thread_percentage=instance.thread_percentage,
    )
    kind = card(device, driver)
    return fit.judge(kind, measured.costs_of(world, kind.name, driver, instance.thread_percentage), demand)
