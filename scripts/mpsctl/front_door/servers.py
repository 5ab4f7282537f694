"""The servers of a daemon, as it tells them in one or two sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from mpsctl.adapters import control_daemon, procfs
from mpsctl.adapters.control_daemon import SERVER_LIST, Daemon
from mpsctl.store import server_log
from mpsctl.store.world import World

SESSION_S = 5.0
"""What one session may take."""

READY, STARTING, FAULT = "ready", "starting", "fault"

_ACTIVE, _IN_FAULT = "ACTIVE", "FAULT"
"""What get_server_status says (control daemons 550, 555; driver 580, H200); 535 does not know the command."""


@dataclass(frozen=True)
class Seen:
    """A server: whose it is (None where it has ended meanwhile), one of the words above, and its clients by pid.
    ``started_at`` (clock ticks since boot) tells it from a later process with the same pid."""

    pid: int
    started_at: Optional[int]
    uid: Optional[int]
    state: str
    clients: tuple[int, ...]

    @property
    def lives(self) -> bool:
        return procfs.lives(self.pid, self.started_at)


def look(world: World, unit: str, daemon: Daemon, before: Sequence[Seen]) -> tuple[Seen, ...]:
    """The daemon's servers now. ``before`` are those of the last look: they are asked about in the first session.

    :raises NotReady: as ``Daemon.ask``.
    """
    asked = [one.pid for one in before]
    listed, *answers = daemon.ask([SERVER_LIST, *_questions(asked)], SESSION_S)
    told = _by_pid(asked, answers)
    pids = [int(word) for line in listed for word in line.split() if word.isdigit()]
    new = [pid for pid in pids if pid not in told]
    if new:
        told.update(_by_pid(new, daemon.ask(_questions(new), SESSION_S)))
    ready_before = {(one.pid, one.started_at) for one in before if one.state == READY}
    found = []
    for pid in pids:
        status, clients = told[pid]
        if control_daemon.no_such_server(status) or control_daemon.no_such_server(clients):
            continue
        started_at = procfs.started_at(pid)
        mine = tuple(int(word) for line in clients for word in line.split() if word.isdigit())
        state = _state(status) or (READY if (pid, started_at) in ready_before else _state_by_log(world, unit, pid))
        found.append(Seen(pid, started_at, procfs.uid(pid), state, mine))
    return tuple(found)


def _questions(pids: Sequence[int]) -> list[str]:
    return [f"{command} {pid}" for pid in pids for command in ("get_server_status", "get_client_list")]


def _by_pid(pids: Sequence[int], answers: Sequence[list[str]]) -> dict[int, tuple[list[str], list[str]]]:
    return {pid: (answers[2 * place], answers[2 * place + 1]) for place, pid in enumerate(pids)}


def _state(answer: Sequence[str]) -> Optional[str]:
    """None where the daemon does not know the command."""
    text = " ".join(answer)
    if text.startswith("Unknown command"):
        return None
    return {_ACTIVE: READY, _IN_FAULT: FAULT}.get(text, STARTING)


def _state_by_log(world: World, unit: str, pid: int) -> str:
    """What the daemon's log says of a server. Where the journal has nothing of this start, one that lives is taken for
    ready."""
    log = server_log.of_unit(world, unit)
    if not log.lines:
        return READY if procfs.alive(pid) else STARTING
    server = log.servers.get(pid)
    serves = server is not None and (server.ready or server.served) and server.exit_status is None
    return READY if serves else STARTING
