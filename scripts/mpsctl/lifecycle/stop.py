"""The end of an instance (ExecStop and ExecStopPost of the unit)."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Optional

from mpsctl.adapters import pipe, procfs, without_door
from mpsctl.adapters.control_daemon import Bounded, Daemon
from mpsctl.adapters.nvml import Nvml
from mpsctl.lifecycle import admit, compute_modes, gpu_claims
from mpsctl.model import daemon_environment
from mpsctl.model import gpu as gpu_names
from mpsctl.model.checked_values import PROHIBITED, check_name
from mpsctl.model.errors import BadValue, MpsctlError, NotReady, one_line
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.observe.asked import unit_of
from mpsctl.store import admission, last_good, record
from mpsctl.store.world import World

_TAKE_OFF_S, _LEAST_QUIT_S, _GRACE_S = 2, 2, 3
OVERTIME_S = _TAKE_OFF_S + _LEAST_QUIT_S + _GRACE_S
"""What a stop may take beyond its bound; the unit's TimeoutStopSec is longer."""
_POLL_S = 0.05


def stop(world: World, name: str, main_pid: Optional[int]) -> bool:
    """Let no new client in, wait for the others within the instance's bound, and have the daemon quit.

    Clients that are still at work then are taken off the GPU by the daemon (they see error 810: driver 580, H200);
    their processes get no signal. It all takes at most ``OVERTIME_S`` longer than the bound. Without ``main_pid`` the
    daemon has ended by itself and there is nothing to stop.

    :returns: whether the daemon is gone; if not, systemd ends it.
    """
    from mpsctl.lifecycle import terminate  # what a reconcile, which needs the rest of this file, does without

    check_name(name)
    # While a restart is under way the clients that come wait for the next daemon.
    refuse = world.systemd.job(unit_of(name)) == "stop"
    begun_s = world.now_s()
    if main_pid is None or not procfs.alive(main_pid):
        last_good.load(world, name)
        _close(world, name, refuse, _GRACE_S)
        return True
    instance = last_good.load(world, name, daemon_environment.of_process(procfs.environment(main_pid)))
    _close(world, name, refuse, instance.stop_timeout_s)
    record.forget_starts(world, name)  # an end that was asked for is no crash, and slows no start down
    if daemon_environment.of_process(procfs.environment(main_pid)) is None:
        return False
    daemon = terminate.running_daemon(world, instance, main_pid)
    bound_s = instance.stop_timeout_s
    end_s = begun_s + bound_s
    _see_clients_off(world, instance, daemon, end_s)
    quit_s = max(_LEAST_QUIT_S, math.ceil(end_s - world.now_s()))
    end_s = world.now_s() + quit_s + _GRACE_S
    try:
        # The answer only comes when the servers are gone, and then there is nobody to answer the getter
        # behind it: whether the process ends is what counts.
        daemon.ask([f"quit -t {quit_s}"], deadline_s=quit_s + _GRACE_S)
    except NotReady as error:
        if procfs.alive(main_pid) and world.now_s() >= end_s:
            world.say(str(error))
    while procfs.alive(main_pid) and world.now_s() < end_s:
        world.sleep_s(_POLL_S)
    gone = not procfs.alive(main_pid)
    if not gone:
        world.say(f"the control daemon (pid {main_pid}) did not end within {bound_s} s of being asked; systemd ends it")
    return gone


def _close(world: World, name: str, refuse: bool, bound_s: float) -> None:
    """Whatever becomes of the front door: the stop goes on."""
    with _said(world):
        admit.close_for_end(world, name, refuse, bound_s=bound_s)


@contextmanager
def _said(world: World) -> Iterator[None]:
    """What fails is said, and what follows is done all the same: a stop gives back what it can."""
    try:
        yield
    except (MpsctlError, OSError) as error:
        world.say(one_line(error))


def _see_clients_off(world: World, instance: Instance, daemon: Daemon, end_s: float) -> None:
    from mpsctl.checks import words
    from mpsctl.lifecycle import drain, terminate

    try:
        left = drain.wait(world, daemon, end_s, world.say, looks=1)
        # The daemon answers at once, or is asked no more.
        bounded = Bounded(daemon, world.now_s, world.now_s() + _TAKE_OFF_S)
        for one in terminate.end(world, bounded, left, signals=False):
            said = "; ".join(one.steps) or one.problem
            world.say(f"{words.client(one.client)}: {said} ({instance.stop_timeout_s} s are over)")
    except NotReady as error:
        world.say(f"who is connected cannot be told: {error}")


def release(world: World, name: str) -> None:
    """Undo what ``prepare`` did to the host, on a real stop only; close the GPU where that is desired.

    systemd runs this before every automatic restart too (and for a restart job, where a moment in another
    compute mode would let other processes onto the GPU); the job in the queue tells them apart.
    """
    check_name(name)
    instance = last_good.load(world, name)
    _close(world, name, False, _GRACE_S)
    public = Path(instance.pipe_directory)
    if not pipe.daemons_on(public):  # the next start may be of a daemon behind a front door, or without one
        with _said(world):
            without_door.leave(public, for_door=instance.front_door)
    if instance.when_down == PROHIBITED:
        _close_gpus(world, instance)
    if world.systemd.job(instance.unit) == "stop":
        with _said(world), suppress(admission.Stuck):  # which was said
            admit.refuse_all(world, name)
        if instance.when_down != PROHIBITED:
            restore_modes(world, instance)
        with _said(world):
            _forget(world, instance)


def _close_gpus(world: World, instance: Instance) -> None:
    """From now until the next start has its limits in force, no process may use the GPUs."""
    try:
        with world.nvml() as nvml:
            compute_modes.close(world, nvml, _devices(world, instance, nvml))
    except MpsctlError as error:
        world.say(f"the GPU could not be closed: {error}")


def _forget(world: World, instance: Instance) -> None:
    """Remove our files of this run."""
    from mpsctl.store import limit_bypasses, unresponsive

    record.forget_starts(world, instance.name)
    record.forget(world, instance.name)
    limit_bypasses.forget(world, instance.name)
    unresponsive.forget(world, instance.name)
    gpu_claims.give_back(world, instance.name)
    pipe.remove(world.places.pipe(instance.name))
    pipe.remove_former(Path(instance.pipe_directory))


def restore_modes(world: World, instance: Instance) -> None:
    """Bring the compute modes back to what they were before the first start."""
    try:
        with world.nvml() as nvml:
            _restore_compute_modes(world, nvml, instance)
    except MpsctlError as error:
        world.say(f"the compute mode could not be brought back: {error}")


def _restore_compute_modes(world: World, nvml: Nvml, instance: Instance) -> None:
    devices = _devices(world, instance, nvml)
    if instance.compute_mode is None:
        compute_modes.take(world, nvml, instance, devices)
        return
    for device in devices:
        compute_modes.restore(world, nvml, device.gpu, instance.compute_mode)


def _devices(world: World, instance: Instance, nvml: Nvml) -> list[Device]:
    """What an instance had, whatever its file says by now and whichever index that has by now; what its file says
    where it had nothing. Without what another instance has, and without what is gone.

    :raises NotReady: if it cannot be told what others have.
    """
    gpus, found = nvml.gpus(), {}
    for reference in gpu_claims.of(world, instance.name) or instance.gpus:
        try:
            device = gpu_names.resolve(reference, gpus)
        except BadValue as error:
            world.say(f"its compute mode stays as it is: {error}")
            continue
        found[device.uuid] = device
    others = gpu_claims.of_others(world, instance.name, found)
    return [device for uuid, device in found.items() if uuid not in others]
