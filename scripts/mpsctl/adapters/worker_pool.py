"""Processes that work at the same time: started, let go together, and gone at the end whatever happens.

Each says on its standard output, a line of JSON at a time, that it is ready and later what it did; it hears on its
standard input when to begin, and ends when that does. So even a SIGKILL of ours leaves none of them.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, Any, Callable, Mapping, Optional, Sequence, Union

from mpsctl.adapters.stop_request import Stop
from mpsctl.model.errors import NotReady

_END_S = 15
"""What a keeper of a user's commands takes at most to end them."""
_LOOK_S = 0.2
_LONGEST_LINE = 1 << 26
"""In bytes: several times the latencies of a million all-reduces. A program that is none of ours may never end one."""


class Stopped(Exception):
    """The user wants the end."""


class Failed(NotReady):
    """A process of the pool could not do its work; in its own words."""


class Ended(Failed):
    """One ended without a word."""


class WorkerPool:
    """The processes of ``commands``, each in a session of its own."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        stop: Stop,
        errors: Optional[IO[bytes]] = None,
        first: Optional[Callable[[], None]] = None,
    ) -> None:
        """``errors`` gets what they write to standard error; ``first`` is called in each before its program begins.

        :raises OSError: if a command cannot be started.
        """
        self._stop = stop
        self._processes: list[subprocess.Popen[bytes]] = []
        self._heard: list[bytearray] = []
        try:
            for command in commands:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL if errors is None else errors,
                        env=dict(environment),
                        start_new_session=True,
                        preexec_fn=first,
                    )
                )
                self._heard.append(bytearray())
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def hear(
        self,
        timeout_s: float,
        meanwhile: Optional[Callable[[], None]] = None,
        only: Optional[Sequence[int]] = None,
    ) -> list[dict[str, Any]]:
        """The next line of each process, or of ``only`` some of them. ``meanwhile`` is called now and then.

        :raises Failed: if one ends without it, tells of a problem, or the time is over.
        :raises Stopped: if a signal asks for the end.
        """
        end = time.monotonic() + timeout_s
        said: dict[int, dict[str, Any]] = {}
        numbers = range(len(self._processes)) if only is None else only
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop, selectors.EVENT_READ)
            for number in numbers:
                if self._line(number, said):  # it came together with the one before
                    continue
                stdout = self._processes[number].stdout
                assert stdout is not None
                selector.register(stdout, selectors.EVENT_READ, number)
            while len(said) < len(numbers):
                if self._stop.requested is not None:
                    raise Stopped
                left_s = end - time.monotonic()
                if left_s <= 0:
                    missing = len(numbers) - len(said)
                    raise Failed(f"{missing} of {len(numbers)} processes said nothing within {timeout_s:g} s")
                for key, _ in selector.select(min(_LOOK_S, left_s)):
                    if key.data is not None and self._take(key.data, said):
                        selector.unregister(key.fileobj)
                if meanwhile is not None:
                    meanwhile()
        return [said[number] for number in numbers]

    def _take(self, number: int, said: dict[int, dict[str, Any]]) -> bool:
        """Read what a process has written; whether its line is whole."""
        stdout = self._processes[number].stdout
        assert stdout is not None
        chunk = os.read(stdout.fileno(), 1 << 16)
        self._heard[number] += chunk
        if b"\n" in chunk:
            return self._line(number, said)
        if not chunk:
            raise Ended("a process ended early and said nothing")
        if len(self._heard[number]) > _LONGEST_LINE:
            raise _not_ours(self._heard[number])
        return False

    def _line(self, number: int, said: dict[int, dict[str, Any]]) -> bool:
        """Take the next line out of what was read of a process; whether there is a whole one."""
        if b"\n" not in self._heard[number]:
            return False
        line, _, rest = bytes(self._heard[number]).partition(b"\n")
        self._heard[number] = bytearray(rest)
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise _not_ours(line) from None
        if not isinstance(found, dict):
            raise _not_ours(line)
        if "problem" in found:
            raise Failed(str(found["problem"]))
        said[number] = found
        return True

    def go(self, start: float, end: float, last: float) -> None:
        """Let all begin. What is counted lies between ``start`` and ``end``, on the clock of time.monotonic().

        ``last`` is when work that takes longer is given up.
        """
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(f"{start!r} {end!r} {last!r}\n".encode())
                process.stdin.flush()
            except BrokenPipeError:
                raise Failed("a process ended before it could begin") from None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def kill(self, number: int) -> None:
        """End one at once, with all of its session's first process group: its command may be a wrapper that forks."""
        with suppress(ProcessLookupError):
            os.killpg(self._processes[number].pid, signal.SIGKILL)

    def end(self) -> None:
        """End all of them with what they started in their process groups, and wait until they are gone."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        limit = time.monotonic() + _END_S
        for number, process in enumerate(self._processes):
            while not _has_ended(process) and time.monotonic() < limit:
                time.sleep(0.01)
            self.kill(number)  # not yet awaited, so the number of its group is still its own
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has, without awaiting it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # whoever started us ignores SIGCHLD: the kernel awaits our children
        return True


def _not_ours(line: Union[bytes, bytearray]) -> Failed:
    return Failed(f"a process said {bytes(line[:80])!r}")


def last_words(errors: IO[bytes]) -> str:
    """The last line that processes wrote to standard error, at most 200 characters; empty where there is none."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
    lines = errors.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]


def say(**words: Any) -> None:
    """In a process of the pool: one line to whoever started it."""
    data = json.dumps(words).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def await_go() -> Optional[tuple[float, float, float]]:
    """In a process of the pool: wait to be let go; the start, the end and the last moment, or None if it is to end."""
    heard = b""
    while not heard.endswith(b"\n"):
        chunk = os.read(0, 4096)
        if not chunk:
            return None
        heard += chunk
    start, end, last = (float(word) for word in heard.split())
    return start, end, last
