"""Which compute modes change by a step on an instance, for who wants to know it beforehand."""

from __future__ import annotations

from typing import Optional

from mpsctl.converge.situation import Situation
from mpsctl.converge.statement import COMPUTE_MODE, Statement
from mpsctl.model.gpu import EXCLUSIVE_PROCESS, PROHIBITED, Gpu
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, saved_compute_modes


def of_instance(found: Situation, instance: Instance) -> tuple[Statement, ...]:
    """Of an instance that starts or is reloaded: its GPUs get the desired mode, or their saved one back."""
    gpus = {device.gpu.index: device.gpu for device in found.facts(instance.name).devices}
    after = {index: instance.compute_mode or _taken_back(found, gpu) for index, gpu in gpus.items()}
    return _told(gpus, after, instance.name)


def of_removal(found: Situation, name: str) -> tuple[Statement, ...]:
    """Of an instance that ends for good. A GPU that goes to a desired instance with a mode has that one at the end."""
    others = {
        device.gpu.index
        for one in found.desired.instances
        if one.compute_mode is not None
        for device in configuration.resolve(one, found.gpus)
    }
    gpus = {device.gpu.index: device.gpu for device in found.facts(name).devices if device.gpu.index not in others}
    after = {index: saved_compute_modes.to_bring_back(found.world, gpu) for index, gpu in gpus.items()}
    return _told(gpus, after, name)


def _taken_back(found: Situation, gpu: Gpu) -> Optional[str]:
    ours = gpu.uuid in found.host.modes_set and gpu.compute_mode in (EXCLUSIVE_PROCESS, PROHIBITED)
    return found.host.saved_modes.get(gpu.uuid) if ours else None


def _told(gpus: dict[int, Gpu], after: dict[int, Optional[str]], name: str) -> tuple[Statement, ...]:
    return tuple(
        Statement(COMPUTE_MODE, name, index, before=gpu.compute_mode, after=after[index])
        for index, gpu in gpus.items()
        if after[index] is not None and gpu.compute_mode not in (None, after[index])
    )
