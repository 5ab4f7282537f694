"""The limits of a running daemon, its servers and their clients: what each really has, by getters and by their logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Daemon, Server
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.observe import clients
from mpsctl.observe.facts import GpuFacts, InstanceFacts, ServerFacts, Value
from mpsctl.store import desired_values, record, server_log
from mpsctl.store.desired_values import Desired, DesiredValue
from mpsctl.store.world import World


@dataclass(frozen=True)
class OfDaemon:
    """What the values of one daemon stand on. ``devices`` are its devices by UUID."""

    world: World
    daemon: Daemon
    devices: Sequence[str]
    desired: Desired
    known: Optional[record.InForce]
    gpus: GpuFacts
    main_pid: int


def ask(common: OfDaemon) -> list[list[str]]:
    """What the getters of the defaults print, and last the list of servers: the first session with the daemon.

    :raises NotReady: if it does not answer.
    """
    getters = [one.getter for one in desired_values.values(common.desired, common.known)]
    return common.daemon.ask([*getters, control.SERVER_LIST])


def look(common: OfDaemon, found: InstanceFacts, told: Sequence[Sequence[str]]) -> None:
    """Put the daemon's values, its servers and their clients into the facts; ``told`` is what it answered to ``ask``.

    :raises NotReady: if the daemon does not tell all of it.
    """
    desired = _of_defaults(common, found)
    *shown, listed = told
    if _unproven(desired, shown) and _settle(common, found):
        desired = _of_defaults(common, found)
    found.values = _values(desired, shown, None)
    pids = control.listed(listed)
    answers = _ask_of_servers(common, pids)
    for server in control.servers_of(pids, answers):
        values = _of_server(common, found, server, answers)
        connected = clients.look(
            control.clients_of(server.pid, answers),
            found.log.servers.get(server.pid),
            common.devices,
            common.desired.limits_mib,
            common.gpus,
            found.log_trusted is not False,
        )
        parent = procfs.parent(server.pid)
        found.servers.append(
            ServerFacts(
                server.pid,
                procfs.uid(server.pid),
                server.state,
                procfs.state(server.pid),
                parent == common.main_pid if parent else None,
                values,
                connected,
            )
        )


def _ask_of_servers(common: OfDaemon, pids: Sequence[int]) -> dict[str, list[str]]:
    """All that is asked of the servers, in one session; the answers by their commands."""
    commands = []
    for pid in pids:
        getters = [one.getter for one in desired_values.values(common.desired, common.known, str(pid))]
        commands += [control.status_of(pid), *getters, control.clients_command(pid)]
    return dict(zip(commands, common.daemon.ask(commands))) if commands else {}


def _evidence(found: InstanceFacts) -> DaemonLog:
    """The log as far as it proves something of a value: nothing where others could have written it."""
    return DaemonLog() if found.log_trusted is False else found.log


def _of_defaults(common: OfDaemon, found: InstanceFacts) -> list[DesiredValue]:
    said = server_log.defaults(_evidence(found), common.devices)
    return desired_values.values(common.desired, common.known, said=said)


def _of_server(
    common: OfDaemon, found: InstanceFacts, server: Server, told: Mapping[str, Sequence[str]]
) -> list[Value]:
    desired = _desired_of_server(common, server, _evidence(found))
    answers = [told[one.getter] for one in desired]
    if _unproven(desired, answers) and _settle(common, found):
        desired = _desired_of_server(common, server, _evidence(found))
    return _values(desired, answers, server.pid)


def _desired_of_server(common: OfDaemon, server: Server, log: DaemonLog) -> list[DesiredValue]:
    said = server_log.limits(log.servers.get(server.pid), common.devices)
    return desired_values.values(common.desired, common.known, str(server.pid), said)


def _unproven(desired: Sequence[DesiredValue], answers: Sequence[Sequence[str]]) -> bool:
    return any(not one.certain and list(lines) == one.lines for one, lines in zip(desired, answers))


def _settle(common: OfDaemon, found: InstanceFacts) -> bool:
    """Read the log anew: the line of the last change may still be on its way to the journal."""
    if found.log_unread is not None or found.log_trusted is False:
        return False
    found.log = server_log.read(common.world, found.unit.invocation, settled=True)
    return True


def _values(desired: Sequence[DesiredValue], answers: Sequence[Sequence[str]], server: Optional[int]) -> list[Value]:
    return [Value(one, " / ".join(lines) or None, server) for one, lines in zip(desired, answers)]
