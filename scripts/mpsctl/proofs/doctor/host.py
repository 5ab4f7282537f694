"""The host itself: instances, their daemons' logs, everyone on the GPUs, other managers of MPS, the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Optional, Sequence

from mpsctl.outside import daemon as control
from mpsctl.outside import files, hardware, pipe, procfs, selinux
from mpsctl.proofs import status as statuses
from mpsctl.proofs import training
from mpsctl.proofs.doctor import environment, log, memory, of_checks, process, symptoms, units
from mpsctl.proofs.doctor.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.proofs.doctor.process import OnHost
from mpsctl.proofs.status import Status
from mpsctl.state import configuration
from mpsctl.state.world import World
from mpsctl.values import fit
from mpsctl.values.check import Check
from mpsctl.values.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.values.errors import BadValue, MpsctlError
from mpsctl.values.gpu import DEFAULT, Gpu
from mpsctl.values.instance import Instance

_KERNEL_LINES = 2000
_AUDIT_BYTES = 1 << 20
_AFTER_DAMAGE = ("control_lock", "log")
"""Made by every daemon (535 to 580) and taken away by cleaners of /tmp, which spare the live sockets."""
_CRASH_LOOP = 2
_SLURM = ("etc/slurm/prolog.d", "etc/slurm/prolog", "etc/slurm-llnl/prolog")


def known(world: World, names: Sequence[str]) -> OnHost:
    """What the host says of its instances; all of them where none is named.

    :raises BadValue: for a name that has no file.
    """
    for name in names:
        configuration.load(world, name)
    named = list(names) or configuration.names(world)
    gpus, _ = statuses.host_gpus(world)
    instances = []
    for name in named:
        try:
            instances.append(configuration.load(world, name))
        except BadValue:
            continue  # its status says so
    return OnHost(world, statuses.status_of_all(world, named), instances, gpus)


def look(host: OnHost, checks: Sequence[Check] = (), out_of_memory: bool = False) -> list[Diagnosis]:
    """Everything that is wrong, as far as it can be seen from outside.

    ``checks`` are those of the host that were made already; ``out_of_memory`` is whether somebody did meet that.
    """
    found: list[Diagnosis] = []
    for status in host.statuses:
        found += _instance(host, status)
    found += _daemons(host)
    found += _on_gpus(host)
    found += _gpus(host)
    found += memory.on_host(host.world, host.statuses, host.gpus, out_of_memory)
    found += of_checks.diagnose_checks([*checks, *_training(host)])
    found += _selinux(host)
    found += _kernel(host.world)
    return found + _units(host)


def _instance(host: OnHost, status: Status) -> list[Diagnosis]:
    lines = process.lines_of(host.world, status)
    found = log.diagnose_log(lines)
    logged = {one.name for one in found}
    if status.unit and not status.active:
        recent = host.world.systemd.journal(status.unit["name"], 50)
        found += log.diagnose_log(recent)
        found.append(diagnose("unit-not-active", CERTAIN, *status.findings[:4]))
        return found
    if status.short_lives >= _CRASH_LOOP and "server-crash-loop" not in logged:
        found.append(diagnose("daemon-went-away", LIKELY, f"{status.short_lives} starts in a row did not last"))
    if status.active and not status.daemon_answers:
        found += _silent(status)
    elif status.active and not status.gate_open:
        found.append(diagnose("gate-closed", CERTAIN, *status.findings[:3]))
    if status.restart_needed:
        found.append(diagnose("set-before-restart", CERTAIN, status.restart_needed))
    wrong = [line for line in status.own_findings if ": the daemon shows" in line or "server's log says" in line]
    if wrong:
        found.append(diagnose("not-as-wished", CERTAIN, *wrong))
    for server in status.servers:
        if server.state == "FAULT":
            found.append(diagnose("client-fault", CERTAIN, f"server {server.pid} is in state FAULT"))
        for client in server.clients:
            if client.escaped:
                by_variable = "drops every limit" in client.escaped
                name = "limit-shaken-off" if by_variable else "limit-over-reached"
                found.append(diagnose(name, CERTAIN, f"{client}: {client.escaped}"))
            if client.unlimited:
                found.append(diagnose("client-without-limit", CERTAIN, f"{client}: {client.unlimited}"))
            if procfs.state(client.pid) in ("Z", "D", "X"):
                found.append(diagnose("zombie-client", CERTAIN, f"{client} is in state {procfs.state(client.pid)}"))
    return found + _cap(host, status) + _percentage(host, status) + _directory(status)


def _silent(status: Status) -> list[Diagnosis]:
    stopped = procfs.state(int(status.unit.get("main_pid") or 0)) in ("T", "t")
    text = " ".join(status.findings)
    if stopped:
        return [
            diagnose("daemon-stopped", CERTAIN, f"the daemon, pid {status.unit['main_pid']}, is in state T (stopped)")
        ]
    if "held by" in text:
        return [diagnose("session-held", LIKELY, *status.findings[:3])]
    if "no control daemon" in text.lower():
        return [diagnose("no-daemon", LIKELY, *status.findings[:3])]
    return [diagnose("daemon-stopped", POSSIBLE, *status.findings[:3])]


def _cap(host: OnHost, status: Status) -> list[Diagnosis]:
    found = []
    driver = hardware.driver_version()
    for ordinal, shown in enumerate(status.gpus):
        gpu = next((one for one in host.gpus if one.index == shown["index"]), None)
        old = gpu is not None and gpu.pre_volta
        cap = fit.cap_of(fit.Card(shown["name"], shown["memory_mib"], driver, pre_volta=old))
        clients = [client for server in status.servers for client in server.clients]
        on_it = [one for one in clients if len(status.gpus) == 1 or one.memory_mib[ordinal : ordinal + 1] != [None]]
        if len(on_it) >= cap:
            line = f"instance {status.instance}, device {ordinal}: {len(on_it)} clients, the cap is {cap} contexts"
            found.append(diagnose("too-many-clients", CERTAIN, line))
    return found


def _percentage(host: OnHost, status: Status) -> list[Diagnosis]:
    instance = _of(host, status)
    clients = sum(len(server.clients) for server in status.servers)
    if instance is None or instance.thread_percentage is None or not clients:
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


def _directory(status: Status) -> list[Diagnosis]:
    """What a user who is not root meets on the way to the pipe directory."""
    if not status.pipe_directory:
        return []
    closed = pipe.closed_to(Path(status.pipe_directory), _NOBODY, frozenset())
    if closed is None:
        return []
    where, mode = closed
    line = f"{where} has mode {mode:04o}: users who do not own it cannot enter {status.pipe_directory}"
    return [diagnose("pipe-directory-closed", LIKELY, line, remedy=f"`chmod o+x {where}`")]


_NOBODY = 65_534


def _daemons(host: OnHost) -> list[Diagnosis]:
    """Control daemons by their environment: those of nobody, two on one GPU, and those whose sockets are gone."""
    ours = {int(status.unit.get("main_pid") or 0): status for status in host.statuses}
    offered: dict[str, list[str]] = {}
    found = []
    for pid in control.processes(front_ends=False):
        variables = procfs.environment(pid)
        if variables is None:
            continue
        directory = variables.get(PIPE_DIRECTORY, environment.DEFAULT_DIRECTORY)
        who = f"control daemon {pid} ({procfs.command(pid)}), {PIPE_DIRECTORY}={directory}"
        inside = procfs.container(pid)
        if inside:
            who += f", container {inside[:12]}"
        for uuid in _offered(variables.get(VISIBLE_DEVICES), host.gpus):
            offered.setdefault(uuid, []).append(who)
        if pid in ours:
            continue
        found.append(diagnose("foreign-daemon", POSSIBLE, who))
        found += environment.lint(variables, None, of_daemon=True)
        chosen = variables.get(VISIBLE_DEVICES)
        serves = len(_offered(chosen, host.gpus))
        if serves < len(host.gpus):
            found.append(
                diagnose(
                    "daemon-serves-other-gpus",
                    LIKELY if directory == environment.DEFAULT_DIRECTORY else POSSIBLE,
                    f"{who} serves {serves} of {len(host.gpus)} GPUs: {VISIBLE_DEVICES}={chosen}",
                )
            )
        found += _damage(Path(directory), procfs.root(pid), who)
    for uuid, owners in offered.items():
        if len(owners) > 1:
            found.append(diagnose("two-daemons-one-gpu", CERTAIN, f"{uuid}:", *owners))
    return found


def _offered(chosen: Optional[str], gpus: Sequence[Gpu]) -> list[str]:
    """The GPUs that a CUDA_VISIBLE_DEVICES of a daemon names, by UUID; all of them without one."""
    if chosen is None:
        return [gpu.uuid for gpu in gpus]
    words = [word.strip() for word in chosen.split(",")]
    every = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus}
    return [uuid for uuid in every if any(word and uuid.startswith(word) for word in words)] + [
        by_index[word] for word in words if word in by_index
    ]


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


def _on_gpus(host: OnHost) -> list[Diagnosis]:
    """Processes that use an instance's GPU and are no client of it."""
    found = []
    try:
        with host.world.nvml() as nvml:
            rows = {
                instance.name: {
                    uuid: (set(nvml.compute_memory_mib(uuid) or {}), nvml.client_memory_mib(uuid))
                    for uuid in host.uuids(instance) or ()
                }
                for instance in host.instances
            }
    except MpsctlError:
        return []
    for instance in host.instances:
        status = host.status(instance)
        if status is None or not status.active:
            continue
        outside: set[int] = set()
        for everyone, clients in rows[instance.name].values():
            if clients is not None:
                outside |= everyone - set(clients)
        outside -= {server.pid for server in status.servers}
        for pid in sorted(outside):
            if procfs.name(pid) in (hardware.SERVER[:15], ""):
                continue
            used = process.uses(host.world, pid, host.gpus)
            found += process.why_no_client(host, pid, procfs.uid(pid), procfs.environment(pid), instance, used)
    return found


def _gpus(host: OnHost) -> list[Diagnosis]:
    if not host.gpus:
        return [diagnose("no-driver", CERTAIN, "NVML shows no GPU")] if host.statuses else []
    found = []
    served = {uuid for status in host.statuses if status.active for uuid in (*status.serves, *_uuids(status))}
    others = {
        uuid
        for pid in control.processes(front_ends=False)
        for uuid in _offered((procfs.environment(pid) or {}).get(VISIBLE_DEVICES), host.gpus)
    }
    for gpu in host.gpus:
        mine = {gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)}
        down = any(
            instance.compute_mode_when_down == gpu.compute_mode
            for instance in host.instances
            if mine & set(host.uuids(instance) or ())
        )
        if gpu.compute_mode not in (None, DEFAULT) and not mine & served and not down:
            sure = POSSIBLE if mine & others else CERTAIN
            found.append(diagnose("exclusive-without-daemon", sure, f"{gpu}: compute mode {gpu.compute_mode}"))
        if gpu.persistence is False and mine & served:
            found.append(diagnose("persistence-off", POSSIBLE, str(gpu)))
        if gpu.pre_volta and mine & served:
            found.append(
                diagnose("gpu-older-than-volta", POSSIBLE, f"{gpu}: compute capability {gpu.compute_capability}")
            )
    return found


def _uuids(status: Status) -> list[str]:
    return [str(gpu["uuid"]) for gpu in status.gpus]


def _training(host: OnHost) -> list[Check]:
    found: list[Check] = []
    for status in host.statuses:
        instance = _of(host, status)
        if instance is not None:
            clients = [client for server in status.servers for client in server.clients]
            found += training.look(instance.distributed_jobs, clients, [gpu["memory_mib"] for gpu in status.gpus])
    return found


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
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _AUDIT_BYTES))
            return stream.read(_AUDIT_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _kernel(world: World) -> list[Diagnosis]:
    """The kernel's own words; what programs print is not looked for there."""
    try:
        lines = [line for line in world.systemd.kernel_log(_KERNEL_LINES) if "NVRM" in line or "Cannot map" in line]
    except MpsctlError:
        return []
    return symptoms.read_lines(lines).diagnoses()


def _units(host: OnHost) -> list[Diagnosis]:
    """Units, cron jobs and prologs of others that run MPS: who they are, and what is wrong with them."""
    found, managers = [], []
    for path in _foreign(host.world.places.units, host.world.places.root):
        try:
            text = files.read_text(path) or ""
        except OSError:
            continue  # not for this user's eyes
        if hardware.CONTROL_DAEMON not in text and not ("nvidia-smi" in text and "compute" in text.lower()):
            continue
        if hardware.CONTROL_DAEMON in text:
            managers.append(str(path))
        for one in units.lint(text):
            found.append(diagnose(one.name, one.certainty, str(path), *one.evidence, remedy=one.remedy))
    for pid in procfs.pids():
        if procfs.name(pid) in ("mps-control-dae", "nvidia-device-p", "gpu-kubelet-plu"):
            managers.append(f"pid {pid}: {procfs.command(pid)}")
    if managers and (host.instances or len(managers) > 1):
        found.insert(0, diagnose("several-managers", LIKELY, *managers))
    return found


def _foreign(directory: Path, root: Path) -> Iterator[Path]:
    for path in sorted(directory.glob("*.service")) if directory.is_dir() else ():
        if not path.name.startswith(("mps-control@", "mps-health")):
            yield path
    for place in ("etc/cron.d", *_SLURM):
        where = root / place
        if where.is_file():
            yield where
        elif where.is_dir() and os.access(where, os.R_OK):
            yield from sorted(path for path in where.iterdir() if path.is_file())
