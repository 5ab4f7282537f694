"""The servers of a running daemon and their clients: what each really has, by the server's own log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Daemon, Server
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.adapters.nvml import ClientMemory
from mpsctl.observe import clients
from mpsctl.observe.clients import Client
from mpsctl.observe.status import ServerStatus, Status, Value, values_of
from mpsctl.store import desired_values, record, server_log
from mpsctl.store.world import World


@dataclass(frozen=True)
class OfDaemon:
    """What the servers of one daemon have in common. ``devices`` are its devices by UUID."""

    world: World
    daemon: Daemon
    devices: Sequence[str]
    desired: desired_values.Desired
    known: Optional[record.InForce]
    memory: ClientMemory


def look(common: OfDaemon, found: Sequence[Server], memory_mib: Sequence[int], status: Status) -> None:
    """Put the servers, and what is amiss with them and their clients, into the status.

    ``memory_mib`` is the memory of the daemon's devices.
    """
    log = server_log.read(common.world, status.unit["invocation"])
    for server in found:
        values, log = _values(common, server, log, status.unit["invocation"])
        connected = clients.look(
            control.clients(common.daemon, server.pid),
            log.servers.get(server.pid),
            common.devices,
            common.desired.limits_mib,
            common.memory,
        )
        status.servers.append(ServerStatus(server.pid, procfs.uid(server.pid), server.state, values, connected))
        _judge(server, connected, status)
    _add_up(status, memory_mib)


def _values(common: OfDaemon, server: Server, log: DaemonLog, invocation: str) -> tuple[list[Value], DaemonLog]:
    """The values of a server, and the log that they stand on."""
    steps = _steps(common, server, log)
    answers = common.daemon.ask([step.getter for step in steps]) if steps else []
    if any(not step.certain and list(lines) == [step.reads] for step, lines in zip(steps, answers)):
        # The line of the last change may still be on its way to the journal.
        log = server_log.read(common.world, invocation, settled=True)
        steps = _steps(common, server, log)
    return values_of(steps, answers, of_server=True), log


def _steps(common: OfDaemon, server: Server, log: DaemonLog) -> list[desired_values.Step]:
    said = server_log.limits(log.servers.get(server.pid), common.devices)
    return desired_values.steps(common.desired, common.known, str(server.pid), said)


def _judge(server: Server, connected: Sequence[Client], status: Status) -> None:
    if server.state == "FAULT":
        status.findings.append(f"server {server.pid} is in state FAULT: new clients must wait until the old ones end")
    for client in connected:
        if client.bypassed:
            found = f"{client} of server {server.pid} bypassed its limit: {client.bypassed}"
        elif client.unlimited:
            found = f"{client} of server {server.pid} got in without a limit: {client.unlimited}"
        else:
            continue
        status.findings.append(found)
        status.client_findings.append(found)


def _add_up(status: Status, memory_mib: Sequence[int]) -> None:
    """A limit is each process's own, however many a service has: together they may be promised too much."""
    for ordinal, total_mib in enumerate(memory_mib):
        every = [client for server in status.servers for client in server.clients]
        limits_mib = [client.limits_mib[ordinal] for client in every if ordinal < len(client.limits_mib)]
        promised_mib = sum(limit or 0 for limit in limits_mib)
        if promised_mib > total_mib:
            status.notes.append(
                f"device {ordinal}: the limits of {len(every)} client processes add up to {promised_mib} MiB of"
                f" {total_mib} MiB; a limit is per process, not per service or container"
            )
