"""One process: whether it is an MPS client, why not, and what else is wrong with it. By /proc, NVML and the log."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable, Optional, Sequence

from mpsctl.adapters import daemon_log, hardware, procfs
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.causes import environment
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, because, diagnose
from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.model.errors import BadValue, MpsctlError
from mpsctl.model.gpu import EXCLUSIVE_PROCESS, Gpu
from mpsctl.model.instance import Instance
from mpsctl.observe import reachability
from mpsctl.observe.host import ControlDaemon
from mpsctl.observe.status import Status
from mpsctl.store import configuration
from mpsctl.store.world import World

_LIBRARY = "libcuda.so"
_OPEN_FILES = 16_384
"""NVIDIA's documentation of MPS; a process that is no server needs far less."""
_FEW_OPEN_FILES = 1024


@dataclass(frozen=True)
class OnHost:
    """What is known of the host before a process is looked at; ``foreign`` are the daemons of no instance."""

    world: World
    statuses: Sequence[Status]
    instances: Sequence[Instance]
    gpus: Sequence[Gpu]
    foreign: Sequence[ControlDaemon] = ()

    def uuids(self, instance: Instance) -> Optional[list[str]]:
        """The instance's devices by UUID, or None where they are not known."""
        try:
            return [device.uuid for device in configuration.resolve(instance, self.gpus)]
        except BadValue:
            return None

    def status(self, instance: Instance) -> Optional[Status]:
        return next((one for one in self.statuses if one.instance == instance.name), None)


@dataclass(frozen=True)
class Uses:
    """What a process has by NVML: the devices on which it is a client, and those on which it has a context at all."""

    as_client: frozenset[str]
    at_all: frozenset[str]


def uses(world: World, pid: int, gpus: Sequence[Gpu]) -> Uses:
    """By the UUID of each GPU and MIG device. Empty where NVML does not answer."""
    as_client, at_all = set(), set()
    try:
        with world.nvml() as nvml:
            for uuid in [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]:
                if pid in (nvml.client_memory_mib(uuid) or {}):
                    as_client.add(uuid)
                if pid in (nvml.compute_memory_mib(uuid) or {}):
                    at_all.add(uuid)
    except MpsctlError:
        pass
    return Uses(frozenset(as_client), frozenset(at_all | as_client))


def look(host: OnHost, pid: int) -> tuple[list[Diagnosis], str]:
    """What is wrong with a process, and in one line what it is."""
    used = uses(host.world, pid, host.gpus)
    known = procfs.environment(pid)
    uid = procfs.uid(pid)
    about = _about(pid, uid, used, known is not None)
    found: list[Diagnosis] = []
    if procfs.state(pid) in ("Z", "D", "X"):
        found.append(diagnose("zombie-client", CERTAIN if used.at_all else POSSIBLE, about))
    instance = _instance_of(host, known or {})
    if known is not None:
        devices = None if instance is None else host.uuids(instance)
        found += environment.lint(known, devices, of_daemon=hardware.mps_program(pid) == hardware.CONTROL_DAEMON)
    if hardware.mps_program(pid) is None and not used.as_client:
        found += why_no_client(host, pid, known, instance, used)
    return found + _surroundings(pid, used), about


def _about(pid: int, uid: Optional[int], used: Uses, readable: bool) -> str:
    who = procfs.user(uid) if uid is not None else None
    what = "an MPS client" if used.as_client else "on a GPU outside MPS" if used.at_all else "on no GPU"
    inside = procfs.container(pid)
    return (
        f"pid {pid} ({procfs.command(pid)[:100]}), user {who or uid}{f', container {inside[:12]}' if inside else ''}:"
        f" {what}{'' if readable else '; its environment may not be read'}"
    )


def _instance_of(host: OnHost, known: dict[str, str]) -> Optional[Instance]:
    """The instance that the process means: by its variable, or the only one."""
    named = known.get(PIPE_DIRECTORY, "").rstrip("/")
    for instance in host.instances:
        if named and named == instance.pipe_directory:
            return instance
    return host.instances[0] if len(host.instances) == 1 else None


def why_no_client(
    host: OnHost,
    pid: int,
    known: Optional[dict[str, str]],
    instance: Optional[Instance],
    used: Uses,
) -> list[Diagnosis]:
    """Why a process is no client of an instance, what lies deepest first."""
    if not used.at_all and known is None:
        return []  # another user's: neither its libraries nor its environment may be read, and nothing is known
    if not used.at_all and not procfs.maps(pid, _LIBRARY):
        return [diagnose("no-cuda-yet", LIKELY, f"pid {pid} has no {_LIBRARY} mapped")]
    found: list[Diagnosis] = []
    if known is not None:
        found += _obstacles(host, pid, known, instance)
    found += _unserved(host, pid, instance)
    if used.at_all:
        names = ", ".join(sorted(used.at_all))
        exclusive = [gpu for gpu in host.gpus if gpu.uuid in used.at_all and gpu.compute_mode == EXCLUSIVE_PROCESS]
        more = ["it holds a GPU in exclusive mode: no server can have it meanwhile"] if exclusive else []
        found.append(
            diagnose("client-outside-mps", CERTAIN, f"pid {pid} has a context on {names} and is no client", *more)
        )
    return found


def _obstacles(host: OnHost, pid: int, known: dict[str, str], instance: Optional[Instance]) -> Iterable[Diagnosis]:
    status = host.status(instance) if instance else None
    reasons = reachability.obstacles(
        pid,
        known,
        [Path(one.pipe_directory) for one in host.instances],
        host.uuids(instance) if instance else None,
        int(status.unit.get("main_pid") or 0) if status else 0,
        host.world.places.root,
    )
    return [because(replace(reason, line=f"pid {pid}: {reason}"), CERTAIN) for reason in reasons if reason.cause]


def _unserved(host: OnHost, pid: int, instance: Optional[Instance]) -> list[Diagnosis]:
    found = []
    for one in host.instances if instance is None else [instance]:
        status = host.status(one)
        if status is None:
            continue
        if not status.active:
            found.append(diagnose("unit-not-active", LIKELY, *status.findings[:3]))
        elif not status.door_open:
            found.append(diagnose("front door-closed", LIKELY, *status.findings[:3]))
        log = log_of(host.world, status)
        if pid in log.waiting:
            users = sorted({str(server.uid) for server in status.servers})
            line = (
                f"pid {pid} of user {log.waiting[pid]} was queued; servers live for user {', '.join(users) or 'none'}"
            )
            found.append(diagnose("waiting-behind-another-user", CERTAIN if users else LIKELY, line))
    return found


def log_of(world: World, status: Status) -> DaemonLog:
    """What the journal has of the present start of an instance's daemon."""
    return daemon_log.read(lines_of(world, status))


def lines_of(world: World, status: Status) -> list[str]:
    """The lines of the present start; none where the journal may not be read."""
    invocation = status.unit.get("invocation", "")
    try:
        return world.systemd.journal_of_start(invocation, daemon_log.EVERY_LINE) if invocation else []
    except MpsctlError:
        return []


def _surroundings(pid: int, used: Uses) -> list[Diagnosis]:
    found = []
    limit = procfs.open_files_limit(pid)
    least = _FEW_OPEN_FILES if hardware.mps_program(pid) is None else _OPEN_FILES
    if limit is not None and limit < least:
        found.append(diagnose("open-files-limit", POSSIBLE, f"pid {pid} may have {limit} files open, expected {least}"))
    if procfs.maps_users(pid) and not used.as_client:
        found.append(diagnose("user-namespace", POSSIBLE, f"pid {pid} is user {procfs.uid(pid)} to the daemon"))
    own, ours = procfs.namespace(pid, "pid"), procfs.namespace(os.getpid(), "pid")
    if own and ours and own != ours:
        found.append(diagnose("pid-namespace", POSSIBLE, f"pid {pid} is in {own}, this program in {ours}"))
    return found
