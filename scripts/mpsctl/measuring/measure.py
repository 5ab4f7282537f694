"""Measuring what a client's context and the MPS server cost on a GPU, with clients that do nothing.

Each is a process of its own with one context, under a limit of its own; what it may not allocate of that
limit is what its context costs. The least limit with which one starts is found by halving. The GPU's settings
are left alone: through an instance that runs, nothing is started but clients; without one, a daemon of our
own runs for these seconds.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import cuda
from mpsctl.adapters.control_daemon import Daemon
from mpsctl.adapters.nvml import Nvml
from mpsctl.measuring import idle_gpu
from mpsctl.model import client_variable, costs
from mpsctl.model.costs import Measurement
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.model.gpu import Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.model.mps_variables import THREADS
from mpsctl.store import admission, configuration, measured
from mpsctl.store.world import World

_PROBE_LIMIT_MIB = 2048
"""Ample for one context, and all that one client could ever take."""
_USUAL_PERCENTAGES = (100.0, 50.0)
_DEADLINE_S = 120
_CLIENT_TIMEOUT_S = 20
_MARGIN_MIB = 64
"""The least limit is looked for this far around the context's cost first."""


@dataclass(frozen=True)
class _Bench:
    """Where the clients run: one daemon, its devices by UUID, and the most that one may ask for."""

    world: World
    nvml: Nvml
    device: Device
    uuids: tuple[str, ...]
    pipe_directory: Path
    daemon: Daemon
    limit_mib: int
    end_s: float

    def environment(self, percentage: float, limit_mib: int) -> dict[str, str]:
        return {
            PIPE_DIRECTORY: str(self.pipe_directory),
            VISIBLE_DEVICES: ",".join(self.uuids),
            client_variable.VARIABLE: client_variable.render({0: limit_mib}),
            THREADS: f"{percentage:g}",
        }


def measure(
    world: World,
    name: Optional[str] = None,
    reference: Optional[str] = None,
    percentages: Sequence[float] = (),
    force: bool = False,
) -> list[Measurement]:
    """Measure through an instance, or on a GPU, and keep the figures on this host.

    Without either, the host's only instance is taken, or its only GPU.

    :raises BadValue: if neither is named and there are several, or a percentage is above the instance's.
    :raises NotReady: if the GPU is busy (``force`` overrides), CUDA refuses, or two minutes are over.
    :raises NotInForce: if a client ran outside MPS, or without the limit it was given.
    """
    with world.nvml() as nvml, ExitStack() as stack:
        gpus = nvml.gpus()
        driver = nvml.driver_version()
        instance, device = idle_gpu.choose(world, name, reference, gpus)
        bench = _bench(world, nvml, instance, device, gpus, stack)
        if not force:
            idle_gpu.refuse_busy(nvml, device, bench.daemon)
        most = 100.0 if instance is None or instance.thread_percentage is None else instance.thread_percentage
        for percentage in percentages:
            if percentage > most:
                raise BadValue(
                    f"{percentage:g} % of the multiprocessors", f"at most the instance's {most:g} %", "lower it"
                )
        wanted = percentages or sorted({most, *(one for one in _USUAL_PERCENTAGES if one <= most)}, reverse=True)
        found = [_measure_one(bench, driver, percentage) for percentage in wanted]
        measured.keep(world, found)
        return found


def _bench(
    world: World, nvml: Nvml, instance: Optional[Instance], device: Device, gpus: Sequence[Gpu], stack: ExitStack
) -> _Bench:
    end_s = world.now_s() + _DEADLINE_S
    if instance is not None:
        public = Path(instance.pipe_directory)
        own = admission.open_directory(world.places, instance.name)
        if own is None:
            raise NotReady(f"the instance {instance.name} lets no clients in; see `mpsctl status {instance.name}`")
        uuids = tuple(one.uuid for one in configuration.resolve(instance, gpus))
        most_mib = device.memory_mib if instance.limit is None else instance.limit.on(device.memory_mib)
        limit_mib = _PROBE_LIMIT_MIB if most_mib is None else min(_PROBE_LIMIT_MIB, most_mib)
        daemon = world.daemon_of(instance.name, own)
        return _Bench(world, nvml, device, uuids, public, daemon, limit_mib, end_s)
    private, daemon = idle_gpu.lend(world, device, "measure", stack)
    # A client's own limit only lowers what the daemon has.
    daemon.ask([f"set_default_device_pinned_mem_limit 0 {_PROBE_LIMIT_MIB}M"])
    return _Bench(world, nvml, device, (device.uuid,), private, daemon, _PROBE_LIMIT_MIB, end_s)


def _measure_one(bench: _Bench, driver: str, percentage: float) -> Measurement:
    gpu = bench.device.gpu
    with _client(bench, percentage, bench.limit_mib) as seen:
        if seen.under_mps is False:
            raise NotInForce(f"a client on {bench.pipe_directory} ran outside MPS; see `mpsctl status`")
        context_mib = bench.limit_mib - seen.free_mib
        if context_mib < 0:
            raise NotInForce(
                f"a client under a limit of {bench.limit_mib} MiB found {seen.free_mib} MiB free: no limit is in force"
            )
        _check_server_limit(bench)
        server_mib = _server_mib(bench)
    world = bench.world
    world.say(f"{percentage:g} % of the multiprocessors: a context costs {context_mib} MiB")
    found = Measurement(
        gpu_name=bench.device.mig.name if bench.device.mig else gpu.name,
        driver=costs.driver_key(driver),
        thread_percentage=percentage,
        context_mib=context_mib,
        server_mib=server_mib,
        reserved_mib=0 if bench.device.memory_mib is None else max(0, bench.device.memory_mib - seen.total_mib),
        multiprocessors=seen.multiprocessors,
        measured_on=f"this host, driver {driver}, {time.strftime('%Y-%m-%d')}",
    )
    return replace(found, least_limit_mib=_least_limit_mib(bench, percentage, context_mib))


def _client(bench: _Bench, percentage: float, limit_mib: int) -> AbstractContextManager[cuda.Seen]:
    if bench.world.now_s() >= bench.end_s:
        raise NotReady(f"measuring took longer than {_DEADLINE_S} s and was ended; the GPU answers slowly")
    return bench.world.cuda(bench.environment(percentage, limit_mib), _CLIENT_TIMEOUT_S)


def _check_server_limit(bench: _Bench) -> None:
    """A server that still has a lower limit than the instance's would pass for a dearer context."""
    for server in control.servers(bench.daemon):
        lines = bench.daemon.ask([f"get_device_pinned_mem_limit {server.pid} 0"])[0]
        for line in lines:
            number, unit = line[:-1], line[-1:]
            if number.isdigit() and unit in "GM":
                mib = int(number) * (1024 if unit == "G" else 1)
                if mib < (bench.limit_mib // 1024 * 1024 if unit == "G" else bench.limit_mib):
                    raise NotInForce(f"server {server.pid} has a limit of {line}, below the instance's: reload it")


def _server_mib(bench: _Bench) -> Optional[int]:
    """What is not a client in NVML's list is the server; None where that is not one process."""
    gpu = bench.device.gpu
    clients = bench.nvml.client_memory_mib(gpu.uuid) or {}
    memory = bench.nvml.compute_memory_mib(gpu.uuid) or {}
    servers = [pid for pid in memory if pid not in clients and idle_gpu.may_be_server(pid)]
    return memory[servers[0]] if clients and len(servers) == 1 else None


def _least_limit_mib(bench: _Bench, percentage: float, context_mib: int) -> int:
    """The least limit in MiB with which a client starts."""
    works, fails = context_mib + _MARGIN_MIB, max(0, context_mib - _MARGIN_MIB)
    if works > bench.limit_mib or not _starts(bench, percentage, works):
        works = bench.limit_mib  # the first client has started with it
    if fails and _starts(bench, percentage, fails):
        works, fails = fails, 0
    while works - fails > 1:
        middle = (works + fails) // 2
        if _starts(bench, percentage, middle):
            works = middle
        else:
            fails = middle
    return works


def _starts(bench: _Bench, percentage: float, limit_mib: int) -> bool:
    try:
        with _client(bench, percentage, limit_mib):
            return True
    except cuda.CudaError as error:
        if error.code == cuda.OUT_OF_MEMORY:
            return False
        raise
