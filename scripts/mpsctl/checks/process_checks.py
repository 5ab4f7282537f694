"""The judgements of who works on an instance's GPUs, whoever they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Optional, Sequence

from mpsctl.checks import words
from mpsctl.checks.gpu_checks import unknown_gpus, untold
from mpsctl.checks.judgement import Finding, View, failed, judgement, passed, some, unknown, warned, worst_of
from mpsctl.checks.unit_checks import as_root
from mpsctl.model import fit, mps_variables
from mpsctl.model.finding import Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.gpu import EXCLUSIVE_PROCESS, Device
from mpsctl.observe import process_facts
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.process_facts import CLIENT, LEFT_OVER, OF_ANOTHER, OF_LEFT_OVER, OUTSIDE, UNTOLD, GpuProcess


@judgement()
def gpu_processes(view: View) -> Finding:
    """Every compute process on the GPUs is a client of this instance (B12, B25, B44, B59)."""
    one = view.one
    if not one.devices:
        return unknown(unknown_gpus(view))
    every = list(_processes(one))
    foreign = [each for each in every if each.kind in (OUTSIDE, OF_ANOTHER, LEFT_OVER, OF_LEFT_OVER)]
    if foreign:
        lines = [words.process(each) for each in foreign]
        return failed(
            some(lines),
            "clients of this instance only",
            _remedy(one, foreign[0]),
            *lines,
            reasons=_why_foreign(one, foreign),
            facts={"pids": [each.pid for each in foreign]},
        )
    unlisted = [f"NVML does not list the processes of {each}" for each in one.devices if each.uuid not in one.processes]
    if unlisted:
        return unknown(unknown_gpus(view) if view.host.gpus.unread else some(unlisted))
    unclear = [words.process(each) for each in every if each.kind == UNTOLD]
    if unclear:
        return unknown(some(unclear), "", "", *unclear)
    count = sum(each.kind == CLIENT for each in every)
    return passed(f"{words.number(count, 'client')} and nobody else" if every else "nobody computes")


def _remedy(one: InstanceFacts, process: GpuProcess) -> str:
    if process.kind == LEFT_OVER:
        return f"end server {process.pid} when its clients are gone, then restart {pasted(one.unit.name)}"
    if process.kind == OF_LEFT_OVER:
        unit = pasted(one.unit.name)
        return f"let pid {process.pid} end, end its server (see left-over-servers), then restart {unit}"
    if process.kind == OF_ANOTHER:
        daemon = f" (pid {process.served_by})" if process.served_by else ""
        return f"leave the GPU to one control daemon: find who starts the other one{daemon}"
    if any(each.kind == process_facts.HANGS for each in process.obstacles):
        return f"pid {process.pid} cannot be woken or has ended: see dmesg and `mpsctl clients`"
    return f"start them with the variables of `mpsctl env {pasted(one.name)}`, or `mpsctl run`"


def _why_foreign(one: InstanceFacts, foreign: Sequence[GpuProcess]) -> list[Reason]:
    """What lies deepest first: what kept them from MPS, then that they are outside."""
    found = []
    for process in foreign:
        about = f"pid {process.pid} ({shown(process.command)})"
        for obstacle in process.obstacles:
            reason = words.obstacle(obstacle)
            if reason.cause:
                found.append(replace(reason, line=f"{about}: {reason}"))
        if process.kind == OF_ANOTHER:
            found.append(Reason("two-daemons-one-gpu", words.process(process)))
        if process.kind in (LEFT_OVER, OF_LEFT_OVER):
            found.append(Reason("left-over-server", words.process(process), _remedy(one, process)))
    exclusive = any(device.gpu.compute_mode == EXCLUSIVE_PROCESS for device in one.devices)
    more = "; it holds a GPU in exclusive mode, no server can have it meanwhile" if exclusive else ""
    outside = [each for each in foreign if each.kind == OUTSIDE]
    return found + [Reason("client-outside-mps", f"{words.process(each)}{more}") for each in outside]


def _processes(one: InstanceFacts) -> Iterator[GpuProcess]:
    """Each process once, on however many devices it is."""
    seen = set()
    for processes in one.processes.values():
        for process in processes:
            if process.pid not in seen:
                seen.add(process.pid)
                yield process


@judgement()
def client_count(view: View) -> Finding:
    """No device is near the driver's cap on client contexts (B18)."""
    one = view.one
    why = untold(view)
    if why:
        return unknown(why)
    if not one.devices:
        return unknown(unknown_gpus(view))
    told = [device for device in one.devices if device.uuid in one.cards]
    found = worst_of(_count_on(one, device, fit.cap_of(one.cards[device.uuid])) for device in told)
    return passed("no client") if found is None else found


def _count_on(one: InstanceFacts, device: Device, cap: int) -> Finding:
    listed = one.processes.get(device.uuid)
    # A client may use one device of several; without NVML's list each is taken to use all.
    count = len(one.clients) if listed is None else sum(each.kind == CLIENT for each in listed)
    found = f"{words.number(count, 'client')} on {device}, the cap is {cap}"
    expected = f"fewer than {fit.NEAR_CAP:.0%} of the cap; it counts contexts, a process may have several"
    reasons = [Reason("too-many-clients", found)]
    if count >= cap:
        line = f"{found}: the next one is refused (error 808)"
        return failed(line, expected, "spread them over more GPUs", reasons=reasons)
    if count >= fit.NEAR_CAP * cap:
        return warned(found, expected, "spread them over more GPUs", reasons=reasons)
    return passed(found)


@judgement()
def gpu_memory(view: View) -> Finding:
    """One more client finds room: for its limit where others than clients hold memory, else for its context."""
    one, gpus = view.one, view.host.gpus
    if not one.devices:
        return unknown(unknown_gpus(view))
    fullest, least, not_told, not_judged, amiss = "room on every device", 1.0, [], [], []
    for device in one.devices:
        free_mib, total_mib = gpus.load(device.uuid).free_mib, device.memory_mib
        if total_mib is None or device.uuid not in one.costs:
            not_judged.append(f"{device}: NVML does not tell its memory, so room on it is not judged")
            continue
        if free_mib is None:
            not_told.append(str(device))
            continue
        found, share = f"{free_mib} of {total_mib} MiB of {device} are free", free_mib / total_mib
        short = _short_of(view, device, free_mib)
        if short is not None:
            needed_mib, what, holders, cause = short
            amiss.append(
                warned(
                    f"{found}: one more client needs {needed_mib} MiB for its {what}",
                    "room for one more",
                    "end or move one of those that hold it, or set a limit with which all fit (`mpsctl plan`)",
                    *holders,
                    reasons=[Reason(cause, line) for line in (*holders, found)],
                    facts={"free_mib": free_mib, "needed_mib": needed_mib},
                )
            )
        if share <= least:
            fullest, least = found, share
    short_of_room = worst_of(amiss)
    if short_of_room is not None:
        return short_of_room
    if not_told:
        return unknown(f"NVML does not tell how much of {', '.join(not_told)} is free")
    return passed(some(not_judged) if len(not_judged) == len(one.devices) else fullest, *not_judged)


def _short_of(view: View, device: Device, free_mib: int) -> Optional[tuple[int, str, list[str], str]]:
    """What one more client needs and does not find: how much, for what, who holds it, and the cause; or None."""
    one = view.one
    costs, limit = one.costs[device.uuid], one.desired.limit if one.desired else None
    processes = one.processes.get(device.uuid) or []
    others = [each for each in processes if each.kind not in (CLIENT, process_facts.SERVER) and each.memory_mib]
    if others and limit is not None and device.memory_mib is not None:
        limit_mib = limit.on(device.memory_mib)
        if free_mib < limit_mib:
            return limit_mib, "limit", holders(others), "memory-held-by-others"
    if free_mib < costs.context_mib:
        cause = "memory-held-by-others" if others else "card-full"
        return costs.context_mib, "context alone", holders(others or processes), cause
    return None


def holders(processes: Sequence[GpuProcess]) -> list[str]:
    """Who holds how much, the greatest first."""
    greatest = sorted(processes, key=lambda each: -(each.memory_mib or 0))
    return [
        f"pid {each.pid} ({shown(each.command)}, {words.who(each.user, each.uid)}) holds {words.mib(each.memory_mib)}"
        for each in greatest
    ]


@judgement()
def client_connections(view: View) -> Finding:
    """No client's CUDA_DEVICE_MAX_CONNECTIONS lowers the cap (B18)."""
    lines = [
        f"pid {each.pid} ({shown(each.command)}) has {fit.MAX_CONNECTIONS}={shown(each.max_connections or '')}"
        for each in _clients(view.one)
        if fit.lowers_cap(each.max_connections)
    ]
    if lines:
        return warned(
            some(lines),
            "at most 2: more lowers the number of possible clients",
            "leave it out",
            *lines,
            reasons=[Reason("max-connections-raised", line) for line in lines],
        )
    return _unread(view) or passed("2 or not set")


@judgement()
def client_variables(view: View) -> Finding:
    """No unknown CUDA_MPS_* name and no quotes inside a value, in clients and in what stays outside (B04)."""
    odd = [
        replace(reason, line=f"pid {process.pid} ({shown(process.command)}): {reason}")
        for process in _processes(view.one)
        for reason in mps_variables.oddities(process.variables)
    ]
    if odd:
        lines = [reason.line for reason in odd]
        return warned(
            some(lines),
            "names that MPS knows, values without quotes",
            "correct it where the process is started",
            *lines,
            reasons=odd,
        )
    return _unread(view) or passed("as MPS knows them")


def _clients(one: InstanceFacts) -> list[GpuProcess]:
    return [each for each in _processes(one) if each.kind == CLIENT]


def _unread(view: View) -> Optional[Finding]:
    """The first process whose environment may not be read."""
    one = view.one
    if not one.devices or len(one.processes) < len(one.devices):
        return unknown(unknown_gpus(view) if view.host.gpus.unread else "NVML does not list the processes")
    closed = [each.pid for each in _clients(one) if not each.readable]
    return unknown(f"the environment of pid {closed[0]} cannot be read", remedy=as_root(view)) if closed else None


JUDGEMENTS = (gpu_processes, client_count, gpu_memory, client_connections, client_variables)
