"""A pause of the front door while the daemon is asked, in /run/mps-fleet/<instance>/quiet.lock.

A daemon serves one connection at a time. A user whose clients stop in the middle of their start holds it for a second
each, and one comes after the other: a look of several sessions would get no answer within its bound, and the daemon
would pass for unresponsive. So who looks has the door pass nobody on meanwhile. It is no lock for the door: one that is
held too long, by a look that was stopped, is passed over.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator, Optional

from mpsctl.adapters import files, locks
from mpsctl.model.errors import MpsctlError
from mpsctl.model.places import Places
from mpsctl.store import admission

WAIT_S = 2.0
"""For another look, and for who is being passed on: a client that stops in the middle takes one second."""
MOST_S = 8.0
"""As long as a look may keep the door from passing anybody on: longer than it may take."""
_PAUSE_S = 0.02


def path(places: Places, instance: str) -> Path:
    return places.runtime(instance) / "quiet.lock"


@contextmanager
def kept(places: Places, instance: str) -> Iterator[bool]:
    """Have the door pass nobody on for the length of the block; whether nobody is being passed on now. Root's alone."""
    end_s = time.monotonic() + WAIT_S
    lock: Optional[int] = None
    try:
        if path(places, instance).exists():  # else no door has served yet
            lock = locks.take(path(places, instance), end_s)
        nobody = _wait_until_nobody(places, instance, end_s)
    except (locks.Taken, MpsctlError, OSError):
        nobody = False
    try:
        yield nobody
    finally:
        if lock is not None:
            os.close(lock)


def _wait_until_nobody(places: Places, instance: str, end_s: float) -> bool:
    while admission.is_held(places, instance):
        if time.monotonic() >= end_s:
            return False
        time.sleep(_PAUSE_S)
    return True


class Courtesy:
    """The door's side, of one instance. It makes the lock: a look changes nothing on a host."""

    def __init__(self, places: Places, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._places, self._instance, self._clock = places, instance, clock
        self._since_s: Optional[float] = None
        self._met_s = 0.0
        with suppress(MpsctlError, OSError):
            files.make_directory(path(places, instance).parent)
            os.close(files.open_file(path(places, instance), os.O_RDWR | os.O_CREAT))

    def hold(self) -> Optional[admission.Held]:
        """As ``admission.try_hold``; None also while somebody looks at the daemon.

        :raises OSError: as ``admission.try_hold``.
        """
        now_s = self._clock()
        if not locks.is_taken(path(self._places, self._instance)):
            self._since_s = None
        else:
            # One that was met long ago has ended since, though nobody came who saw that.
            begun = self._since_s is None or now_s - self._met_s > MOST_S
            self._since_s = now_s if begun or self._since_s is None else self._since_s
            self._met_s = now_s
            if now_s - self._since_s < MOST_S:
                return None
        return admission.try_hold(self._places, self._instance)
