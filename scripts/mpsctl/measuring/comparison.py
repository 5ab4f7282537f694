"""The same processes under MPS and time-sliced, on one idle GPU: where they run, and what each side's are given.

The GPU's settings are left alone. Through an instance that runs, nothing is started but clients; without one, a daemon
of our own runs for the time. The time-sliced side are the same processes with a pipe directory that does not exist:
CUDA then runs them outside MPS without a word (driver 580, H200). On a GPU in exclusive mode there is no such side.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.adapters.control_daemon import Daemon
from mpsctl.adapters.nvml import Nvml
from mpsctl.adapters.stop_request import Stop
from mpsctl.adapters.worker_pool import Stopped
from mpsctl.checks import free_places, probe_client
from mpsctl.measuring import idle_gpu
from mpsctl.measuring.bench_results import Series
from mpsctl.model import client_variable, run_environment
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import NotReady
from mpsctl.model.gpu import EXCLUSIVE_PROCESS, PROHIBITED, Device
from mpsctl.model.instance import Instance
from mpsctl.model.mps_variables import THREADS
from mpsctl.model.quantity import Quantity
from mpsctl.model.run_environment import Lower
from mpsctl.store import admission, configuration, door_journal
from mpsctl.store.world import World

_SETTLE_S = 5
_SPARE_S = 1.0
_NO_DAEMON = "run/mps-fleet/no-such-daemon"


@dataclass
class Comparison:
    """Where the processes run. ``device`` and ``nvml`` are None on a host whose NVML does not answer.

    ``notes`` gets lines for people; ``uid`` is the user as whom an instance's clients come, None for our own, and
    ``gid`` the group whose members alone may. ``free_places`` is how many its front door lets in, None for as many as
    come.
    """

    world: World
    force: bool
    notes: list[str]
    gpu: str = "cannot tell"
    driver: str = "cannot tell"
    served_by: str = ""
    nvml: Optional[Nvml] = None
    device: Optional[Device] = None
    instance: Optional[Instance] = None
    uuids: tuple[str, ...] = ()
    pipe_directory: Optional[Path] = None
    daemon: Optional[Daemon] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    free_places: Optional[int] = None


def find(
    one: Comparison,
    instance: Optional[str],
    gpu: Optional[str],
    purpose: str,
    stack: ExitStack,
    blind: bool = False,
    clients: int = 1,
) -> None:
    """Find the GPU and the daemon, one of our own for ``purpose`` until ``stack`` is closed where no instance serves.

    ``blind`` is whether work is possible without NVML, if forced; ``clients`` how many there are at once at least.

    :raises NotReady: if the GPU is busy (``force`` overrides), nothing may use it, NVML does not answer, or the
        instance's front door has no place for the clients.
    """
    try:
        one.nvml = stack.enter_context(one.world.nvml())
    except NotReady as error:
        if not blind:
            raise
        if not one.force:
            raise NotReady(f"{error}; with --force the sweep runs without knowing whether the GPU is idle") from None
        one.notes.append(f"utilisation and memory: cannot tell ({error})")
    if one.nvml is not None:
        _find_device(one, one.nvml, instance, gpu, purpose, stack)
    elif instance is not None:
        one.instance = configuration.load(one.world, instance)
        _through_instance(one, one.instance)
    if one.instance is not None:
        no_place = free_places.why_none(one.world, one.instance, one.uid, clients)
        if no_place is not None:
            raise NotReady(
                f"not tried: {no_place}; try again when clients of the instance {one.instance.name} have ended"
            )
        one.free_places = free_places.number(one.world, one.instance, one.uid)


def both(one: Comparison, shared: Sequence[Series]) -> list[Series]:
    """The sides that this GPU has: time-sliced first, then those of MPS. Why one is missing becomes a note."""
    if one.pipe_directory is None:
        one.notes.append("no MPS side: without NVML it is not known which GPU a daemon would serve; name an --instance")
        shared = []
    if one.device is not None and one.device.gpu.compute_mode == EXCLUSIVE_PROCESS:
        one.notes.append(
            "no time-sliced side: in compute mode exclusive_process one process at a time may use the GPU without MPS,"
            " and the mode is left as it is"
        )
        return list(shared)
    return [Series(mps=False), *shared]


def allow(one: Comparison, most_mib: int) -> None:
    """Let clients of a daemon of our own have limits of up to ``most_mib`` MiB; an instance's is left as it is."""
    if one.instance is None and one.daemon is not None:
        # A client's own limit only lowers what the daemon has.
        one.daemon.ask([f"set_default_device_pinned_mem_limit 0 {most_mib}M"])


def _find_device(
    one: Comparison, nvml: Nvml, instance: Optional[str], gpu: Optional[str], purpose: str, stack: ExitStack
) -> None:
    gpus = nvml.gpus()
    one.instance, one.device = idle_gpu.choose(one.world, instance, gpu, gpus)
    device = one.device
    one.driver = nvml.driver_version()
    one.gpu = device.mig.name if device.mig else device.gpu.name
    if device.gpu.compute_mode == PROHIBITED:
        raise NotReady(f"{device} is in compute mode prohibited: nothing may use it; start its instance first")
    if one.instance is not None:
        one.uuids = tuple(each.uuid for each in configuration.resolve(one.instance, gpus))
        _through_instance(one, one.instance)
    if not one.force:
        idle_gpu.refuse_busy(nvml, device, one.daemon)
    if one.instance is None:
        one.uuids = (device.uuid,)
        one.pipe_directory, one.daemon = idle_gpu.lend(one.world, device, purpose, stack)
        one.served_by = "one of our own, for the time"


def _through_instance(one: Comparison, instance: Instance) -> None:
    public = Path(instance.pipe_directory)
    own = admission.open_directory(one.world.places, instance.name)
    if own is None:
        raise NotReady(f"the instance {instance.name} lets no clients in; see `mpsctl status {instance.name}`")
    one.pipe_directory, one.daemon = public, one.world.daemon_of(instance.name, own)
    one.served_by = f"instance {instance.name}"
    uid = probe_client.users_of(one.world, instance, one.daemon)[0]
    one.uid, one.gid = (None if uid == os.geteuid() else uid), configuration.gid_of(instance)


def environment(one: Comparison, base: Mapping[str, str], series: Series) -> dict[str, str]:
    """All that a process of the series gets: ``base``, less its MPS variables, and what makes it one of its side.

    :raises BadValue: for a value above the instance's.
    """
    other = series.pipe_directory
    if series.mps and other is None and one.instance is not None and one.device is not None:
        lower = Lower(
            memory=None if series.limit_mib is None else Quantity(f"{series.limit_mib}M", mib=series.limit_mib),
            thread_percentage=series.thread_percentage,
        )
        assert one.nvml is not None
        devices = configuration.resolve(one.instance, one.nvml.gpus())
        return run_environment.build(base, one.instance, devices, lower).variables
    kept = {key: value for key, value in base.items() if not key.startswith("CUDA_MPS_")}
    if one.device is not None:
        kept[VISIBLE_DEVICES] = ",".join(one.uuids) if series.mps else one.device.uuid
    if not series.mps:
        kept[PIPE_DIRECTORY] = str(one.world.places.root / _NO_DAEMON)
        return kept
    kept[PIPE_DIRECTORY] = other or str(one.pipe_directory)
    if series.thread_percentage is not None:
        kept[THREADS] = f"{series.thread_percentage:g}"
    if series.limit_mib is not None:
        kept[client_variable.VARIABLE] = client_variable.render({0: series.limit_mib})
    return kept


def refusal(one: Comparison, since_s: float) -> str:
    """What the front door last said of a client that it refused since then, as a part of a line; empty where it refused
    nobody, or the journal may not be read."""
    if one.instance is None:
        return ""
    try:
        found = door_journal.refusals(one.world, one.instance.name, one.world.now_s() - since_s + _SPARE_S)
    except NotReady:
        return ""
    return f"; the front door refused (CUDA error 805): {found[-1].line}" if found else ""


def settle(one: Comparison, stop: Stop) -> None:
    """Wait until the driver has let go of the clients before: at the cap there is room for no other.

    :raises Stopped: at a signal.
    """
    if one.nvml is None or one.device is None or one.force:
        return
    limit = time.monotonic() + _SETTLE_S
    while one.nvml.client_memory_mib(one.device.uuid) and time.monotonic() < limit:
        if select.select([stop], [], [], 0.05)[0]:
            raise Stopped
