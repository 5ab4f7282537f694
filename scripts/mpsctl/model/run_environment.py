"""The environment with which `mpsctl run` starts a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Sequence

from mpsctl.model import client_variable, fit
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import BadValue
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.mps_variables import PREFIX, PRIORITY, THREADS
from mpsctl.model.quantity import Quantity

_HARMLESS = ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "CUDA_MPS_SM_PARTITION")
"""These a client may bring along: they say nothing of the daemon, and lift no limit."""


@dataclass(frozen=True)
class Lower:
    """What one client is to have less of than its instance gives. None: what the instance gives."""

    memory: Optional[Quantity] = None
    thread_percentage: Optional[float] = None
    client_priority: Optional[int] = None


@dataclass
class RunEnvironment:
    """``variables`` is all that the client gets, ``given`` what is ours of it, ``dropped`` what it does not get."""

    variables: dict[str, str]
    given: dict[str, str]
    dropped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def build(
    inherited: Mapping[str, str],
    instance: Instance,
    devices: Sequence[Device],
    lower: Lower,
    called: tuple[str, str] = ("--memory", "--threads"),
) -> RunEnvironment:
    """The client's environment; ``called`` is what the caller calls the memory limit and the thread percentage.

    Whatever MPS variable the caller has goes: one entry too many of a memory limit drops every limit, and
    another pipe directory leads past MPS without a word (driver 580, H200).

    :raises BadValue: for a value above the instance's.
    """
    uuids = tuple(device.uuid for device in devices)
    given = {PIPE_DIRECTORY: instance.pipe_directory, VISIBLE_DEVICES: ",".join(uuids)}
    if lower.memory is not None:
        given[client_variable.VARIABLE] = client_variable.render(
            _limits_mib(instance, devices, lower.memory, called[0])
        )
    if lower.thread_percentage is not None:
        most = 100.0 if instance.thread_percentage is None else instance.thread_percentage
        if lower.thread_percentage > most:
            raise _above(called[1], f"{lower.thread_percentage:g} %", f"{most:g} %", instance)
        given[THREADS] = f"{lower.thread_percentage:g}"
    if lower.client_priority is not None:
        if lower.client_priority < (instance.client_priority or 0):
            raise _above("--priority", "0 (normal)", "1 (below normal)", instance)
        given[PRIORITY] = str(lower.client_priority)
    kept = {
        key: value
        for key, value in inherited.items()
        if key != VISIBLE_DEVICES and (not key.startswith(PREFIX) or key in _HARMLESS)
    }
    found = RunEnvironment({**kept, **given}, given)
    found.dropped = sorted(key for key in inherited if key not in kept and inherited[key] != given.get(key))
    limit_bypass = client_variable.limit_bypass(found.variables, uuids)
    if limit_bypass is not None:
        raise AssertionError(limit_bypass)
    connections = fit.max_connections_of(found.variables)
    if fit.lowers_cap(connections):
        found.warnings.append(f"{fit.MAX_CONNECTIONS}={connections}: above 2 it lowers the number of possible clients")
    return found


def _limits_mib(instance: Instance, devices: Sequence[Device], memory: Quantity, called: str) -> dict[int, int]:
    limits = {}
    for ordinal, device in enumerate(devices):
        most_mib = device.memory_mib if instance.limit is None else instance.limit.on(device.memory_mib)
        mib = memory.on(device.memory_mib)
        if most_mib is not None and mib > most_mib:
            raise _above(called, f"{memory} ({mib} MiB)", f"{most_mib} MiB on {device}", instance)
        limits[ordinal] = mib
    return limits


def _above(option: str, found: str, most: str, instance: Instance) -> BadValue:
    return BadValue(
        f"{option} {found}",
        f"at most the {most} of instance {instance.name}",
        "lower it: a client can only have less than its instance gives",
    )
