"""The GPUs of a host and who is on them, as NVML shows them; and every GPU under all its names."""

from __future__ import annotations

from typing import Any

from mpsctl.adapters.bounded import Call
from mpsctl.adapters.nvml import VersionMismatch
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Gpu, Load, MigDevice
from mpsctl.observe.facts import NO_ANSWER, GpuFacts, Unread
from mpsctl.store import configuration
from mpsctl.store.world import World

TIMEOUT_S = 20.0
"""What NVML may take for all that it is asked: longer than the 10 s after which a GPU that hangs is left out, and its
neighbours are not."""


def begin(world: World, timeout_s: float = TIMEOUT_S) -> Call[GpuFacts]:
    """Ask NVML in a process of its own: a hung driver holds whoever asks. ``answer`` takes what comes of it."""
    return Call(lambda: at_once(world), timeout_s, "NVML")


def answer(call: Call[GpuFacts]) -> GpuFacts:
    """The facts, or why there are none."""
    try:
        return call.answer()
    except NotReady as error:
        return GpuFacts(unread=Unread("NVML", NO_ANSWER, str(error)))


def at_once(world: World) -> GpuFacts:
    """Ask NVML in this process."""
    try:
        with world.nvml() as nvml:
            gpus = nvml.gpus()
            uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
            return GpuFacts(
                gpus,
                nvml.driver_version(),
                nvml.cuda_version(),
                {uuid: nvml.compute_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.client_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.load(uuid) for uuid in uuids},
            )
    except NotReady as error:
        unread = Unread("NVML", NO_ANSWER, str(error))
        return GpuFacts(unread=unread, upgraded_underneath=isinstance(error, VersionMismatch))


def inventory(world: World) -> list[dict[str, Any]]:
    """Each GPU with its numberings, its modes, what of its memory is used, and the instance that serves it.

    :raises NotReady: if NVML does not answer.
    """
    with world.nvml() as nvml:
        gpus = nvml.gpus()
        uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
        loads = {uuid: nvml.load(uuid) for uuid in uuids}
    owners = _owners(world, gpus)
    return [_row(gpu, owners, loads) for gpu in gpus]


def _owners(world: World, gpus: list[Gpu]) -> dict[str, str]:
    """The instance of each device, by UUID."""
    owners = {}
    for name in configuration.names(world):
        try:
            for device in configuration.resolve(configuration.load(world, name), gpus):
                owners[device.uuid] = name
        except BadValue:
            continue  # `status` says what is wrong with it
    return owners


def _row(gpu: Gpu, owners: dict[str, str], loads: dict[str, Load]) -> dict[str, Any]:
    capability = gpu.compute_capability
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_address": gpu.pci_address,
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "used_mib": loads[gpu.uuid].used_mib,
        "free_mib": loads[gpu.uuid].free_mib,
        "compute_mode": gpu.compute_mode,
        "persistence": gpu.persistence,
        "mig_enabled": gpu.mig_enabled,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "instance": owners.get(gpu.uuid),
        "mig_devices": [_mig_row(mig, owners, loads[mig.uuid]) for mig in gpu.mig_devices],
    }


def _mig_row(mig: MigDevice, owners: dict[str, str], load: Load) -> dict[str, Any]:
    return {
        "uuid": mig.uuid,
        "name": mig.name,
        "memory_mib": mig.memory_mib,
        "used_mib": load.used_mib,
        "free_mib": load.free_mib,
        "instance": owners.get(mig.uuid),
    }
