"""Copies of a user's own command in a benchmark's worker pool: a keeper starts, counts and ends them.

The keeper adopts whatever the copies leave behind, so that a shell's children do not outlive it, and it ends with its
standard input, whatever ends whoever started it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from typing import IO, Any, Callable, Optional, Sequence

from mpsctl.adapters import child_process, procfs, worker_pool
from mpsctl.adapters.stop_request import Stop, on_signals

_TERM_S, _KILL_S = 2.0, 5.0
_LOOK_S = 0.2


class _Ended(Exception):
    """Whoever started us is gone, or wants the end."""


class _Problem(Exception):
    """Why the copies could not work, in one line."""


class _Copy:
    """One copy. ``begun_s`` is the start of the present one, ``stamps_s`` when a completion or a line was seen."""

    def __init__(self) -> None:
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.begun_s = 0.0
        self.stamps_s: list[float] = []
        self.durations_s: list[float] = []


def child() -> None:
    """The keeper. It is told in JSON: ``command``, ``copies``, ``count_lines``, ``uid``, ``gid``, ``ready_s``."""
    wanted: dict[str, Any] = json.loads(sys.argv[2])
    child_process.become(wanted["uid"], wanted["gid"])
    child_process.adopt_orphans()
    with on_signals() as stop, on_signals((signal.SIGCHLD,)) as ended, tempfile.TemporaryFile() as errors:
        keeper = _Keeper(wanted, stop, ended, errors)
        try:
            answer = keeper.work()
        except _Ended:
            answer = None
        except _Problem as problem:
            answer = {"problem": str(problem)}
        finally:
            keeper.end()
    if answer is not None:
        worker_pool.say(**answer)


class _Keeper:
    def __init__(self, wanted: dict[str, Any], stop: Stop, ended: Stop, errors: IO[bytes]) -> None:
        self._command: Sequence[str] = wanted["command"]
        self._lines: bool = wanted["count_lines"]
        self._ready_s: float = wanted["ready_s"]
        self._copies = [_Copy() for _ in range(wanted["copies"])]
        self._stop, self._ended, self._errors = stop, ended, errors
        self._child_process = child_process.end_with(os.getpid())
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(stop, selectors.EVENT_READ)
        self._selector.register(ended, selectors.EVENT_READ)
        self._go: Optional[tuple[float, float, float]] = None

    def work(self) -> Optional[dict[str, Any]]:
        """Everything up to the results."""
        if self._lines:
            for copy in self._copies:
                self._start(copy)
            limit = time.monotonic() + self._ready_s
            self._run(lambda now: all(copy.stamps_s for copy in self._copies) or now >= limit)
            if not all(copy.stamps_s for copy in self._copies):
                raise _Problem(f"not every copy printed a line within {self._ready_s:g} s")
        worker_pool.say(under_mps=None)
        self._run(lambda _: self._go is not None)
        assert self._go is not None
        start, end, last = self._go
        if self._lines:
            self._run(lambda now: now >= end)
            return {"results": [_by_lines(copy, start, end) for copy in self._copies]}
        for copy in self._copies:
            self._start(copy)
        begun_s = {id(copy): copy.begun_s for copy in self._copies}
        self._run(lambda now: (now >= end and all(copy.stamps_s for copy in self._copies)) or now >= last)
        if not all(copy.stamps_s for copy in self._copies):
            raise _Problem("not every copy completed in time; give it more with --seconds")
        return {
            "results": [
                {
                    "count": len(copy.stamps_s),
                    "seconds": copy.stamps_s[-1] - begun_s[id(copy)],
                    "latencies_us": [int(duration * 1e6) for duration in copy.durations_s],
                }
                for copy in self._copies
            ]
        }

    def _start(self, copy: _Copy) -> None:
        copy.begun_s = time.monotonic()
        try:
            copy.process = subprocess.Popen(
                list(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._lines else subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
                preexec_fn=self._child_process,
            )
        except OSError as error:
            raise _Problem(f"{self._command[0]}: {error.strerror or error}") from None
        if copy.process.stdout is not None:
            self._selector.register(copy.process.stdout, selectors.EVENT_READ, copy)

    def _run(self, done: Callable[[float], bool]) -> None:
        """Count until ``done(now)``."""
        while not done(time.monotonic()):
            for key, _ in self._selector.select(_LOOK_S):
                if key.fd == 0:
                    self._hear()
                elif key.data is not None:
                    self._count_lines(key.data)
                elif key.fileobj is self._stop:
                    raise _Ended
                else:
                    self._ended.rearm()
            self._look_for_ends()

    def _hear(self) -> None:
        self._go = worker_pool.await_go()
        if self._go is None:
            raise _Ended

    def _count_lines(self, copy: _Copy) -> None:
        assert copy.process is not None
        assert copy.process.stdout is not None
        chunk = os.read(copy.process.stdout.fileno(), 1 << 16)
        if not chunk:
            self._selector.unregister(copy.process.stdout)
        copy.stamps_s += [time.monotonic()] * chunk.count(b"\n")

    def _look_for_ends(self) -> None:
        for copy in self._copies:
            if copy.process is None or copy.process.poll() is None:
                continue
            code = copy.process.returncode
            if code:
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                raise _Problem(f"a copy ended with {how}{self._last_words()}")
            if self._lines:
                raise _Problem("a copy ended before the time was over; with --count-lines it must run on")
            now = time.monotonic()
            copy.stamps_s.append(now)
            copy.durations_s.append(now - copy.begun_s)
            self._start(copy)

    def _last_words(self) -> str:
        words = worker_pool.last_words(self._errors)
        return f": {words}" if words else ""

    def end(self) -> None:
        """End the copies with all that they started, politely first, and wait until none is left."""
        for copy in self._copies:
            if copy.process is not None and copy.process.poll() is None:
                _signal_group(copy.process.pid, signal.SIGTERM)
        _await_all(_TERM_S)
        limit = time.monotonic() + _KILL_S
        while time.monotonic() < limit:
            rest = procfs.tree(os.getpid())[1:]
            for pid in rest:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            if _await_all(0.1):
                return


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _await_all(timeout_s: float) -> bool:
    """Wait until this process has no children, adopted ones included; whether that came in time."""
    limit = time.monotonic() + timeout_s
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not pid:
            if time.monotonic() >= limit:
                return False
            time.sleep(0.01)


def _by_lines(copy: _Copy, start: float, end: float) -> dict[str, Any]:
    """The rate between the first and the last line of the time that counts; a request is what lies between two."""
    stamps = [stamp for stamp in copy.stamps_s if start <= stamp <= end]
    span = stamps[-1] - stamps[0] if stamps else 0.0
    count, seconds = (len(stamps) - 1, span) if span > 0 else (len(stamps), end - start)
    lines_at = Counter(stamps)  # lines that came in one piece share its moment
    moments, gaps = sorted(lines_at), []
    for before, after in zip(moments, moments[1:]):
        gaps += [int((after - before) * 1e6 / lines_at[after])] * lines_at[after]
    return {"count": count, "seconds": seconds, "latencies_us": gaps}
