"""The judgements of the host: what no single instance is to blame for."""

from __future__ import annotations

from mpsctl.adapters import hardware
from mpsctl.checks import words
from mpsctl.checks.judgement import VERIFY_ONLY, Finding, View, failed, judgement, passed, some, unknown, warned
from mpsctl.model.finding import CONVERGE, ENABLE, PERSON, Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from mpsctl.observe.host import DEFAULT_DIRECTORIES

_RUNNING = ("active", "activating", "reloading")


@judgement(of_host=True)
def gpus_answer(view: View) -> Finding:
    """NVML answers in time and shows GPUs."""
    host = view.host
    gpus = host.gpus
    if not gpus.unread and gpus.gpus:
        return passed(f"{words.number(len(gpus.gpus), 'GPU')}, driver {gpus.driver}")
    found = words.unread(gpus.unread) if gpus.unread else "NVML shows no GPU"
    if not host.nvidia_on_bus:
        return unknown(f"no NVIDIA GPU is on the PCI bus; {found}")
    expected = "NVML that answers, and at least one GPU"
    if gpus.upgraded_underneath:
        reasons = [Reason("driver-upgraded-underneath", found)]
        return failed(found, expected, "reboot the host, or load the new driver's modules", reasons=reasons)
    return failed(found, expected, "look at dmesg and nvidia-smi", reasons=[Reason("no-driver", found)])


@judgement(of_host=True)
def instances_configured(view: View) -> Finding:
    """This host has been converged."""
    known = [*view.host.every, *view.host.refused]
    if known:
        return passed(", ".join(map(shown, known)))
    return unknown(
        f"no instance has a file in {view.host.places.configuration}", "one", "converge this host with site.yml"
    )


@judgement(of_host=True)
def instances_have_files(view: View) -> Finding:
    """No unit of an instance starts at boot whose file is gone: its start would be refused."""
    lost = view.host.without_file
    if not lost:
        return passed("each that starts at boot has one")
    lines = [f"mps-control@{shown(name)}.service starts at boot, and it has no file" for name in lost]
    unit = pasted(f"mps-control@{lost[0]}.service")
    return failed(
        some(lines),
        f"a file in {view.host.places.configuration} for each",
        f"site.yml writes it; an instance that is not wanted: systemctl disable --now {unit}",
        *lines,
        facts={"instances": lost},
    )


@judgement(of_host=True)
def owned_by_root(view: View) -> Finding:
    """Nobody but root can change what root reads, writes, runs or deletes for MPS, or a folder on the way there."""
    lines = [shown(str(one)) for one in view.host.weak_points]
    if not lines:
        return passed("all that was found is root's all the way")
    return failed(
        some(lines),
        "root's all the way, and writable by nobody else",
        view.host.weak_points[0].remedy,
        *lines,
        mends=PERSON,
        facts={"paths": [str(one.place) for one in view.host.weak_points]},
    )


@judgement(of_host=True)
def health_timer(view: View) -> Finding:
    """The timer of the look each minute is enabled and runs, where this project's units are installed."""
    timer = view.host.timer
    if not view.host.ours_installed or timer is None:
        return passed("this project's units are not installed")
    if view.host.systemd_unread:
        return unknown(words.unread(view.host.systemd_unread))
    for unit in (timer, view.host.health):
        if unit is not None and unit.load_state == "masked":
            return warned(
                f"{unit.name} is masked: nobody looks after the daemons each minute",
                "enabled and active",
                f"systemctl unmask {unit.name}, then site.yml",
            )
    if timer.enabled and timer.active:
        return passed(f"{timer.name} is enabled and {timer.active_state}")
    state = f"{'enabled' if timer.enabled else 'not enabled'} and {timer.active_state}"
    return warned(
        f"{timer.name} is {state}: nobody looks after the daemons each minute",
        "enabled and active",
        f"systemctl enable --now {timer.name}",
        mends=ENABLE,
    )


@judgement(of_host=True)
def metrics_written(view: View) -> Finding:
    """Where metrics are to be written for a node exporter, the last look could write them."""
    metrics = view.host.metrics
    if metrics is None:
        return passed("no metrics are written")
    if not metrics.problem:
        return passed(f"in {shown(metrics.folder)}")
    return warned(
        f"the last look could not write metrics in {shown(metrics.folder)}: {shown(metrics.problem)}",
        "a folder that root can write, with no link on the way",
        "playbooks/monitoring.yml makes it; or set another mps_metrics_directory",
    )


@judgement(of_host=True, verbs=VERIFY_ONLY)
def other_managers(view: View) -> Finding:
    """Nobody else manages MPS here: Kubernetes, Slurm, a vendor's unit (B49, B61)."""
    managers = view.host.managers
    if managers is None:
        return unknown("who else manages MPS was not looked at")
    lines = [f"pid {pid}: {shown(what)}" for pid, what in managers.kubernetes.items()]
    lines += [f"Slurm: {shown(path)} {shown(what)}" for path, what in managers.slurm.items()]
    idle = [f"{shown(path)}: {shown(what)}" for path, what in managers.kubernetes_places.items()]
    for unit, (path, state, wanted) in managers.units.items():
        used = state in _RUNNING or wanted
        line = f"unit {shown(unit)} ({shown(str(path))}) starts {hardware.CONTROL_DAEMON}, it is {state}"
        (lines if used else idle).append(line)
    if lines:
        return warned(
            some(lines), "one manager of MPS", "turn the other off on this host, or leave the host to it", *lines
        )
    return passed("none is at work", *idle)


@judgement(of_host=True)
def foreign_daemons(view: View) -> Finding:
    """No control daemon runs that is no instance's; one on an instance's GPU or directory fails there (B14, B15)."""
    host = view.host
    if host.processes.unread:
        return unknown(words.unread(host.processes.unread))
    lines = [words.daemon(daemon, host.devices(daemon)) for daemon in host.foreign]
    if lines:
        pids = [daemon.pid for daemon in host.foreign]
        return warned(
            some(lines),
            "daemons of instances only",
            "find who starts it; a converge does not touch it",
            *lines,
            facts={"pids": pids},
        )
    if host.systemd_unread:
        return unknown(words.unread(host.systemd_unread))
    return passed("none")


@judgement(of_host=True)
def left_over_servers(view: View) -> Finding:
    """No MPS server outlives its control daemon: nobody can reach it, and it keeps its GPU. What merely has its name is
    none: everyone may give a process a name."""
    if view.host.processes.unread:
        return unknown(words.unread(view.host.processes.unread))
    named = [
        f"process {one.pid} ({words.who(one.user, one.uid)}) has a server's name, and no daemon of root's started it"
        for one in view.host.processes.named_like_servers
    ]
    left = [
        server for server in view.host.processes.servers if server.daemon is None and server.state not in ("Z", "X")
    ]
    if not left:
        return passed("none", *named)
    lines = [f"MPS server {one.pid} ({words.who(one.user, one.uid)}) has no control daemon any more" for one in left]
    remedy = f"end it when its clients are gone (kill {left[0].pid}), then restart the instance of its GPU"
    return failed(
        some(lines),
        "servers of a daemon that lives",
        remedy,
        *lines,
        reasons=[Reason("left-over-server", line, remedy) for line in lines],
        facts={"pids": [one.pid for one in left]},
    )


@judgement(of_host=True)
def default_pipe_directory(view: View) -> Finding:
    """No daemon serves a default directory, which captures every process without the variable (B25, B58)."""
    host = view.host
    if host.processes.unread:
        return unknown(words.unread(host.processes.unread))
    for default in DEFAULT_DIRECTORIES:
        for daemon in host.processes.daemons:
            if str(daemon.directory) == default and not daemon.elsewhere:
                line = words.daemon(daemon, host.devices(daemon))
                return warned(
                    f"{line}: every CUDA process without the variable becomes its client",
                    f"nobody on {default}",
                    "give it a directory of its own, or stop it",
                    reasons=[Reason("default-pipe-directory", line)],
                    facts={"pids": [daemon.pid]},
                )
    left = [
        f"{one.path} was left behind by user {one.uid}, and no daemon serves it" for one in host.default_directories
    ]
    return passed("not in use", *left)


@judgement(of_host=True)
def modes_without_daemon(view: View) -> Finding:
    """No GPU of no instance is in exclusive or prohibited mode without a daemon (B47, B50)."""
    host = view.host
    gap = host.gpus.unread or host.processes.unread
    if gap:
        return unknown(words.unread(gap))
    if host.refused:
        return unknown("which GPUs have an instance is not known: see the files that are refused")
    named = {reference for instance in host.every.values() for reference in instance.gpus}
    ours = {device.gpu.uuid for one in host.instances.values() for device in one.devices}
    served = {uuid for daemon in host.processes.daemons for uuid in host.devices(daemon) or ()}
    closed = [
        gpu
        for gpu in host.gpus.gpus
        if gpu.compute_mode not in (None, DEFAULT)
        and gpu.uuid not in ours | served
        and named.isdisjoint((str(gpu.index), gpu.uuid, gpu.pci_address, *(mig.uuid for mig in gpu.mig_devices)))
    ]
    left = [gpu for gpu in closed if _is_ours(view, gpu.uuid, gpu.compute_mode)]
    lines = [
        f"{gpu}: compute mode is {gpu.compute_mode}, no instance has it, and no daemon serves it: nobody can use it, or"
        " one process alone" + (f" (it was {host.saved_modes[gpu.uuid]} before the first start)" if gpu in left else "")
        for gpu in closed
    ]
    if not closed:
        return passed("none")
    reasons = [Reason("exclusive-without-daemon", line) for line in lines]
    facts = {"gpus": [gpu.uuid for gpu in closed]}
    if left:
        remedy = "a run was interrupted: run site.yml or playbooks/remove.yml again"
        expected = "the mode from before the first start"
        return failed(some(lines), expected, remedy, *lines, reasons=reasons, mends=CONVERGE, facts=facts)
    remedy = f"nvidia-smi -i {pasted(str(closed[0].index))} -c DEFAULT, if MPS left it"
    return warned(some(lines), "default mode, unless it is meant", remedy, *lines, reasons=reasons, facts=facts)


def _is_ours(view: View, uuid: str, mode: object) -> bool:
    """Whether a mode is one that this program set and did not bring back."""
    saved = view.host.saved_modes.get(uuid)
    return saved is not None and saved != mode and mode in (EXCLUSIVE_PROCESS, PROHIBITED)


@judgement(of_host=True, verbs=VERIFY_ONLY)
def boot_order(view: View) -> Finding:
    """systemd left none of our units out of this boot to break an ordering cycle."""
    lines = view.host.boot
    if lines is None:
        remedy = "" if view.host.is_root else "ask as root"
        return unknown("the journal of this boot may not be read", remedy=remedy)
    ours = list(dict.fromkeys(shown(line) for line in lines if "mps-control@" in line or "mps-health" in line))
    if ours:
        return warned(
            some(ours),
            "no ordering cycle with a unit of MPS",
            "change the unit that orders itself the other way",
            *ours,
        )
    return passed("no ordering cycle")


@judgement(of_host=True, verbs=VERIFY_ONLY)
def interrupted_runs(view: View) -> Finding:
    """Nothing is left of runs that were interrupted, or of an earlier pipe root."""
    left = view.host.remains
    if left is None:
        return unknown("it was not looked at")
    if not left.every:
        return passed("nothing is left")
    lines = [f"{shown(str(path))} was left" for path in left.every]
    return warned(some(lines), "nothing of an earlier run", "site.yml removes it", *lines, mends=CONVERGE)


JUDGEMENTS = (
    gpus_answer,
    instances_configured,
    instances_have_files,
    owned_by_root,
    health_timer,
    metrics_written,
    other_managers,
    foreign_daemons,
    left_over_servers,
    default_pipe_directory,
    modes_without_daemon,
    boot_order,
    interrupted_runs,
)
