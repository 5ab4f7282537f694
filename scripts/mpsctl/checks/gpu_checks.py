"""The judgements of an instance's GPUs and of its limits."""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.checks import words
from mpsctl.checks.judgement import (
    VERIFY_ONLY,
    Finding,
    View,
    failed,
    judgement,
    passed,
    some,
    unknown,
    warned,
    worst_of,
)
from mpsctl.checks.unit_checks import as_root, no_daemon, reload
from mpsctl.model.finding import RELOAD, RESTART, START, UNKNOWN, Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED, Device
from mpsctl.observe.facts import InstanceFacts, Value
from mpsctl.store.desired_values import CLIENT_PRIORITY, MEMORY_LIMIT, THREAD_PERCENTAGE


def unknown_gpus(view: View) -> str:
    """Why an instance's GPUs are not known."""
    return words.unread(view.host.gpus.unread) if view.host.gpus.unread else "the GPUs are not known"


def untold(view: View) -> Optional[str]:
    """Why what only the daemon tells is not known; None where it told all."""
    one = view.one
    if one.answer.complete:
        return None
    if view.host.systemd_unread or not one.pid:
        return no_daemon(view)
    return "the daemon did not tell (see daemon-answers)"


@judgement()
def gpus_present(view: View) -> Finding:
    """The desired GPUs are on this host."""
    one, host = view.one, view.host
    if host.gpus.unread or one.desired is None:
        return unknown(unknown_gpus(view))
    if one.devices:
        return passed(", ".join(str(device) for device in one.devices))
    error = one.devices_refused
    if error is None:
        return unknown("no GPU is desired")
    missing = _missing(view, one)
    if missing is None:
        cause = "mig-switched-on" if _is_split(view, one) else "not-as-desired"
        return failed(error.found, error.expected, error.remedy, reasons=[Reason(cause, error.found, error.remedy)])
    cause, remedy = missing
    line = f"{error.found} is not on this host"
    return failed(line, error.expected, remedy, reasons=[Reason(cause, line, remedy)])


def _missing(view: View, one: InstanceFacts) -> Optional[tuple[str, str]]:
    """Why a desired device is not there, and what to do; None where it is there and refused for another reason."""
    gpus = view.host.gpus.gpus
    here = {name for gpu in gpus for name in (str(gpu.index), gpu.uuid, gpu.pci_address)}
    here |= {mig.uuid for gpu in gpus for mig in gpu.mig_devices}
    lost = [reference for reference in (one.desired.gpus if one.desired else ()) if reference not in here]
    if not lost:
        return None
    if any(reference.startswith("MIG-") for reference in lost):
        if not any(gpu.mig_enabled for gpu in gpus):
            return "mig-switched-off", "MIG was switched off: switch it on again, or name other GPUs in mps_instances"
        return "mig-device-gone", "the MIG devices were made anew: name those of `mpsctl gpus` in mps_instances"
    return (
        "gpu-missing",
        "look at dmesg for the GPU (Xid 79: it fell off the bus) and reset it or reboot the host; if it is gone for"
        " good, correct mps_instances",
    )


def _is_split(view: View, one: InstanceFacts) -> bool:
    """Whether a GPU that is desired whole is split by MIG."""
    named = one.desired.gpus if one.desired else ()
    return any(
        gpu.mig_enabled and not {str(gpu.index), gpu.uuid, gpu.pci_address}.isdisjoint(named)
        for gpu in view.host.gpus.gpus
    )


@judgement()
def gpus_served(view: View) -> Finding:
    """The daemon serves the desired GPUs and no others, and they are there (B14)."""
    one, host = view.one, view.host
    if not one.pid:
        return unknown(no_daemon(view))
    if not one.serves:
        return unknown("which GPUs the daemon serves cannot be read", remedy=as_root(view))
    if host.gpus.unread:
        return unknown(unknown_gpus(view))
    here = {uuid for gpu in host.gpus.gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))}
    gone = [uuid for uuid in one.serves if uuid not in here]
    wanted = tuple(device.uuid for device in one.devices)
    if gone and wanted:
        line = (
            f"{', '.join(map(shown, gone))}, which the daemon serves, is gone, and {', '.join(wanted)} is in its place"
        )
        remedy = f"systemctl restart {pasted(one.unit.name)}: its clients have lost their GPU"
        return failed(line, "the GPUs that are desired", remedy, reasons=[Reason("gpu-swapped", line)], mends=RESTART)
    if gone:
        line = f"{', '.join(map(shown, gone))}, which the daemon serves, is gone from this host"
        return failed(line, "GPUs that are there", "see gpus-present", reasons=[Reason("gpu-missing", line)])
    if wanted and one.serves != wanted:
        line = f"the daemon serves {', '.join(map(shown, one.serves))}, desired {', '.join(wanted)}"
        remedy = f"restart {pasted(one.unit.name)} when no client is at work"
        reasons = [Reason("set-before-restart", line)]
        return failed(line, "the desired GPUs", remedy, reasons=reasons, mends=RESTART)
    if not wanted:
        return unknown("which GPUs are desired is not known (see gpus-present)")
    return passed(f"the daemon serves {', '.join(one.serves)}")


@judgement()
def compute_mode(view: View) -> Finding:
    """The mode is the desired one, and no GPU is closed without a daemon (B47, B50)."""
    one = view.one
    if not one.devices or one.desired is None:
        return unknown(unknown_gpus(view))
    if view.host.systemd_unread:
        return unknown(words.unread(view.host.systemd_unread))
    desired = one.desired.compute_mode if one.active else one.desired.compute_mode_when_down
    amiss = worst_of(each for device in one.devices for each in [_mode_amiss(view, device, desired)] if each)
    if amiss is not None:
        return amiss
    return passed(", ".join(f"{device}: {device.gpu.compute_mode or 'mode not told'}" for device in one.devices))


def _mode_amiss(view: View, device: Device, desired: Optional[str]) -> Optional[Finding]:
    """What is wrong with the mode of one device, or None."""
    one, mode = view.one, device.gpu.compute_mode
    assert one.desired is not None
    left = _left_from_before(view, device) if one.active and one.desired.compute_mode is None else None
    if left is not None:
        line = f"{device}: compute mode is {mode}, set by a run while it was managed; desired {left}, as before that"
        return failed(line, left, reload(one), reasons=[Reason("not-as-desired", line)], mends=RELOAD)
    if mode is None and desired is None:
        return None
    if mode is None:
        line = f"{device}: compute mode is not told by NVML, desired {desired}"
        return unknown(line, str(desired), "set mps_compute_mode to null for this GPU")
    if not one.pid and _served_by_another(view, device):
        return None  # whose mode it is: see other-daemons
    if not one.pid and mode not in (DEFAULT, desired):
        line = f"{device} is in mode {mode} and no daemon serves it: nobody can use it, or one process alone"
        remedy = f"start {pasted(one.unit.name)}, or nvidia-smi -i {device.gpu.index} -c DEFAULT"
        reasons = [Reason("exclusive-without-daemon", line)]
        return failed(line, desired or DEFAULT, remedy, reasons=reasons, mends=START)
    if desired is not None and mode != desired:
        line = f"{device}: compute mode is {mode}, desired {desired}"
        return failed(line, desired, reload(one), reasons=[Reason("not-as-desired", line)], mends=RELOAD)
    return None


def _served_by_another(view: View, device: Device) -> bool:
    """Whether a control daemon of root's that is not this instance's serves a device."""
    others = [daemon for daemon in view.host.processes.daemons if daemon.roots and daemon.pid != view.one.pid]
    return any(device.uuid in (view.host.devices(daemon) or ()) for daemon in others)


def _left_from_before(view: View, device: Device) -> Optional[str]:
    """The saved compute mode of a GPU that is still in one that we set, or None."""
    saved, mode = view.host.saved_modes.get(device.gpu.uuid), device.gpu.compute_mode
    if device.gpu.uuid not in view.host.modes_set or saved in (mode, PROHIBITED):
        return None
    return saved if mode in (EXCLUSIVE_PROCESS, PROHIBITED) else None


@judgement(verbs=VERIFY_ONLY)
def default_mode(view: View) -> Finding:
    """A GPU whose mode is not managed is in no mode in which processes that find no daemon run outside MPS."""
    one = view.one
    if not one.devices or one.desired is None:
        return unknown(unknown_gpus(view))
    if not one.active or one.desired.compute_mode is not None:
        return passed("the mode is managed" if one.active else "no daemon runs")
    open_ = [str(each) for each in one.devices if each.gpu.compute_mode == DEFAULT and each.mig is None]
    if open_:
        lines = [f"{each} is in default mode: what finds no daemon runs outside MPS without a word" for each in open_]
        return warned(some(lines), "exclusive_process (recommended, not required)", "set mps_compute_mode", *lines[1:])
    return passed("no device is")


@judgement(verbs=VERIFY_ONLY)
def persistence(view: View) -> Finding:
    """The driver stays initialised between clients (B46)."""
    one = view.one
    if not one.devices:
        return unknown(unknown_gpus(view))
    amiss = worst_of(_persistence_amiss(device) for device in one.devices if not device.gpu.persistence)
    return passed("on") if amiss is None else amiss


def _persistence_amiss(device: Device) -> Finding:
    if device.gpu.persistence is None:
        return unknown(f"{device}: NVML does not tell its persistence mode")
    return warned(
        f"{device} has persistence off: servers start slowly, and clients may meet error 807",
        "on",
        "enable nvidia-persistenced; just after boot, look again",
    )


@judgement()
def memory_limit(view: View) -> Finding:
    """The limit of the defaults and of each server, exact where a log has it (B06)."""
    return _in_force(view, MEMORY_LIMIT)


@judgement()
def thread_percentage(view: View) -> Finding:
    """The percentage of the defaults and of each server (B12)."""
    return _in_force(view, THREAD_PERCENTAGE)


@judgement()
def client_priority(view: View) -> Finding:
    """The default priority; there is none of a server."""
    return _in_force(view, CLIENT_PRIORITY)


def _in_force(view: View, kind: str) -> Finding:
    one = view.one
    why = untold(view)
    if why and not one.values:
        return unknown(why)
    if kind == MEMORY_LIMIT and one.limits_refused is not None:
        return unknown(f"which limit is desired is not known: {one.limits_refused}")
    rows = [value for value in one.every_value if value.desired.kind == kind]
    if not rows:
        return passed(f"no {kind} is managed here")
    wrong = [value for value in rows if not value.in_force and not value.only_unproven]
    if wrong:
        return _not_in_force(view, wrong)
    unsure = [value for value in rows if not value.in_force]
    if unsure:
        line = f"{_where(unsure[0])}: the daemon shows {unsure[0].shown}, rounded, and no log line or record proves it"
        return Finding(UNKNOWN, line, unsure[0].desired.desired, reload(one), mends=RELOAD)
    if why:
        return unknown(why)
    return passed("; ".join(f"{_where(value)}: {_shown(value)}" for value in rows))


def _not_in_force(view: View, wrong: Sequence[Value]) -> Finding:
    lines = [f"{_where(value)}: {_shown(value)}, desired {value.desired.desired}" for value in wrong]
    reasons = [Reason("not-as-desired", line) for line in lines]
    # A unit that reloads at this moment may still have read what its file said before.
    return failed(some(lines), wrong[0].desired.desired, reload(view.one), *lines, reasons=reasons, mends=RELOAD)


def _where(value: Value) -> str:
    return f"{value.desired.what} ({'default' if value.server is None else f'server {value.server}'})"


def _shown(value: Value) -> str:
    said = value.desired.said_bytes
    if said is None:
        return f"the daemon shows {shown(value.shown) if value.shown else 'nothing'}"
    log = "its log" if value.server is None else "the server's log"
    return f"the daemon shows {shown(value.shown or 'nothing')}, {log} says {said >> 20} MiB (0x{said:x} bytes)"


JUDGEMENTS = (
    gpus_present,
    gpus_served,
    compute_mode,
    default_mode,
    persistence,
    memory_limit,
    thread_percentage,
    client_priority,
)
