"""Whether a visitor's server is ready, and its start where it is not.

Nobody is passed on before: a first client that dies while its server starts jams the daemon for good (driver 580,
H200). Sessions are few: one look tells all servers, and holds for a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import Daemon, NotServed, Stopped
from mpsctl.front_door import servers, words
from mpsctl.front_door.servers import FAULT, READY, Seen
from mpsctl.front_door.worker import Worker
from mpsctl.model.errors import NotReady
from mpsctl.store import admission
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.front_door_notes import LetIn
from mpsctl.store.world import World

_HOLDS_S = 1.0
"""A server in FAULT is seen by asking alone."""
_START_S, _PAUSE_S = 30.0, 5.0
"""What a start may take, and what passes before the next try."""
_POLLS_S = (0.02, 0.03, 0.05, 0.08, 0.13, 0.2)
_SLOW_S = 0.25
_AGAIN_S = 0.1
"""Between two questions for who is listed still."""
_START_SESSION_S = 2.0
"""The admission is held meanwhile."""
_ASK_AGAIN_S = 1.0
"""The daemon may have refused a start, without a word, while another user's server lived."""
ROOT = 0
"""In multi-user mode root's server serves everyone (driver 580, H200)."""


@dataclass(frozen=True)
class Want:
    """A server of ``daemon`` for ``uid``, which is ROOT where one serves all users: any will do then. ``occupied`` are
    the users of processes that were let in a moment ago: the server of such a one may have no client yet, and is not to
    go. Without ``start`` none is started."""

    daemon: ServedDaemon
    uid: int
    multi_user: bool
    occupied: frozenset[int] = frozenset()
    start: bool = True

    def fits(self, server: Seen) -> bool:
        return self.multi_user or server.uid == self.uid


@dataclass(frozen=True)
class _Look:
    """What was seen of a daemon's servers for ``uid``; ``why`` is a word for what a visitor of his waits for.
    ``at_s`` is when the daemon was asked first, ``ended_s`` when it had told all: clients that hold the daemon may have
    come between. ``next_s`` is when to look again."""

    daemon: ServedDaemon
    uid: int
    servers: tuple[Seen, ...]
    why: str
    at_s: float
    ended_s: float
    next_s: float
    answered: bool = True


@dataclass(frozen=True)
class Lists:
    """Whom a daemon's servers listed as their clients, when they were asked at ``at_s``."""

    daemon: ServedDaemon
    servers: tuple[Seen, ...]
    at_s: float


@dataclass
class _Start:
    """A start that is under way: since when, when the daemon was asked for it last, and how many looks that were."""

    since_s: float
    asked_s: Optional[float] = None
    looks: int = 0


class Readiness:
    """The servers of an instance's daemon. ``silent`` hears of a daemon that did not answer a session."""

    def __init__(self, world: World, instance: str, worker: Worker, silent: Callable[[ServedDaemon], None]) -> None:
        self._world, self._instance, self._worker, self._silent = world, instance, worker, silent
        self._unit = f"mps-control@{instance}.service"
        self._last: Optional[_Look] = None  # made by the worker, read by the loop
        self._starts: dict[int, _Start] = {}  # the worker's alone, as are the pauses
        self._daemon: Optional[ServedDaemon] = None

    def why_not(self, want: Want) -> Optional[str]:
        """What a visitor waits for, as a word; None where its server is ready. The worker looks, and starts one."""
        last = self._last if self._last is not None and self._last.daemon == want.daemon else None
        ready = last is not None and any(_serves(want, one) for one in last.servers)
        if last is not None and ready and 0 <= self._world.now_s() - last.ended_s <= _HOLDS_S:
            return None
        at_once = last is None or ready or last.uid != want.uid
        self._worker.look("servers", partial(self._work, want), 0.0 if last is None or at_once else last.next_s)
        return words.SERVER_STARTING if last is None or at_once else last.why or words.SERVER_STARTING

    def server(self, want: Want, noted: Optional[LetIn] = None) -> Optional[Seen]:
        """A server that was seen ready last, where it still lives; of a process that was let in (``noted``) its own."""
        last = self._last
        if last is None or last.daemon != want.daemon:
            return None
        fit = [one for one in last.servers if _serves(want, one)]
        if noted is not None:
            fit = [one for one in fit if (one.pid, one.started_at) == (noted.server_pid, noted.server_started_at)]
        return fit[0] if fit else None

    def lists(self, want: Want, after_s: Optional[float] = None) -> Optional[Lists]:
        """What the daemon said last of its clients, None where it was not asked yet or gave no answer. It is asked anew
        where that is more than a second old, or from before ``after_s``."""
        last = self._last if self._last is not None and self._last.daemon == want.daemon else None
        now_s = self._world.now_s()
        if last is not None and ((after_s is not None and last.at_s <= after_s) or now_s - last.at_s > _HOLDS_S):
            self._worker.look("servers", partial(self._work, want), last.at_s + _AGAIN_S)
        return None if last is None or not last.answered else Lists(last.daemon, last.servers, last.at_s)

    # -- in the worker

    def _work(self, want: Want) -> None:
        if self._daemon != want.daemon:
            self._daemon = want.daemon
            self._starts.clear()
        before = self._last.servers if self._last is not None and self._last.daemon == want.daemon else ()
        at_s = self._world.now_s()
        seen: tuple[Seen, ...] = ()
        answered = False
        try:
            if procfs.stopped(want.daemon.pid):
                raise Stopped(f"the control daemon (pid {want.daemon.pid}) is stopped")
            seen = servers.look(self._world, self._unit, self._talk(want), before)
            why, pause_s = self._judge(want, seen)
        except NotServed:
            self._silent(want.daemon)
            why, pause_s = words.DAEMON_SILENT, _SLOW_S
        except NotReady:
            why, pause_s = words.DAEMON_DOWN, _SLOW_S
        else:
            answered = True
        ended_s = self._world.now_s()
        self._last = _Look(want.daemon, want.uid, seen, why, at_s, ended_s, ended_s + pause_s, answered)

    def _judge(self, want: Want, seen: Sequence[Seen]) -> tuple[str, float]:
        """What a visitor waits for, and how long until the next look."""
        mine = [one for one in seen if want.fits(one)]
        if any(one.state == READY for one in mine):
            self._starts.pop(want.uid, None)
            return "", 0.0
        if any(one.state == FAULT for one in mine):
            return words.SERVER_FAULT, _SLOW_S  # it ends with its last client, and then another one can start
        if not want.multi_user and any(one.clients or one.uid in want.occupied for one in seen if one not in mine):
            self._starts.pop(want.uid, None)
            return words.ANOTHER_USER, _SLOW_S
        if not want.start:
            return words.SERVER_NOT_READY, _SLOW_S
        return self._start(want, listed=bool(mine))

    def _start(self, want: Want, listed: bool) -> tuple[str, float]:
        now_s = self._world.now_s()
        start = self._starts.setdefault(want.uid, _Start(now_s))
        if now_s - start.since_s > _START_S:
            self._starts[want.uid] = _Start(now_s + _PAUSE_S)
            return words.SERVER_NOT_READY, _PAUSE_S
        due = start.asked_s is None or now_s - start.asked_s >= _ASK_AGAIN_S
        if not listed and due and self._ask_for_one(want):
            start.asked_s = self._world.now_s()
        pause_s = _POLLS_S[start.looks] if start.looks < len(_POLLS_S) else _SLOW_S
        start.looks += 1
        return words.SERVER_STARTING, pause_s

    def _ask_for_one(self, want: Want) -> bool:
        """Have the daemon start a server; False while somebody writes the admission.

        A daemon that starts is told its limits after its first answer, and a server takes them when it starts. So this
        daemon is asked, and never the next one on its directory: none begins while the admission is held.

        :raises NotReady: as ``Daemon.ask``, or if the daemon has ended.
        """
        held = admission.try_hold(self._world.places, self._instance)
        if held is None:
            return False
        try:
            found = admission.read(self._world.places, self._instance)
            if found is None or found.daemon != want.daemon or not want.daemon.lives:
                raise NotReady(f"the control daemon (pid {want.daemon.pid}) has ended")
            self._talk(want).ask([f"start_server -uid {want.uid}"], _START_SESSION_S)
        finally:
            held.close()
        return True

    def _talk(self, want: Want) -> Daemon:
        return self._world.daemon_of(self._instance, Path(want.daemon.pipe_directory))


def _serves(want: Want, server: Seen) -> bool:
    return server.state == READY and want.fits(server) and server.lives
