"""The end of clients: this program ends one in no other way.

A signal to a client with work on the GPU leaves its server and its neighbours undefined (NVIDIA's documentation). So
the daemon takes it off the GPU first: ``terminate_client`` prints 0 when the client's contexts are gone, the client
sees error 810 from then on and its neighbours nothing (driver 580, H200: 10 ms). Only then may its process get a
signal, and only the process that was looked at: pid and time of start name it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Daemon, NotServed
from mpsctl.model import daemon_environment, foreign
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.model.instance import Instance
from mpsctl.observe.facts import ClientFacts
from mpsctl.store.world import World

DAEMON_BOUND_S = 10
"""How long the daemon may take for one client; once it did not answer, it is asked no more."""
_BY_ITSELF_S, _TERM_S, _KILL_S = 2, 5, 3
BOUND_S = DAEMON_BOUND_S + _BY_ITSELF_S + _TERM_S + _KILL_S
_POLL_S = 0.1


@dataclass
class Ended:
    """What became of one client: ``taken_off`` the GPU by the daemon, or ``left`` by itself before; whether its process
    is ``gone``; what was done, in order, and what did not work."""

    pid: int
    server: int
    client: ClientFacts
    taken_off: bool = False
    left: bool = False
    gone: bool = False
    steps: list[str] = field(default_factory=list)
    problem: Optional[str] = None

    def as_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "server": self.server,
            "user": self.client.user,
            "command": self.client.command,
            "taken_off": self.taken_off,
            "left": self.left,
            "gone": self.gone,
            "steps": self.steps,
            "problem": self.problem,
        }


def end(
    world: World,
    daemon: Daemon,
    clients: Sequence[tuple[int, ClientFacts]],
    signals: bool = True,
    daemon_bound_s: float = DAEMON_BOUND_S,
) -> list[Ended]:
    """End clients, each given with its server's pid, within ``BOUND_S`` of a daemon that answers.

    Without ``signals`` the daemon takes them off the GPU and their processes are left alone. No process gets a signal
    that the daemon did not take off. Nothing is raised: what did not work is each one's ``problem``.
    """
    found = [Ended(client.pid, server, client) for server, client in clients]
    answers = True
    for one in found:
        answers = _take_off(daemon, one, answers, daemon_bound_s)
    if signals:
        due = [one for one in found if one.taken_off]
        _await(world, due, _BY_ITSELF_S)
        _signal(world, due, signal.SIGTERM, _TERM_S)
        _signal(world, due, signal.SIGKILL, _KILL_S)
        for one in due:
            if not one.gone and one.problem is None:
                state = procfs.state(one.pid)
                why = "; it waits in the kernel, see dmesg" if state == "D" else ""
                one.problem = f"its process does not end (state {state}){why}"
    for one in found:
        one.gone = not _lives(one)
    return found


def running_daemon(world: World, instance: Instance, main_pid: int) -> Daemon:
    """The daemon of an instance that runs, whether or not its front door is open."""
    running = daemon_environment.of_process(procfs.environment(main_pid))
    return world.daemon_of(
        instance.name, running.pipe_directory if running else world.places.daemon_directory(instance)
    )


def _lives(one: Ended) -> bool:
    """Whether the process that was looked at runs; a later one with its pid is another."""
    return (
        one.client.started_at is not None
        and procfs.alive(one.pid)
        and procfs.started_at(one.pid) == one.client.started_at
    )


def _take_off(daemon: Daemon, one: Ended, answers: bool, bound_s: float) -> bool:
    """Have the daemon take a client off the GPU; whether the daemon still answers."""
    if one.client.started_at is not None and procfs.started_at(one.pid) != one.client.started_at:
        one.left = True
        one.steps.append("it has left by itself")
        return answers
    if not answers:
        one.problem = "the daemon does not answer"
        return answers
    command = f"terminate_client {one.server} {one.pid}"
    try:
        answer = " ".join(daemon.ask([command], bound_s)[0])
        if answer == "0":
            one.taken_off = True
            one.steps.append(f"ended by the daemon (`{command}`), it sees error 810")
        elif one.pid not in control.clients(daemon, one.server):
            one.left = True  # no client any more: its process is none of ours
            one.steps.append("it has left by itself")
        else:
            one.problem = f"`{command}` answered {foreign.shown(answer) or 'nothing'}"
    except NotServed as error:
        one.problem = str(error)
        return False
    except (MpsctlError, OSError) as error:
        one.problem = one_line(error)
    return True


def _await(world: World, ended: Sequence[Ended], bound_s: float) -> None:
    end_s = world.now_s() + bound_s
    while world.now_s() < end_s and any(_lives(one) for one in ended):
        world.sleep_s(_POLL_S)
    for one in ended:
        one.gone = not _lives(one)


def _signal(world: World, ended: Sequence[Ended], number: signal.Signals, bound_s: float) -> None:
    left = [one for one in ended if not one.gone and one.problem is None]
    for one in left:
        try:
            if one.client.started_at is not None and procfs.send(one.pid, one.client.started_at, number):
                one.steps.append(f"{number.name} to pid {one.pid}")
        except OSError as error:
            one.problem = f"{number.name} to pid {one.pid}: {error.strerror}"
    if left:
        _await(world, ended, bound_s)
