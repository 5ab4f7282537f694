"""What may take long, in a thread beside the one that serves connections.

Sessions with the daemon, questions to systemd and writes of files are ordered here. Each is known by a name and is
carried out once however often it is ordered meanwhile. That one has been carried out is told by a descriptor.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Callable, Optional

_END_S = 6.0
"""How long the end waits for what is being done; a session with the daemon is given 5 s."""
_AFTER_FAULT_S = 1.0
"""What is ordered anew whenever it ends would otherwise fail without a pause."""


class Worker:
    """``now_s`` is the clock of the moments from which on something may be done; ``failed`` hears of a fault of
    ours."""

    def __init__(self, now_s: Callable[[], float], failed: Callable[[str, Exception], None]) -> None:
        self._now_s, self._failed = now_s, failed
        self._changed = threading.Condition()
        self._ordered: dict[str, tuple[float, Callable[[], None]]] = {}
        self._faults: dict[str, float] = {}
        self._looks: Optional[str] = None
        self._ended = False
        self._thread: Optional[threading.Thread] = None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable once something has been carried out, until ``quieten``."""
        return self._read

    def quieten(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def order(self, name: str, task: Callable[[], None], due_s: float = 0.0) -> None:
        """Have ``task`` carried out at ``due_s`` or later. Of one name the newest counts, at the earliest moment."""
        with self._changed:
            due_s = max(
                due_s, self._now_s(), self._faults.get(name, 0.0)
            )  # so that what is due goes in the order in which it was ordered
            before = self._ordered.get(name)
            if before is not None and before[0] <= due_s:
                self._ordered[name] = (before[0], task)
                return
            self._ordered[name] = (due_s, task)
            self._changed.notify()

    def look(self, name: str, task: Callable[[], None], due_s: float = 0.0) -> None:
        """As ``order``, unless such a look is being taken: what it finds is to be seen first."""
        if self._looks != name:
            self.order(name, task, due_s)

    def order_in(self, name: str, pause_s: float, task: Callable[[], None]) -> None:
        self.order(name, task, self._now_s() + pause_s)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Carry out nothing more, and wait for what is being carried out."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_END_S)

    def work(self) -> int:
        """Carry out what is due, one thing after the other; how much that was."""
        done = 0
        while True:
            due = self._take()
            if due is None:
                return done
            name, task = due
            self._looks = name
            try:
                task()
                self._faults.pop(name, None)
            except Exception as error:  # a fault of ours in one look is no reason to serve nobody any more
                self._faults[name] = self._now_s() + _AFTER_FAULT_S
                self._failed(name, error)
            finally:
                self._looks = None
            done += 1
            with suppress(BlockingIOError):  # full: it is readable
                os.write(self._write, b"!")

    def _take(self) -> Optional[tuple[str, Callable[[], None]]]:
        with self._changed:
            pause_s = self._pause_s()
            if self._ended or pause_s is None or pause_s > 0:
                return None
            name = min(self._ordered, key=lambda one: self._ordered[one][0])
            return name, self._ordered.pop(name)[1]

    def _pause_s(self) -> Optional[float]:
        """Until the next thing is due; None where nothing is ordered."""
        if not self._ordered:
            return None
        return min(due_s for due_s, _ in self._ordered.values()) - self._now_s()

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                pause_s = self._pause_s()
                if not self._ended and (pause_s is None or pause_s > 0):
                    self._changed.wait(pause_s)
            self.work()
