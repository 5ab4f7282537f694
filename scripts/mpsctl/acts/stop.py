"""The end of an instance (ExecStop and ExecStopPost of the unit)."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mpsctl.acts import prepare
from mpsctl.outside import pipe, procfs
from mpsctl.outside.nvml import Nvml
from mpsctl.state import configuration, record
from mpsctl.state.world import World
from mpsctl.values import daemon_environment
from mpsctl.values.errors import MpsctlError, NotReady
from mpsctl.values.gpu import PROHIBITED, Gpu
from mpsctl.values.instance import Instance

_GRACE_S = 3
_POLL_S = 0.05


def stop(world: World, name: str, main_pid: Optional[int]) -> bool:
    """Let no new client in, ask the daemon to quit, and wait for it within the instance's bound.

    Clients that are still at work when the bound is over lose their server (they see error 806: driver 580,
    H200). Without ``main_pid`` the daemon has ended by itself and there is nothing to stop.

    :returns: whether the daemon is gone; if not, systemd ends it.
    """
    instance = configuration.load(world, name)
    pipe.close_gate(Path(instance.pipe_directory))
    if main_pid is None or not procfs.alive(main_pid):
        return True
    running = daemon_environment.of_process(procfs.environment(main_pid))
    if running is None:
        return False
    pipe.close_gate(running.pipe_directory.parent)  # the file may name another directory by now
    daemon = world.daemon_of(name, running.pipe_directory)
    bound_s = instance.stop_timeout_s
    end_s = world.now_s() + bound_s + _GRACE_S
    try:
        # The answer only comes when the servers are gone, and then there is nobody to answer the getter
        # behind it: whether the process ends is what counts.
        daemon.ask([f"quit -t {bound_s}"], deadline_s=bound_s + _GRACE_S)
    except NotReady as error:
        if procfs.alive(main_pid) and world.now_s() >= end_s:
            world.say(str(error))
    while procfs.alive(main_pid) and world.now_s() < end_s:
        world.sleep_s(_POLL_S)
    gone = not procfs.alive(main_pid)
    if not gone:
        world.say(f"the control daemon (pid {main_pid}) did not end within {bound_s} s of being asked; systemd ends it")
    return gone


def release(world: World, name: str) -> None:
    """Undo what ``prepare`` did to the host, on a real stop only.

    systemd runs this before every automatic restart too (and for a restart job, where a moment in another
    compute mode would let other processes onto the GPU); the job in the queue tells them apart.
    """
    instance = configuration.load(world, name)
    pipe.close_gate(Path(instance.pipe_directory))
    if world.systemd.job(instance.unit) != "stop":
        return
    undo(world, instance)


def undo(world: World, instance: Instance) -> None:
    """Compute modes back to what they were before the first start; our files of this run gone."""
    record.forget_starts(world, instance.name)
    record.forget(world, instance.name)
    prepare.environment_file(world, instance.name).unlink(missing_ok=True)
    try:
        with world.nvml() as nvml:
            _restore_compute_modes(world, nvml, instance)
    except MpsctlError as error:
        world.say(f"the compute mode could not be brought back: {error}")
    pipe.remove_private(Path(instance.pipe_directory))


def _restore_compute_modes(world: World, nvml: Nvml, instance: Instance) -> None:
    if instance.compute_mode is None:
        return
    for device in configuration.resolve(instance, nvml.gpus()):
        restore_compute_mode(world, nvml, device.gpu, instance.compute_mode)


def restore_compute_mode(world: World, nvml: Nvml, gpu: Gpu, ours: str) -> bool:
    """Bring back the mode from before the first start, if the present one is ours (``ours`` or prohibited)."""
    mode = prepare.former_mode(world, gpu)
    if mode is None or mode == gpu.compute_mode or gpu.compute_mode not in (ours, PROHIBITED):
        return False
    nvml.set_compute_mode(gpu, mode)
    world.say(f"compute mode of {gpu}: {gpu.compute_mode} -> {mode}, as before the first start")
    return True
