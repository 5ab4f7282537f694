"""The checks of who works on an instance's GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterator, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.checks import training
from mpsctl.checks.checking import Finding, failed, passed, some, unknown, warned
from mpsctl.model import fit, mps_variables
from mpsctl.model.finding import Reason
from mpsctl.model.gpu import EXCLUSIVE_PROCESS
from mpsctl.observe.clients import Client
from mpsctl.observe.gpu_processes import CLIENT, OF_ANOTHER, OUTSIDE, UNKNOWN, GpuProcess
from mpsctl.observe.host import InstanceLook
from mpsctl.store import fitting, measured

_SPARE_MIB = 16
"""A client this near its limit has used it up: NVML counts in whole MiB, and an allocation takes 2 MiB at least."""


def gpu_processes(look: InstanceLook) -> Finding:
    """Every compute process on the GPUs is a client of this instance (B12, B25, B44, B59)."""
    for device in look.devices:
        if device.uuid not in look.processes:
            return unknown(look.host.seen.problem or f"NVML does not list the processes of {device}")
    if not look.devices:
        return unknown(look.host.seen.problem or "the GPUs are not known")
    every = list(_processes(look))
    foreign = [one for one in every if one.kind in (OUTSIDE, OF_ANOTHER)]
    if foreign:
        lines = [str(one) for one in foreign]
        return failed(
            some(lines),
            "clients of this instance only",
            f"start them with the variables of `mpsctl env {look.instance.name}`, or `mpsctl run`",
            *lines,
            reasons=_why_foreign(look, foreign),
        )
    unclear = [str(one) for one in every if one.kind == UNKNOWN]
    if unclear:
        return unknown(some(unclear), "", "", *unclear)
    count = sum(one.kind == CLIENT for one in every)
    return passed(f"{count} clients and nobody else" if every else "nobody computes")


def _why_foreign(look: InstanceLook, foreign: Sequence[GpuProcess]) -> list[Reason]:
    """What lies deepest first: what kept them from MPS, then that they are outside."""
    why = [
        replace(reason, line=f"pid {one.pid} ({one.command}): {reason}")
        for one in foreign
        for reason in one.reasons
        if reason.cause
    ]
    exclusive = any(device.gpu.compute_mode == EXCLUSIVE_PROCESS for device in look.devices)
    more = "; it holds a GPU in exclusive mode, no server can have it meanwhile" if exclusive else ""
    return why + [Reason("client-outside-mps", f"{one}{more}") for one in foreign if one.kind == OUTSIDE]


def _processes(look: InstanceLook) -> Iterator[GpuProcess]:
    """Each process once, on however many devices it is."""
    seen = set()
    for processes in look.processes.values():
        for process in processes:
            if process.pid not in seen:
                seen.add(process.pid)
                yield process


def client_pids(look: InstanceLook) -> Finding:
    """The daemon knows its clients by this host's process ids (B34: pid 0 is one that a pid namespace hides)."""
    if look.log_problem:
        return unknown(look.log_problem)
    hidden = look.log.hidden + sum(pid == 0 for pid in look.status.clients)
    if hidden:
        return warned(
            f"{hidden} clients came with process id 0: their pid namespace hides them",
            "process ids of this host",
            "run the daemon on the host, or the container with the host's pid namespace; limits hold all the same",
        )
    return passed("told by the daemon")


def client_limits(look: InstanceLook) -> Finding:
    """No client shook off its limit or got in without one (B04)."""
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    if look.status.client_findings:
        return failed(
            some(look.status.client_findings),
            "each client within the limit",
            "take CUDA_MPS_PINNED_DEVICE_MEM_LIMIT out of its environment and start it anew",
            *look.status.client_findings,
            reasons=[reason for client in look.status.connected for reason in _why_unlimited(client)],
        )
    unclear = [
        f"{one}: {one.cannot_tell}" for server in look.status.servers for one in server.clients if one.cannot_tell
    ]
    if unclear:
        return unknown(some(unclear), "", "", *unclear)
    return passed("every client holds its limit")


def _why_unlimited(client: Client) -> Iterator[Reason]:
    if client.bypassed:
        by_variable = "drops every limit" in client.bypassed
        yield Reason("limit-shaken-off" if by_variable else "limit-over-reached", f"{client}: {client.bypassed}")
    if client.unlimited:
        yield Reason("client-without-limit", f"{client}: {client.unlimited}")


def older_limits(look: InstanceLook) -> Finding:
    """Clients that connected before a change keep what they had: no fault, and worth a note."""
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    older = [f"{one} {one.older}" for server in look.status.servers for one in server.clients if one.older]
    if older:
        return passed(f"{len(older)} clients hold an older limit until they are started anew", *older)
    return passed("none")


def client_count(look: InstanceLook) -> Finding:
    """No device is near the driver's cap on client contexts (B18)."""
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    if not look.devices:
        return unknown(look.host.seen.problem or "the GPUs are not known")
    fullest = "no client"
    for device in look.devices:
        listed = look.processes.get(device.uuid)
        # A client may use one device of several; without NVML's list each is taken to use all.
        count = len(look.status.clients) if listed is None else sum(one.kind == CLIENT for one in listed)
        cap = fit.cap_of(fitting.card(device, look.host.seen.driver))
        found = f"{count} clients on {device}, the cap is {cap}"
        expected = f"fewer than {fit.NEAR_CAP:.0%} of the cap; it counts contexts, a process may have several"
        if count >= cap:
            return failed(f"{found}: the next one is refused (error 808)", expected, "spread them over more GPUs")
        if count >= fit.NEAR_CAP * cap:
            return warned(found, expected, "spread them over more GPUs")
        fullest = found
    return passed(fullest)


def client_memory(look: InstanceLook) -> Finding:
    """No client has used up its own limit: its next allocation fails with error 2."""
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    lines = [
        f"{client} holds {held} MiB of its limit of {limit} MiB on device {ordinal}"
        for client in look.status.connected
        for ordinal, (held, limit) in enumerate(zip(client.memory_mib, client.limits_mib))
        if held is not None and limit is not None and held > limit - _SPARE_MIB
    ]
    if lines:
        return warned(
            some(lines),
            f"{_SPARE_MIB} MiB to spare",
            "raise mps_device_memory_limit, or let it take less: frameworks keep what they once had",
            *lines,
            reasons=[Reason("own-limit-reached", line) for line in lines],
        )
    return passed("every client has room below its limit")


def gpu_memory(look: InstanceLook) -> Finding:
    """One more client finds room for its context on every device."""
    if not look.devices:
        return unknown(look.host.seen.problem or "the GPUs are not known")
    fullest, least, untold = "room on every device", 1.0, []
    for device in look.devices:
        free_mib = look.host.seen.load(device.uuid).free_mib
        if free_mib is None:
            untold.append(str(device))
            continue
        card = fitting.card(device, look.host.seen.driver)
        costs = measured.costs_of(look.host.world, card.name, look.host.seen.driver, look.instance.thread_percentage)
        found, share = f"{free_mib} of {device.memory_mib} MiB of {device} are free", free_mib / device.memory_mib
        if free_mib < costs.context_mib:
            return warned(
                f"{found}: one more client needs {costs.context_mib} MiB for its context alone",
                "room for one more",
                "end or move one of those that hold it, or set a limit with which all fit (`mpsctl plan`)",
                *(
                    f"pid {one.pid} ({one.command}) holds {one.memory_mib} MiB"
                    for one in look.processes.get(device.uuid) or ()
                ),
                reasons=[Reason("card-full", found)],
            )
        if share <= least:
            fullest, least = found, share
    if untold:
        return unknown(f"NVML does not tell how much of {', '.join(untold)} is free")
    return passed(fullest)


def client_connections(look: InstanceLook) -> Finding:
    """No client's CUDA_DEVICE_MAX_CONNECTIONS lowers the cap (B18)."""
    lines = []
    for process in _clients(look):
        value = fit.max_connections_of(procfs.environment(process.pid) or {})
        if fit.lowers_cap(value):
            lines.append(f"pid {process.pid} ({process.command}) has {fit.MAX_CONNECTIONS}={value}")
    if lines:
        return warned(some(lines), "at most 2: more lowers the number of possible clients", "leave it out", *lines)
    return _unread(look) or passed("2 or not set")


def client_variables(look: InstanceLook) -> Finding:
    """No unknown CUDA_MPS_* name and no quotes inside a value, in clients and in what stays outside (B04)."""
    odd = [
        replace(reason, line=f"pid {process.pid} ({process.command}): {reason}")
        for process in _processes(look)
        for reason in mps_variables.oddities(procfs.environment(process.pid) or {})
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
    return _unread(look) or passed("as MPS knows them")


def _clients(look: InstanceLook) -> list[GpuProcess]:
    return [one for one in _processes(look) if one.kind == CLIENT]


def _unread(look: InstanceLook) -> Optional[Finding]:
    """The first process whose environment may not be read."""
    if not look.devices or len(look.processes) < len(look.devices):
        return unknown(look.host.seen.problem or "NVML does not list the processes")
    closed = [one.pid for one in _clients(look) if procfs.environment(one.pid) is None]
    return unknown(f"the environment of pid {closed[0]} cannot be read", remedy="ask as root") if closed else None


def distributed_jobs(look: InstanceLook) -> Finding:
    """No client is a rank of a distributed training run; mps_distributed_jobs says how loudly."""
    return _of_training(look, training.JOBS)


def nccl_ranks_on_one_gpu(look: InstanceLook) -> Finding:
    """No GPU has two ranks of one run, which NCCL refuses with MPS as without."""
    return _of_training(look, training.RANKS)


def _of_training(look: InstanceLook, name: str) -> Finding:
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    memory_mib = [device.memory_mib for device in look.devices]
    checks = training.look(look.instance.distributed_jobs, look.status.connected, memory_mib)
    one = next(one for one in checks if one.name == name)
    return Finding(one.level, one.found, one.expected, one.remedy, one.evidence)


def waiting_clients(look: InstanceLook) -> Finding:
    """Nobody waits behind another user's clients (B20)."""
    if look.log_problem:
        return unknown(look.log_problem)
    serving = sorted({str(server.uid) for server in look.status.servers if server.uid is not None})
    waiting = {pid: uid for pid, uid in look.log.waiting.items() if procfs.alive(pid)}
    if not waiting:
        return passed("nobody")
    lines = [f"pid {pid} of user {uid} ({procfs.command(pid)})" for pid, uid in waiting.items()]
    behind = f" behind user {', '.join(serving)}" if serving else ", and no server is there"
    return warned(
        f"{some(lines)} waits{behind}",
        "nobody waiting",
        "one user at a time is served: run all as one user, or set mps_multi_user",
        *lines,
    )


CHECKS: tuple[Callable[[InstanceLook], Finding], ...] = (
    gpu_processes,
    client_pids,
    client_limits,
    older_limits,
    client_count,
    client_memory,
    gpu_memory,
    client_connections,
    client_variables,
    waiting_clients,
    distributed_jobs,
    nccl_ranks_on_one_gpu,
)
