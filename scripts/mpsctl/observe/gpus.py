"""The GPUs of a host and who is on them, as NVML shows them; and every GPU under all its names."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from mpsctl.adapters.bounded import Call
from mpsctl.adapters.nvml import Snapshot
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Gpu, Load, MigDevice, resolve
from mpsctl.observe import asked
from mpsctl.observe.facts import NO_ANSWER, GpuFacts, Unread
from mpsctl.store import configuration
from mpsctl.store.world import World

TIMEOUT_S = asked.NVML_TIMEOUT_S
begin = asked.begin_nvml


def answer(call: Call[Snapshot]) -> GpuFacts:
    """What NVML told, or why there is nothing."""
    try:
        return of(call.answer())
    except NotReady as error:
        return GpuFacts(unread=Unread("NVML", NO_ANSWER, str(error)))


def of(seen: Snapshot) -> GpuFacts:
    """The facts of what NVML showed."""
    unread = None if seen.unread is None else Unread("NVML", NO_ANSWER, seen.unread)
    compute, clients, loads = dict(seen.compute), dict(seen.clients), dict(seen.loads)
    return GpuFacts(list(seen.gpus), seen.driver, seen.cuda, compute, clients, loads, unread, seen.mismatch)


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


def instance_of(world: World, reference: str) -> str:
    """The instance that serves a GPU, or a MIG device, named by index, UUID or PCI address.

    :raises BadValue: if the host has no such GPU, or no instance serves it, or several do.
    :raises NotReady: if NVML does not answer.
    """
    with world.nvml() as nvml:
        gpus = nvml.gpus()
    device = resolve(reference, gpus)
    serving = [name for name, uuid in _served(world, gpus) if uuid == device.uuid]
    if len(serving) == 1:
        return serving[0]
    if serving:
        found = f"{device}, which the instances {', '.join(serving)} serve"
        raise BadValue(found, "a GPU of one instance", "name the instance instead of the GPU")
    known = ", ".join(configuration.names(world)) or "none"
    raise BadValue(
        f"{device}, which no instance serves",
        f"a GPU of an instance ({known})",
        "see `mpsctl gpus` for who serves which",
    )


def _served(world: World, gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    """Each instance with each of its devices, by UUID."""
    for name in configuration.names(world):
        try:
            devices = configuration.resolve(configuration.load(world, name), gpus)
        except BadValue:
            continue  # `status` says what is wrong with it
        yield from ((name, device.uuid) for device in devices)


def _owners(world: World, gpus: Sequence[Gpu]) -> dict[str, str]:
    """The instance of each device, by UUID."""
    return {uuid: name for name, uuid in _served(world, gpus)}


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
