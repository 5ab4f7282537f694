"""A daemon that gave a client no answer: jammed, or stopped, or its session held by somebody.

A jammed daemon takes connections and serves nobody any more: `get_server_list` still answers, every question about a
server hangs, and only its end helps (driver 580, H200). Nobody is passed on to it. The look for health ends it where
the instance's file says so; the door only notes it down and asks for that look.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from mpsctl.adapters import locks, procfs
from mpsctl.adapters.control_daemon import SERVER_LIST, NotServed
from mpsctl.front_door import words
from mpsctl.front_door.notebook import Notebook
from mpsctl.front_door.worker import Worker
from mpsctl.model.errors import NotReady
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.front_door_notes import Jammed
from mpsctl.store.world import World

HEALTH = "mps-health.service"
_ANSWER_S = 2.0
_AGAIN_S = {
    words.DAEMON_STOPPED: 0.5,
    words.SERVER_STOPPED: 0.5,
    words.SESSION_HELD: 1.0,
    words.JAMMED: 2.0,
    words.DAEMON_DOWN: 0.5,
}
_HEALTH_AGAIN_S = 60.0


@dataclass(frozen=True)
class _Suspicion:
    """What is known of a daemon that gave no answer, as a word, and when to look again."""

    daemon: ServedDaemon
    why: str
    next_s: float


class Jam:
    """The daemon of an instance, while it is suspected. ``found`` hears of one that is jammed, once."""

    def __init__(
        self,
        world: World,
        instance: str,
        worker: Worker,
        notebook: Notebook,
        found: Callable[[ServedDaemon], None],
    ) -> None:
        self._world, self._instance, self._worker = world, instance, worker
        self._notebook, self._found = notebook, found
        self._suspicion: Optional[_Suspicion] = None
        self._health_asked_s: Optional[float] = None

    def suspect(self, daemon: ServedDaemon) -> None:
        """It gave no answer. From the loop or the worker; the worker looks."""
        known = self._suspicion
        if known is None or known.daemon != daemon:
            self._suspicion = _Suspicion(daemon, words.DAEMON_SILENT, 0.0)
            self._worker.look("jam", partial(self._look, daemon))

    def why(self, daemon: ServedDaemon) -> Optional[str]:
        """Why nobody is passed on to this daemon, as a word; None where it is not suspected."""
        self._recall(daemon)
        known = self._suspicion
        if known is None:
            return None
        self._worker.look("jam", partial(self._look, daemon), known.next_s)
        return known.why

    def suspects(self, daemon: ServedDaemon) -> bool:
        known = self._suspicion
        return known is not None and known.daemon == daemon

    def _recall(self, daemon: ServedDaemon) -> None:
        """What was found before holds for one daemon: it is forgotten with it, and kept over a restart of the door."""
        noted, known = self._notebook.jammed, self._suspicion
        if known is not None and known.daemon != daemon:
            self._suspicion = None
        if noted is None:
            return
        if (noted.daemon_pid, noted.daemon_started_at) != (daemon.pid, daemon.started_at):
            self._notebook.found_jammed(None)
        elif self._suspicion is None:
            self._suspicion = _Suspicion(daemon, words.JAMMED, 0.0)

    # -- in the worker

    def _look(self, daemon: ServedDaemon) -> None:
        why = self._state(daemon)
        if why == words.JAMMED:
            self._note(daemon)
        elif self._notebook.jammed is not None and why is None:
            self._notebook.found_jammed(None)
        if why is None:
            self._suspicion = None
        else:
            self._suspicion = _Suspicion(daemon, why, self._world.now_s() + _AGAIN_S[why])

    def _state(self, daemon: ServedDaemon) -> Optional[str]:
        if procfs.stopped(daemon.pid):
            return words.DAEMON_STOPPED
        servers: list[int] = []
        try:
            self._ask(daemon, servers)
        except NotServed as error:
            if procfs.stopped(daemon.pid):
                return words.DAEMON_STOPPED
            if any(map(procfs.stopped, servers)):  # the daemon waits for its answer
                return words.SERVER_STOPPED
            return words.SESSION_HELD if self._held(error) else words.JAMMED
        except NotReady:
            return words.DAEMON_DOWN
        return None

    def _ask(self, daemon: ServedDaemon, servers: list[int]) -> None:
        """Two sessions: only the questions about a server tell a jam (driver 580, H200). ``servers`` gets their pids.

        :raises NotReady: as ``Daemon.ask``.
        """
        talk = self._world.daemon_of(self._instance, Path(daemon.pipe_directory))
        (listed,) = talk.ask([SERVER_LIST], _ANSWER_S)
        servers += [int(word) for line in listed for word in line.split() if word.isdigit()]
        if servers:
            talk.ask([f"{one} {pid}" for pid in servers for one in ("get_server_status", "get_client_list")], _ANSWER_S)

    def _held(self, error: NotServed) -> bool:
        """Whether somebody else had the one session: another call of ours, or a front-end on this daemon."""
        if error.peers.unnamed or any(pid != os.getpid() for pid in error.peers.holds):  # ours may be the jammed one
            return True
        try:
            locks.wait_until_free(self._world.places.runtime(self._instance) / "session.lock", time.monotonic())
        except locks.Taken:
            return True
        return False

    def _note(self, daemon: ServedDaemon) -> None:
        now_s = self._world.now_s()
        noted = self._notebook.jammed
        if noted is None or (noted.daemon_pid, noted.daemon_started_at) != (daemon.pid, daemon.started_at):
            self._notebook.found_jammed(Jammed(daemon.pid, daemon.started_at, now_s))
            self._found(daemon)
            self._health_asked_s = None
        if self._health_asked_s is None or now_s - self._health_asked_s >= _HEALTH_AGAIN_S:
            self._health_asked_s = now_s
            problem = self._world.systemd.request_start(HEALTH)
            if problem:
                self._world.say(f"{HEALTH} could not be started: {problem}")
