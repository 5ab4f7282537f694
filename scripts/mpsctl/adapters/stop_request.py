"""A request to stop, by a signal: work ends at its next wait and still writes what it has."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Optional, Sequence

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stop:
    """``requested`` is the first signal that came, or None; the file descriptor becomes readable with it."""

    def __init__(self) -> None:
        self.requested: Optional[int] = None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def request(self, number: int) -> None:
        if self.requested is None:
            self.requested = number
        with suppress(BlockingIOError):  # full: it is readable
            os.write(self._write, b"!")

    @property
    def name(self) -> str:
        """The signal's name, for a report."""
        return signal.Signals(self.requested).name if self.requested is not None else "a signal"

    def rearm(self) -> None:
        """Wait for the next one."""
        os.read(self._read, 4096)
        self.requested = None

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@contextmanager
def on_signals(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[Stop]:
    """Signals only ask for the end, for the length of the block; what was in force before is again after it."""
    stop = Stop()

    def handler(number: int, frame: Any) -> None:  # noqa: ARG001 (the form that signal wants)
        stop.request(number)

    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        stop.close()
