"""The checks of the host: what no single instance is to blame for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

from mpsctl.adapters import hardware, managers
from mpsctl.checks.checking import Finding, failed, passed, some, unknown, warned
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY
from mpsctl.model.gpu import DEFAULT
from mpsctl.observe.host import HostLook

_DEFAULTS = (DEFAULT_PIPE_DIRECTORY, "/run/nvidia-mps")
"""The second is the default of root's daemon in MPS v3 (NVIDIA's documentation of driver r615)."""
_RUNNING = ("active", "activating", "reloading")


def gpus_answer(look: HostLook) -> Finding:
    """NVML answers in time and shows GPUs."""
    problem = look.seen.problem or (None if look.seen.gpus_seen else "NVML shows no GPU")
    if problem and not hardware.nvidia_on_bus():
        return unknown(f"no NVIDIA GPU is on the PCI bus; {problem}")
    if problem:
        return failed(problem, "NVML that answers, and at least one GPU", "look at dmesg and nvidia-smi")
    return passed(f"{len(look.seen.gpus_seen)} GPUs, driver {look.seen.driver}")


def instances_configured(look: HostLook) -> Finding:
    """This host has been converged."""
    if look.instances or look.refused:
        return passed(", ".join([*look.instances, *look.refused]))
    return unknown(f"no instance has a file in {look.world.places.configuration}", "one", "converge this host")


def other_managers(look: HostLook) -> Finding:
    """Nobody else manages MPS here: Kubernetes, Slurm, a vendor's unit (B49, B61)."""
    root = look.world.places.root
    lines: list[str] = []
    idle: list[str] = []
    lines += [f"pid {pid}: {what}" for pid, what in managers.kubernetes().items()]
    lines += [f"Slurm: {path} {what}" for path, what in managers.slurm(root).items()]
    units = managers.units(root)
    shown = look.world.systemd.show(list(units)) if units else {}
    for unit, path in units.items():
        state = shown.get(unit, {}).get("ActiveState", "unknown")
        used = state in _RUNNING or managers.wanted(unit, root)
        (lines if used else idle).append(f"unit {unit} ({path}) starts {hardware.CONTROL_DAEMON}, it is {state}")
    if lines:
        return warned(
            some(lines), "one manager of MPS", "turn the other off on this host, or leave the host to it", *lines
        )
    return passed("none is at work", *idle)


def foreign_daemons(look: HostLook) -> Finding:
    """No control daemon runs that is no instance's; one on an instance's GPU or directory fails there (B14, B15)."""
    if look.systemd_problem or look.daemons_problem:
        return unknown(look.systemd_problem or look.daemons_problem or "")
    foreign = [str(daemon) for daemon in look.foreign]
    if foreign:
        return warned(
            some(foreign), "daemons of instances only", "find who starts it; a converge does not touch it", *foreign
        )
    return passed("none")


def default_pipe_directory(look: HostLook) -> Finding:
    """No daemon serves a default directory, which captures every process without the variable (B25, B58)."""
    if look.daemons_problem:
        return unknown(look.daemons_problem)
    left_over = []
    for default in _DEFAULTS:
        served = [daemon for daemon in look.daemons if daemon.directory == Path(default) and not daemon.elsewhere]
        if served:
            return warned(
                f"{served[0]}: every CUDA process without the variable becomes its client",
                f"nobody on {default}",
                "give it a directory of its own, or stop it",
            )
        directory = look.world.places.root / default.lstrip("/")
        if os.path.lexists(directory / "control") or os.path.lexists(directory / "control_lock"):
            left_over.append(f"{default} was left behind by user {directory.stat().st_uid}, and no daemon serves it")
    return passed("not in use", *left_over)


def modes_without_daemon(look: HostLook) -> Finding:
    """No GPU of no instance is in exclusive or prohibited mode without a daemon (B47, B50)."""
    if look.seen.problem or look.daemons_problem:
        return unknown(look.seen.problem or look.daemons_problem or "")
    if look.refused:
        return unknown("which GPUs have an instance is not known: see the files that are refused")
    ours = {device.gpu.uuid for instance in look.instances.values() for device in look.devices(instance)}
    served = {uuid for daemon in look.daemons for uuid in daemon.devices or ()}
    closed = [
        f"{gpu} is in mode {gpu.compute_mode}, has no instance, and no daemon serves it"
        for gpu in look.seen.gpus_seen
        if gpu.compute_mode not in (None, DEFAULT) and gpu.uuid not in ours | served
    ]
    if closed:
        return warned(
            some(closed), "default mode, unless it is meant", "nvidia-smi -i INDEX -c DEFAULT, if MPS left it", *closed
        )
    return passed("none")


def boot_order(look: HostLook) -> Finding:
    """systemd left none of our units out of this boot to break an ordering cycle."""
    lines = look.world.systemd.journal_of_boot("ordering cycle")
    if lines is None:
        return unknown("the journal of this boot may not be read", remedy="ask as root")
    ours = list(dict.fromkeys(line for line in lines if "mps-control@" in line or "mps-health" in line))
    if ours:
        return failed(
            some(ours),
            "no ordering cycle with a unit of MPS",
            "change the unit that orders itself the other way",
            *ours,
        )
    return passed("no ordering cycle")


CHECKS: tuple[Callable[[HostLook], Finding], ...] = (
    gpus_answer,
    instances_configured,
    other_managers,
    foreign_daemons,
    default_pipe_directory,
    modes_without_daemon,
    boot_order,
)
