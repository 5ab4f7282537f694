"""Before the daemon starts (ExecCondition and ExecStartPre of the unit).

``condition`` says whether this host can run MPS at all; ``prepare`` waits for the driver, finds the GPUs,
sets their compute mode, makes the daemon's directory and writes its environment.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Optional

from mpsctl.adapters import hardware, pipe, trusted, without_door
from mpsctl.lifecycle import admit, client_file, compute_modes, gpu_claims
from mpsctl.model import foreign
from mpsctl.model.checked_values import check_name
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.model.gpu import PROHIBITED, Device
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, last_good, public_directories, record
from mpsctl.store.world import World

_POLL_S = 0.5
_PAUSES_S = (0, 0, 0, 0, 1, 2, 4, 8, 16, 30)
"""The pause before the n-th start of a crash loop; the last holds for all that follow. systemd's own
RestartSteps needs systemd 254 and never forgets: after a week of work the tenth crash would wait as long as
the tenth of a loop."""


def condition(world: World, name: str) -> Optional[str]:
    """Why the unit is to be skipped on this host, or None.

    Only what cannot come late counts: systemd looks once, and a unit that is skipped at an automatic
    restart is not tried again (systemd 252, 257). So a host on which this instance has run since its boot
    is never skipped.
    """
    if record.short_lives(world, name) is not None:
        return None
    if hardware.binary(hardware.CONTROL_DAEMON) is None:
        return f"{hardware.CONTROL_DAEMON} is not installed; install the MPS package of this host's driver"
    if not hardware.nvidia_on_bus():
        return "no NVIDIA GPU is on the PCI bus"
    return None


def prepare(world: World, name: str) -> DaemonEnvironment:
    """Make everything ready for the daemon of an instance.

    :raises Untrusted: if others than root can change its directories, or the daemon's program.
    :raises BadValue: if its file is refused or names a device that the host lacks.
    :raises NotReady: if the driver does not come up, or another instance has one of its GPUs, for longer than the
        instance's bound, or another daemon serves its directory, or without a front door something of others lies
        there.
    :raises NotInForce: if the compute mode cannot be set.
    """
    check_name(name)
    with suppress(BadValue):  # which is told after the pause: systemd tries again at once, whatever the reason
        admit.wait_for_start(world, configuration.load(world, name))
    if world.places.conf(name).exists() or record.short_lives(world, name) is not None:  # else it never was
        _back_off(world, name)
    instance = configuration.load(world, name)  # as it is now: it may have been written anew during the pause
    gpu_claims.give_back(world, name)
    public, served = Path(instance.pipe_directory), world.places.daemon_directory(instance)
    admit.wait_for_start(world, instance)
    configuration.check_place(instance)
    programs = (hardware.binary(one) for one in (hardware.CONTROL_DAEMON, hardware.SERVER))
    for path in (public, world.places.runtime(name), *programs):
        if path is not None:
            trusted.require(path)
    for pid in pipe.daemons_on(public, world.places.pipe(name)):
        raise NotReady(
            f"a control daemon (pid {pid}) that this unit did not start serves {public}; end its clients, then"
            f" `echo quit | CUDA_MPS_PIPE_DIRECTORY={foreign.pasted(str(public))} nvidia-cuda-mps-control`"
        )
    with suppress(OSError, MpsctlError):  # a later tidying is no reason not to start
        public_directories.note(world, name, public)
    flags = _flags(instance)
    # Before the compute modes: a start that fails here leaves every GPU as it was.
    if instance.front_door:
        pipe.remove_former(public)
        pipe.make(served)
    else:
        without_door.make(public)
        pipe.remove(world.places.pipe(name))
    environment, devices = _with_driver(world, instance, DaemonEnvironment(served, (), hardware.SEARCH_PATH, flags))
    last_good.keep(world, name)
    client_file.keep(world, instance, devices)
    world.say(f"prepared {served} for {', '.join(str(device) for device in devices)}")
    return environment


def _flags(instance: Instance) -> str:
    """How the daemon is told to serve several users.

    :raises BadValue: if this host's daemon cannot.
    """
    flag = hardware.multi_user_flag() if instance.multi_user else ""
    if flag is None:
        raise no_multi_user()
    return flag


def no_multi_user() -> BadValue:
    """The refusal of multi-user mode on a host whose daemon does not know it."""
    return BadValue(
        "yes",
        f"a control daemon that can serve several users (555 or newer), which this host's"
        f" {hardware.binary(hardware.CONTROL_DAEMON)} is not",
        "set it to no, or upgrade the daemon",
        key="MultiUser",
        variable="mps_multi_user",
    )


def _with_driver(
    world: World, instance: Instance, without_devices: DaemonEnvironment
) -> tuple[DaemonEnvironment, tuple[Device, ...]]:
    """Wait until the driver answers and shows every GPU of the instance, and no other instance has one, within its
    bound; the daemon's environment, which is written then, and the devices."""
    end_s = world.now_s() + instance.driver_timeout_s
    said = False
    while True:
        try:
            with world.nvml() as nvml:
                devices = configuration.resolve(instance, nvml.gpus())
                environment = replace(without_devices, devices=tuple(device.uuid for device in devices))
                gpu_claims.take(world, instance.name, environment)
                if instance.when_down == PROHIBITED:
                    compute_modes.close(world, nvml, devices)
                else:
                    compute_modes.take(world, nvml, instance, devices)
                return environment, devices
        except (NotReady, BadValue) as error:
            # A GPU may still be missing while the driver comes up; a value that can never fit is not waited for.
            if isinstance(error, BadValue) and error.key != "GPUs":
                raise
            if world.now_s() + _POLL_S > end_s:
                raise _after_waiting(error, instance.driver_timeout_s) from None
            if not said:
                world.say(f"waiting up to {instance.driver_timeout_s} s: {error}")
                said = True
            world.sleep_s(_POLL_S)


def _after_waiting(error: MpsctlError, waited_s: int) -> MpsctlError:
    """The same error, saying how long was waited."""
    return NotReady(f"after {waited_s} s: {error}")


def _back_off(world: World, name: str) -> None:
    """Pause longer with every start that follows a short life, and never give up."""
    before = record.short_lives(world, name)
    last = record.read(world, name)
    lasted = last is not None and world.now_s() - last.since_s >= record.STABLE_AFTER_S
    short_lives = 0 if before is None or lasted else before + 1
    record.write_short_lives(world, name, short_lives)
    record.forget(world, name)
    pause_s = _PAUSES_S[min(short_lives, len(_PAUSES_S) - 1)]
    if pause_s:
        world.say(f"start {short_lives + 1} in a row of a daemon that does not last: waiting {pause_s} s")
        world.sleep_s(pause_s)
