"""The host itself, beside what verify's checks find: daemons' logs, others' daemons and units, the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import files, managers, procfs, selinux
from mpsctl.causes import environment, log, memory, process, symptoms, units
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.causes.process import OnHost
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import MpsctlError, NotAFile
from mpsctl.model.instance import Instance
from mpsctl.observe import host as verify_look
from mpsctl.observe.status import Status
from mpsctl.store import configuration
from mpsctl.store.world import World

_KERNEL_LINES, _LAST_LINES = 2000, 50
_AUDIT_BYTES = 1 << 20
_AFTER_DAMAGE = ("control_lock", "log")
"""Made by every daemon (535 to 580) and taken away by cleaners of /tmp, which spare the live sockets."""


def known(world: World, names: Sequence[str]) -> OnHost:
    """What the host says of the named instances, or all. NVML and the daemons are asked within bounds."""
    seen = verify_look.at_host(world, names, verify_look.NVML_TIMEOUT_S)
    named = names or configuration.names(world)
    instances = [seen.instances[name] for name in named if name in seen.instances]
    if seen.systemd_problem:  # nobody knows which daemon is an instance's
        return OnHost(seen.world, [], instances, seen.seen.gpus_seen)
    found = [verify_look.status_of(seen, instance) for instance in instances]
    return OnHost(seen.world, found, instances, seen.seen.gpus_seen, seen.foreign)


def look(host: OnHost, out_of_memory: bool = False) -> list[Diagnosis]:
    """What is wrong beside what verify's checks find: in logs, texts and numbers that have no check of their own.

    ``out_of_memory`` is whether somebody did meet that.
    """
    found: list[Diagnosis] = []
    for status in host.statuses:
        found += _instance(host, status)
    found += _daemons(host)
    found += _gpus(host)
    found += memory.on_host(host.world, host.statuses, host.gpus, out_of_memory)
    found += _selinux(host)
    found += _kernel(host.world)
    return found + _texts(host)


def _instance(host: OnHost, status: Status) -> list[Diagnosis]:
    found = log.diagnose_log(process.lines_of(host.world, status))
    if not status.active:
        return found + log.diagnose_log(_last_words(host.world, status))
    for client in status.connected:
        if client.state in ("Z", "D", "X"):
            found.append(diagnose("zombie-client", CERTAIN, f"{client} is in state {client.state}"))
    return found + _percentage(host, status)


def _last_words(world: World, status: Status) -> list[str]:
    try:
        return world.systemd.journal(status.unit["name"], _LAST_LINES)
    except MpsctlError:
        return []


_SEVERAL = 2
"""One client at less than the whole is what a percentage is for: the rest is for those that come."""


def _percentage(host: OnHost, status: Status) -> list[Diagnosis]:
    instance = _of(host, status)
    clients = sum(len(server.clients) for server in status.servers)
    if instance is None or instance.thread_percentage is None or clients < _SEVERAL:
        return []
    together = instance.thread_percentage * clients
    if instance.thread_percentage == 100 or together >= 100:
        return []
    line = (
        f"instance {status.instance}: {clients} clients with {instance.thread_percentage:g} % each can use"
        f" {together:g} % of the multiprocessors together"
    )
    return [diagnose("percentage-caps-everyone", POSSIBLE, line)]


def _of(host: OnHost, status: Status) -> Optional[Instance]:
    return next((one for one in host.instances if one.name == status.instance), None)


def _daemons(host: OnHost) -> list[Diagnosis]:
    """What is wrong with control daemons that are no instance's, by their environment and directories."""
    found = []
    for daemon in host.foreign:
        variables = procfs.environment(daemon.pid)
        if variables is None or daemon.directory is None:
            continue
        found += environment.lint(variables, None, of_daemon=True)
        serves = len(daemon.devices or ())
        if serves < len(host.gpus):
            found.append(
                diagnose(
                    "daemon-serves-other-gpus",
                    LIKELY if daemon.directory == Path(DEFAULT_PIPE_DIRECTORY) else POSSIBLE,
                    f"{daemon} serves {serves} of {len(host.gpus)} GPUs:"
                    f" {VISIBLE_DEVICES}={variables.get(VISIBLE_DEVICES)}",
                )
            )
        found += _damage(daemon.directory, procfs.root(daemon.pid), str(daemon))
    return found


def _damage(directory: Path, root: Path, who: str) -> list[Diagnosis]:
    place = root / str(directory).lstrip("/")
    try:
        present = {path.name for path in place.iterdir()}
    except FileNotFoundError:
        return [diagnose("orphan-daemon", CERTAIN, who, f"{directory} does not exist")]
    except OSError:
        return []
    if "control" not in present:
        return [diagnose("orphan-daemon", CERTAIN, who, f"no socket `control` in {directory}")]
    missing = [name for name in _AFTER_DAMAGE if name not in present]
    if missing:
        return [diagnose("cleaned-pipe-directory", CERTAIN, who, f"missing in {directory}: {', '.join(missing)}")]
    return []


def _gpus(host: OnHost) -> list[Diagnosis]:
    if not host.gpus:
        return [diagnose("no-driver", CERTAIN, "NVML shows no GPU")] if host.instances else []
    served = {uuid for status in host.statuses if status.active for uuid in (*status.serves, *_uuids(status))}
    return [
        diagnose("gpu-older-than-volta", POSSIBLE, f"{gpu}: compute capability {gpu.compute_capability}")
        for gpu in host.gpus
        if gpu.pre_volta and served & {gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)}
    ]


def _uuids(status: Status) -> list[str]:
    return [str(gpu["uuid"]) for gpu in status.gpus]


def _selinux(host: OnHost) -> list[Diagnosis]:
    root = host.world.places.root
    if not selinux.enforcing(root):
        return []
    found = []
    for status in host.statuses:
        clients = [client for server in status.servers for client in server.clients]
        label = selinux.label(Path(status.pipe_directory)) if status.pipe_directory else None
        if label is not None and not selinux.kind(label).startswith("container_"):
            # Whether containers are to use it is not known as long as none does.
            sure = LIKELY if any(procfs.container(client.pid) for client in clients) else POSSIBLE
            found.append(
                diagnose("selinux-label", sure, f"{status.pipe_directory}: {label}, expected container_file_t")
            )
    return found + symptoms.read_lines(_tail(root / "var/log/audit/audit.log")).diagnoses()


def _tail(path: Path) -> list[str]:
    try:
        with os.fdopen(files.open_file(path, os.O_RDONLY), "rb") as stream:
            stream.seek(max(0, path.stat().st_size - _AUDIT_BYTES))
            return stream.read(_AUDIT_BYTES).decode(errors="replace").splitlines()
    except (OSError, NotAFile):
        return []


def _kernel(world: World) -> list[Diagnosis]:
    """The kernel's own words; what programs print is not looked for there."""
    try:
        lines = [line for line in world.systemd.kernel_log(_KERNEL_LINES) if "NVRM" in line or "Cannot map" in line]
    except MpsctlError:
        return []
    return symptoms.read_lines(lines).diagnoses()


def _texts(host: OnHost) -> list[Diagnosis]:
    """What is wrong with units, cron jobs and prologs of others that run MPS."""
    return [
        diagnose(one.name, one.certainty, str(path), *one.evidence, remedy=one.remedy)
        for path, text in managers.texts(host.world.places.root).items()
        for one in units.lint(text)
    ]
