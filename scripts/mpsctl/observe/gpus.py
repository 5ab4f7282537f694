"""The GPUs of a host under every name they have."""

from __future__ import annotations

from typing import Any, Sequence

from mpsctl.model.errors import BadValue
from mpsctl.model.gpu import Gpu
from mpsctl.store import configuration
from mpsctl.store.world import World


def inventory(world: World) -> list[dict[str, Any]]:
    """Each GPU with its numberings, its modes and the instance that serves it.

    :raises NotReady: if NVML does not answer.
    """
    with world.nvml() as nvml:
        gpus = nvml.gpus()
    owners = _owners(world, gpus)
    return [_row(gpu, owners) for gpu in gpus]


def _owners(world: World, gpus: Sequence[Gpu]) -> dict[str, str]:
    """The instance of each device, by UUID."""
    owners = {}
    for name in configuration.names(world):
        try:
            for device in configuration.resolve(configuration.load(world, name), gpus):
                owners[device.uuid] = name
        except BadValue:
            continue  # `status` says what is wrong with it
    return owners


def _row(gpu: Gpu, owners: dict[str, str]) -> dict[str, Any]:
    capability = gpu.compute_capability
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_address": gpu.pci_address,
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "compute_mode": gpu.compute_mode,
        "persistence": gpu.persistence,
        "mig_enabled": gpu.mig_enabled,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "instance": owners.get(gpu.uuid),
        "mig_devices": [
            {"uuid": m.uuid, "name": m.name, "memory_mib": m.memory_mib, "instance": owners.get(m.uuid)}
            for m in gpu.mig_devices
        ],
    }
