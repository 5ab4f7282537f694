"""What the instance's state means for a visitor: the admission, whether its daemon lives, and the unit's state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Union

from mpsctl.front_door import words
from mpsctl.front_door.judge import Refuse, Wait
from mpsctl.front_door.unit import UnitState
from mpsctl.front_door.worker import Worker
from mpsctl.store import admission, drains
from mpsctl.store.admission import CLOSED, OPEN, Admission, ServedDaemon
from mpsctl.store.world import World

_HOLDS_S = 0.002
"""Hundreds may be judged in a row, and each look reads files."""


@dataclass(frozen=True)
class View:
    """``daemon`` is the admission's, where its process lives. ``barred`` says why nobody new is let in, None where
    the instance is open."""

    admission: Optional[Admission]
    daemon: Optional[ServedDaemon]
    barred: Optional[Union[Wait, Refuse]]


class Outlook:
    """One instance. ``wait_s`` is how long a visitor may wait, as was said last."""

    def __init__(self, world: World, instance: str, worker: Worker) -> None:
        self._world, self._instance = world, instance
        self._path = admission.path(world.places, instance)
        self._unit = UnitState(world, instance, worker)
        self._file: Optional[tuple[int, ...]] = None
        self._admission: Optional[Admission] = None
        self._drain: Optional[drains.Drain] = None
        self._view: Optional[View] = None
        self._viewed_s = 0.0
        self.wait_s = float(admission.DEFAULT_WAIT_S)

    def view(self) -> View:
        """What held 2 ms ago at most. Where the daemon is not there, the worker asks systemd."""
        now_s = self._world.now_s()
        if self._view is None or not 0 <= now_s - self._viewed_s < _HOLDS_S:
            found = self._read()
            daemon = found.daemon if found and found.daemon and found.daemon.lives else None
            self._view = View(found, daemon, self._barred(found, daemon))
            self._viewed_s = now_s
        return self._view

    def serves(self) -> Optional[View]:
        """As ``view``, but what holds now, and without a question to systemd; None where no daemon lives."""
        found = self._read()
        if found is None or found.daemon is None or not found.daemon.lives:
            return None
        open_ = found.state == OPEN
        return View(found, found.daemon, None if open_ else Wait(words.LIMITS_NOT_IN_FORCE))

    def _read(self) -> Optional[Admission]:
        """The admission as it is now; each write of it makes another file."""
        try:
            about = os.stat(self._path)
        except OSError:
            self._file = self._admission = None
            return None
        seen = (about.st_ino, about.st_mtime_ns, about.st_size)
        if seen != self._file:
            self._admission = admission.stored(self._world.places, self._instance)
            self._drain = drains.read(self._world, self._instance)
            self._file = seen
            if self._admission is not None:
                self.wait_s = float(self._admission.wait_s)
        return None if self._admission is None else admission.in_force(self._world.places, self._admission)

    def _barred(self, found: Optional[Admission], daemon: Optional[ServedDaemon]) -> Optional[Union[Wait, Refuse]]:
        closed: Optional[Refuse] = None
        if found is not None and found.state == CLOSED:
            refuses = self._drain is not None and self._drain.refuse  # a stop closes as well, also a drained one
            reason = words.DRAINED if refuses else words.STOPPED
            closed = Refuse(reason, found.why or f"instance {self._instance}: {reason}")
            if refuses or daemon is not None:
                return closed
        if daemon is None:  # also of a unit that was stopped: it may have been started again since
            refusal = self._unit.refusal(self._file, closed)
            if refusal is not None:
                return refusal
        if found is not None and found.state == OPEN:
            return Wait(words.DAEMON_DOWN) if daemon is None else None
        return Wait(words.DRAINED if found is not None and self._drain is not None else words.LIMITS_NOT_IN_FORCE)
