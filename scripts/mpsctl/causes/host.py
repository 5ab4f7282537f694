"""The host itself: what the checks tell, and beside it daemons' logs, others' daemons and units, the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Collection

from mpsctl.adapters import daemon_log, files, hardware, managers, procfs, selinux
from mpsctl.causes import environment, log, memory, of_checks, refusals, symptoms, units
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose, of_instance
from mpsctl.causes.seen import Seen
from mpsctl.checks import words
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import MpsctlError, NotAFile
from mpsctl.model.foreign import shown
from mpsctl.observe.facts import DaemonProcess, InstanceFacts

_KERNEL_LINES, _LAST_LINES = 2000, 50
_AUDIT_BYTES = 1 << 20
_DEAD = ("Z", "D", "X")
_JUDGED = ("server-crash-loop", "client-fault", "waiting-behind-another-user", "clients-hidden-by-pid-namespace")
"""What checks tell of a running instance by the same lines."""
_SEVERAL = 2
"""One client at less than the whole is what a percentage is for: the rest is for those that come."""


def look(seen: Seen, names: Collection[str], met: Collection[int] = ()) -> list[Diagnosis]:
    """What is wrong with the host and with the named instances, each diagnosis with the instance that it is of.

    ``met`` are the CUDA errors that somebody met.
    """
    found = of_checks.of_report(seen.report, names)
    for one in seen.instances:
        if one.name in names:
            found += of_instance(one.name, _instance(seen, one))
            if symptoms.REFUSED in met:
                found += of_instance(one.name, refusals.of_instance(seen.world, one.name))
    found += _daemons(seen)
    found += _gpus(seen)
    found += memory.on_host(seen, names, symptoms.OUT_OF_MEMORY in met)
    found += _selinux(seen, names)
    found += _kernel(seen)
    return found + _texts(seen)


def _instance(seen: Seen, one: InstanceFacts) -> list[Diagnosis]:
    found = log.diagnose_log(_lines_of_start(seen, one), now_s=seen.host.wall_s)
    if not one.active:
        found += log.diagnose_log(_last_words(seen, one), now_s=seen.host.wall_s)
    if one.log_trusted is False:
        found = [of_checks.unproven(each) for each in found]
    if not one.active:
        return found
    found = [each for each in found if each.name not in _JUDGED]
    for client in one.clients:
        if client.state in _DEAD:
            found.append(diagnose("zombie-client", CERTAIN, f"{words.client(client)} is in state {client.state}"))
    return found + _percentage(one)


def _lines_of_start(seen: Seen, one: InstanceFacts) -> list[str]:
    """Every line of the present start of an instance's unit; none where the journal may not be read."""
    invocation = one.unit.invocation
    try:
        return seen.world.systemd.journal_of_start(invocation, daemon_log.EVERY_LINE) if invocation else []
    except MpsctlError:
        return []


def _last_words(seen: Seen, one: InstanceFacts) -> list[str]:
    try:
        return seen.world.systemd.journal(one.unit.name, _LAST_LINES)
    except MpsctlError:
        return []


def _percentage(one: InstanceFacts) -> list[Diagnosis]:
    percentage = one.desired.thread_percentage if one.desired else None
    clients = len(one.clients)
    if percentage is None or percentage == 100 or clients < _SEVERAL or percentage * clients >= 100:
        return []
    together = f"{percentage * clients:g} % of the multiprocessors"
    line = f"{clients} clients with {percentage:g} % each can use {together} together"
    return [diagnose("percentage-caps-everyone", POSSIBLE, line)]


def _daemons(seen: Seen) -> list[Diagnosis]:
    """What is wrong with control daemons that are no instance's, by their environment and directories."""
    found = []
    for daemon in seen.foreign:
        about = words.daemon(daemon, seen.host.devices(daemon))
        variables = procfs.environment(daemon.pid)
        if variables is not None:
            found += environment.lint(variables, None, of_daemon=True)
        found += _serves_few(seen, daemon, about)
        found += _damage(daemon, about)
    return found


def _serves_few(seen: Seen, daemon: DaemonProcess, about: str) -> list[Diagnosis]:
    """A daemon that everybody finds and that offers few GPUs. On a directory of its own that is what it is for."""
    devices, gpus = seen.host.devices(daemon), seen.host.gpus.gpus
    if devices is None or daemon.elsewhere or str(daemon.directory) != DEFAULT_PIPE_DIRECTORY:
        return []
    if len(devices) >= len(gpus) or daemon.visible is None:
        return []
    line = f"{about}: it serves {len(devices)} of {len(gpus)} GPUs, {VISIBLE_DEVICES}={shown(daemon.visible)}"
    return [diagnose("daemon-serves-other-gpus", CERTAIN, line)]


def _damage(daemon: DaemonProcess, about: str) -> list[Diagnosis]:
    """Files that are gone from a daemon's directory, looked at where the daemon itself sees it."""
    if not daemon.missing:
        return []
    line = f"gone from {shown(str(daemon.directory))}: {', '.join(daemon.missing)}"
    cause = "orphan-daemon" if "control" in daemon.missing else "cleaned-pipe-directory"
    return [diagnose(cause, CERTAIN, about, line)]


def _gpus(seen: Seen) -> list[Diagnosis]:
    gpus = seen.host.gpus
    if gpus.unread or not gpus.gpus:
        loaded = hardware.driver_version()
        line = "no driver is loaded: /proc/driver/nvidia/version is not there"
        return [diagnose("no-driver", CERTAIN, line)] if loaded is None and seen.host.nvidia_on_bus else []
    served = {uuid for one in seen.instances if one.active for uuid in (*one.serves, *(d.uuid for d in one.devices))}
    return [
        diagnose("gpu-older-than-volta", POSSIBLE, f"{gpu}: compute capability {gpu.compute_capability}")
        for gpu in gpus.gpus
        if gpu.pre_volta and served & {gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)}
    ]


def _selinux(seen: Seen, names: Collection[str]) -> list[Diagnosis]:
    root = seen.world.places.root
    if not selinux.enforcing(root):
        return []
    found = []
    for one in seen.instances:
        label = selinux.label(one.public) if one.public and one.name in names else None
        if label is not None and not selinux.kind(label).startswith("container_"):
            # Whether containers are to use it is not known as long as none does.
            sure = LIKELY if any(client.container for client in one.clients) else POSSIBLE
            line = f"{one.public}: {shown(label)}, expected container_file_t"
            found += of_instance(one.name, [diagnose("selinux-label", sure, line)])
    return found + symptoms.read_lines(_tail(root / "var/log/audit/audit.log")).diagnoses()


def _tail(path: Path) -> list[str]:
    try:
        with os.fdopen(files.open_file(path, os.O_RDONLY), "rb") as stream:
            stream.seek(max(0, path.stat().st_size - _AUDIT_BYTES))
            return stream.read(_AUDIT_BYTES).decode(errors="replace").splitlines()
    except (OSError, NotAFile):
        return []


def _kernel(seen: Seen) -> list[Diagnosis]:
    """The kernel's own words; what programs print is not looked for there."""
    try:
        lines = seen.world.systemd.kernel_log(_KERNEL_LINES)
    except MpsctlError:
        return []
    return symptoms.read_lines(line for line in lines if "NVRM" in line or "Cannot map" in line).diagnoses()


def _texts(seen: Seen) -> list[Diagnosis]:
    """What is wrong with units, cron jobs and prologs of others that run MPS."""
    return [
        diagnose(one.name, one.certainty, shown(str(path)), *one.evidence, remedy=one.remedy)
        for path, text in managers.texts(seen.world.places.root).items()
        for one in units.lint(text)
    ]
