"""A GPU on which nobody else works, and an MPS daemon for clients of ours: an instance's, or one for the time."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import files, hardware, procfs
from mpsctl.adapters.control_daemon import Daemon
from mpsctl.adapters.nvml import Nvml
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import PROHIBITED, Device, Gpu
from mpsctl.model.gpu import resolve as resolve_gpu
from mpsctl.model.instance import Instance
from mpsctl.store import admission, configuration
from mpsctl.store.world import World

_DAEMON_START_S = 10


def choose(
    world: World, name: Optional[str], reference: Optional[str], gpus: Sequence[Gpu]
) -> tuple[Optional[Instance], Device]:
    """The device that is named by an instance or by itself, and the instance through which it is to be reached.

    Without either name it is the host's only instance, or its only GPU.

    :raises BadValue: if there are several.
    """
    names = configuration.names(world)
    if name is None and reference is None:
        if len(names) == 1:
            name = names[0]
        elif len(gpus) == 1:
            reference = gpus[0].uuid
        else:
            raise BadValue(
                f"{len(names)} instances and {len(gpus)} GPUs", "one to measure on", "name it: --instance or --gpu"
            )
    if name is not None:
        instance = configuration.load(world, name)
        return instance, configuration.resolve(instance, gpus)[0]
    assert reference is not None
    device = resolve_gpu(reference, gpus)
    for other in names:
        try:
            instance = configuration.load(world, other)
            first = configuration.resolve(instance, gpus)[0]
        except BadValue:
            continue  # `status` says what is wrong with it
        if first == device and admission.open_directory(world.places, other) is not None:
            return instance, device
    return None, device


def lend(world: World, device: Device, purpose: str, stack: ExitStack) -> tuple[Path, Daemon]:
    """A daemon of our own on a device, until ``stack`` is closed; its pipe directory and the daemon.

    :raises NotReady: if it does not come up, or nothing may use the GPU.
    """
    if device.gpu.compute_mode == PROHIBITED:
        raise NotReady(f"{device} is in compute mode prohibited: nothing may use it; start its instance first")
    parent = world.places.root / "run/mps-fleet"
    files.make_directory(parent)
    for left in parent.glob(f"{purpose}-*-*"):  # of a run that was killed
        pid = left.name.split("-")[1]
        if pid.isdigit() and not procfs.alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    private = Path(tempfile.mkdtemp(prefix=f"{purpose}-{os.getpid()}-", dir=parent))
    stack.callback(shutil.rmtree, private, ignore_errors=True)
    stack.enter_context(world.temporary_daemon(private, (device.uuid,)))
    daemon = world.daemon(private, None)
    _wait_for(world, daemon)
    return private, daemon


def _wait_for(world: World, daemon: Daemon) -> None:
    end_s = world.now_s() + _DAEMON_START_S
    while True:
        try:
            daemon.ask(["get_default_client_priority"], deadline_s=2)
            return
        except NotReady:
            if world.now_s() >= end_s:
                raise
        world.sleep_s(0.05)


def refuse_busy(nvml: Nvml, device: Device, daemon: Optional[Daemon]) -> None:
    """:raises NotReady: naming the processes that use the device, by NVML and as clients of the daemon."""
    clients = set() if daemon is None else clients_of(daemon)
    clients.update(nvml.client_memory_mib(device.gpu.uuid) or ())
    others = [pid for pid in nvml.compute_memory_mib(device.gpu.uuid) or () if not may_be_server(pid)]
    busy = sorted(clients | set(others))
    if busy:
        raise NotReady(
            f"{device} is in use by {len(busy)} process{'es' if len(busy) > 1 else ''} (pid"
            f" {', '.join(map(str, busy[:8]))}): figures would be too high and they would be disturbed; wait until"
            " they have ended, or use --force"
        )


def clients_of(daemon: Daemon) -> set[int]:
    """The clients of all servers of a daemon."""
    return {pid for server in control.servers(daemon) for pid in control.clients(daemon, server.pid)}


def may_be_server(pid: int) -> bool:
    # NVML may count pids in another namespace than ours: one without a name here is none that we know.
    return hardware.is_server(pid) or not procfs.name(pid)
