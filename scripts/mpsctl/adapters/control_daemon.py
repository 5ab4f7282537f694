"""The control daemon, spoken to through NVIDIA's own front-end on its standard input.

What the code below steps around (control daemons 535, 550, 555; driver 580 on an H200):

* The front-end ends with 0 whenever it reached the daemon, whatever became of the command; errors stand
  on its standard output.
* The daemon serves one front-end at a time. Another one is told ``Cannot send command to MPS control
  daemon process``, or ends with 0 and says nothing. An empty answer therefore proves nothing: every
  command is followed by a getter that always answers, and without its answer the session was not served.
  Any other program that connects and says nothing holds the daemon up as well.
* It logs each command and each line of an answer. So the getter is left out where what it separates can be told
  apart by its form, and the session is asked again with all of them where that does not come out even.
* A daemon stopped by a signal accepts connections and never answers: everything has a deadline.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional, Protocol, Sequence

from mpsctl.adapters import hardware, locks, procfs, session_script
from mpsctl.adapters.session_script import Line
from mpsctl.model import foreign
from mpsctl.model.errors import NotReady
from mpsctl.model.names import DOOR_PREFIX
from mpsctl.model.peers import Peers

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
DEADLINE_S = 10
"""For one session, where its user says nothing else."""


class NotServed(NotReady):
    """The daemon is there but did not answer within the deadline; ``peers`` is who was connected to it then."""

    def __init__(self, text: str, peers: Optional[Peers] = None) -> None:
        super().__init__(text)
        self.peers = peers or Peers()


class Stopped(NotServed):
    """The daemon's process is stopped by a signal or a debugger: it accepts connections and never answers."""


class Unreachable(NotReady):
    """Nothing listens on the pipe directory."""


@dataclass(frozen=True)
class Server:
    """A server of the daemon: its process id and, where the daemon tells it (550 on), its state."""

    pid: int
    state: Optional[str]


class Daemon(Protocol):
    """One control daemon."""

    def ask(self, commands: Sequence[str], deadline_s: float = DEADLINE_S) -> list[list[str]]:
        """Send commands in one session; the lines that each printed.

        :raises Unreachable: if nothing listens.
        :raises NotServed: if it did not answer within ``deadline_s`` seconds; who was in the way takes 5 s more to find
            at most.
        """


class Bounded:
    """A daemon whose answers, all together, may take until ``end_s`` on the clock ``now_s``.

    It is not asked at all while its process ``pid``, where that is known, is stopped.
    """

    def __init__(self, daemon: Daemon, now_s: Callable[[], float], end_s: float, pid: int = 0) -> None:
        self._daemon, self._now_s, self._end_s, self._pid = daemon, now_s, end_s, pid

    def ask(self, commands: Sequence[str], deadline_s: float = DEADLINE_S) -> list[list[str]]:
        if procfs.stopped(self._pid):
            raise Stopped(f"the control daemon (pid {self._pid}) is stopped by a signal (state T)")
        left_s = self._end_s - self._now_s()
        if left_s <= 0:
            problem = "the control daemon did not answer in time for this look; nothing was restarted"
            raise NotServed(problem, Peers(untold="the time of this look was over"))
        return self._daemon.ask(commands, min(deadline_s, round(left_s, 1) or 0.1))


class FrontEnd:
    """The real one, on ``pipe_directory``.

    ``lock`` is the session lock: our own calls hold it one after the other, so that they never collide;
    ``binary`` is the front-end, by default the one that the host has.
    """

    def __init__(self, pipe_directory: Path, lock: Optional[Path] = None, binary: Optional[Path] = None) -> None:
        self._pipe_directory = pipe_directory
        self._lock = lock
        self._binary = binary

    def ask(self, commands: Sequence[str], deadline_s: float = DEADLINE_S) -> list[list[str]]:
        end = time.monotonic() + deadline_s
        with self._session_lock(end):
            pause_s = _FIRST_PAUSE_S
            short = session_script.short(commands)
            while True:
                script = short or session_script.whole(commands)
                answers, problem = self._session(script, max(0.1, end - time.monotonic()))
                if answers is not None:
                    return answers
                if short is not None:
                    short = None  # what it printed may be an error, which has no form
                    continue
                if time.monotonic() + pause_s >= end:
                    peers = self._peers()
                    raise NotServed(
                        f"the control daemon on {self._pipe_directory} did not answer within {deadline_s:g} s"
                        f" ({problem}); {_told(peers)}",
                        peers,
                    )
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _peers(self) -> Peers:
        from mpsctl.adapters import unix_peers  # seldom asked, and it imports much

        return unix_peers.of_directory(self._pipe_directory)

    def _session(self, script: Sequence[Line], timeout_s: float) -> tuple[Optional[list[list[str]]], str]:
        """The answers, or None with the reason why the session was not served."""
        binary = self._binary or hardware.binary(hardware.CONTROL_DAEMON)
        if binary is None:
            raise NotReady(f"{hardware.CONTROL_DAEMON} is not on this host; install the MPS package of its driver")
        try:
            done = subprocess.run(
                [str(binary)],
                input="".join(f"{line.text}\n" for line in script),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                env={"PATH": ":".join(hardware.SEARCH_PATH), "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe_directory)},
            )
        except subprocess.TimeoutExpired:
            return None, "it accepted the connection and said nothing"
        stderr = foreign.shown(" ".join(done.stderr.split()))
        if "Cannot find MPS control daemon" in done.stderr + done.stdout:
            raise Unreachable(
                f"no control daemon listens on {self._pipe_directory} ({stderr or foreign.shown(done.stdout.strip())})"
            )
        answers = session_script.answers(script, done.stdout.splitlines())
        return answers, stderr or "its answer was empty or cut short: another session was open"

    @contextmanager
    def _session_lock(self, end: float) -> Iterator[None]:
        """Hold the session lock of the instance: the other calls of this program come before or after."""
        if self._lock is None or os.geteuid() != 0:
            yield  # other users may ask as well, but may not make us wait
            return
        try:
            descriptor = locks.take(self._lock, end)
        except locks.Taken:
            # Another call of ours is at work on it: that nobody is connected just now proves nothing.
            peers = self._peers()
            peers = replace(peers, untold=peers.untold or f"another mpsctl has its lock {self._lock}")
            raise NotServed(
                f"another mpsctl is at work on the control daemon on {self._pipe_directory}; {_told(peers)}", peers
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)


def _told(peers: Peers) -> str:
    """Who holds the session, and what to do about it. The front door's ends by itself."""
    held = [holder(pid) for pid in peers.holds if not is_front_door(pid)]
    held += [f"{peers.unnamed} of processes that cannot be seen (ask as root)"] if peers.unnamed else []
    if held:
        return f"it is held by {', '.join(held)}: end that session"
    if peers.holds:
        return "it was at work for the front door; ask again"
    if peers.untold:
        return f"who holds it cannot be told: {peers.untold}"
    waits = f" (waiting to be accepted: {', '.join(map(holder, peers.waits))})" if peers.waits else ""
    return f"nobody holds its session{waits}: the daemon may be stopped; see its state with `systemctl status`"


def holder(pid: int) -> str:
    """A process that is connected to a daemon, for people."""
    uid, parent = procfs.uid(pid), procfs.command(procfs.parent(pid))
    user = None if uid is None else procfs.user(uid)
    named = "not told" if uid is None else str(uid) if user is None else foreign.shown(user)
    return f"pid {pid} (user {named}, `{procfs.command(pid) or 'gone'}`, parent {parent or 'gone'})"


def is_front_door(pid: int) -> bool:
    """Whether a process is our front door's, or one that it started."""
    return (procfs.unit(pid) or "").startswith(DOOR_PREFIX)


def daemons() -> Iterator[int]:
    """The control daemons of this host, by their program. A front-end is the same program without arguments."""
    for pid in procfs.pids():
        if hardware.mps_program(pid) == hardware.CONTROL_DAEMON and len(procfs.title(pid).split()) > 1:
            yield pid


SERVER_LIST = "get_server_list"


def no_such_server(lines: Sequence[str]) -> bool:
    """Whether the daemon's answer to a command for one server is that it has none (control daemons 535, 550, 555)."""
    return any("not found" in line for line in lines)


def listed(lines: Sequence[str]) -> list[int]:
    """The process ids of an answer to SERVER_LIST or ``clients_command``."""
    return [int(word) for line in lines for word in line.split() if word.isdigit() and not no_such_server([line])]


def status_of(server: int) -> str:
    """The command that asks for the state of a server."""
    return f"get_server_status {server}"


def clients_command(server: int) -> str:
    """The command that asks for the clients of a server."""
    return f"get_client_list {server}"


def servers_of(pids: Sequence[int], answers: Mapping[str, Sequence[str]]) -> list[Server]:
    """Servers by the answers to ``status_of`` each of them, without those that have gone."""
    found = []
    for pid in pids:
        answer = answers[status_of(pid)]
        text = " ".join(answer)
        if no_such_server(answer):
            continue
        # 535 does not know the command.
        found.append(Server(pid, None if text.startswith("Unknown command") else foreign.shown(text) or None))
    return found


def servers(daemon: Daemon) -> list[Server]:
    """The daemon's servers. May list one that is about to die: starting is asynchronous."""
    pids = listed(daemon.ask([SERVER_LIST])[0])
    commands = [status_of(pid) for pid in pids]
    return servers_of(pids, dict(zip(commands, daemon.ask(commands)))) if pids else []


def clients_of(server: int, answers: Mapping[str, Sequence[str]]) -> list[int]:
    """Clients by the answer to ``clients_command``."""
    return listed(answers[clients_command(server)])


def clients(daemon: Daemon, server: int) -> list[int]:
    """The client process ids of one server, as the daemon's own pid namespace numbers them."""
    return listed(daemon.ask([clients_command(server)])[0])
