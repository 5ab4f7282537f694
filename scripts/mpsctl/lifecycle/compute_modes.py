"""Compute modes of GPUs: taken at a start, given back at the end, and what holds in between.

The order matters. Under ``exclusive_process`` the first process takes the whole GPU, so with
``mps_when_down: prohibited`` nobody may use it until the limits are in force; then the mode becomes exclusive
and the server is started at once. What stays open even so: from the driver's load to ``prepare``, from
exclusive to the server's context, and while a server is replaced for another user.
"""

from __future__ import annotations

from typing import Sequence

from mpsctl.adapters.nvml import Nvml
from mpsctl.model.gpu import PROHIBITED, Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.store import saved_compute_modes
from mpsctl.store.world import World


def take(world: World, nvml: Nvml, instance: Instance, devices: Sequence[Device]) -> list[str]:
    """Bring the GPUs into the desired compute mode; what was changed.

    The mode found before the first change is recorded once per GPU and never overwritten, so that removing
    the instance can bring it back. The driver forgets the mode at every reboot. Where the mode is no longer managed,
    one that we set since boot is taken back, once: from then on the GPU's mode is left as found. Prohibited is not
    brought back: the daemon is to serve.
    """
    if instance.compute_mode is not None:
        return _set(world, nvml, devices, instance.compute_mode)
    changes = []
    for gpu in dict.fromkeys(device.gpu for device in devices):
        mode = saved_compute_modes.to_bring_back(world, gpu)
        if mode is not None and mode != PROHIBITED and saved_compute_modes.was_set(world, gpu.uuid):
            nvml.set_compute_mode(gpu, mode)
            changes.append(f"compute mode of {gpu}: {gpu.compute_mode} -> {mode}, as it is no longer managed")
            world.say(changes[-1])
        saved_compute_modes.forget(world, gpu)
    return changes


def close(world: World, nvml: Nvml, devices: Sequence[Device]) -> list[str]:
    """Let no process use the GPUs until ``take``; what was changed."""
    return _set(world, nvml, devices, PROHIBITED)


def _set(world: World, nvml: Nvml, devices: Sequence[Device], mode: str) -> list[str]:
    changes = []
    for device in devices:
        if device.gpu.compute_mode == mode:
            continue
        saved_compute_modes.record(world, device.gpu)
        nvml.set_compute_mode(device.gpu, mode)
        saved_compute_modes.note_set(world, device.gpu.uuid)
        changes.append(f"compute mode of {device.gpu}: {device.gpu.compute_mode} -> {mode}")
        world.say(changes[-1])
    return changes


def restore(world: World, nvml: Nvml, gpu: Gpu, ours: str) -> bool:
    """Bring back the mode from before the first start, if the present one is ours (``ours`` or prohibited)."""
    mode = saved_compute_modes.read(world, gpu)
    if mode is None or mode == gpu.compute_mode or gpu.compute_mode not in (ours, PROHIBITED):
        return False
    nvml.set_compute_mode(gpu, mode)
    world.say(f"compute mode of {gpu}: {gpu.compute_mode} -> {mode}, as before the first start")
    return True
