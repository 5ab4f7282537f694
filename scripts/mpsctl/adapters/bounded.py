"""Calls that may hang in the driver or the kernel, each in a process of its own that can be left behind."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from contextlib import suppress
from typing import Callable, Generic, Optional, TypeVar, cast

from mpsctl.model.errors import MpsctlError, NotReady

T = TypeVar("T")

_END_S, _LOOK_S = 2.0, 0.001
"""Within which a process that has answered ends: it has nothing left to do."""


class Call(Generic[T]):
    """One call that has begun, in a process of its own. The answer of ``function`` must be of plain values.

    A thread would not do: one that waits inside the driver keeps its whole process from ending.
    """

    def __init__(self, function: Callable[[], T], timeout_s: float, what: str) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._end = time.monotonic() + timeout_s
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _answer(function, writer)
        os.close(writer)

    def answer(self) -> T:
        """Wait for the answer; to be asked for once.

        :raises NotReady: if it failed, or does not answer within ``timeout_s`` seconds of its begin.
        """
        try:
            data = _read(self._reader, self._end)
        finally:
            os.close(self._reader)
        if data is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)
            raise NotReady(
                f"{self._what} did not answer within {self._timeout_s:g} s; look for what hangs with `dmesg`"
            )
        _reap(self._pid)
        if not data:
            raise NotReady(f"{self._what} ended the process that asked it")
        succeeded, answer = pickle.loads(data)  # of our own child
        if not succeeded:
            raise NotReady(answer)
        return cast(T, answer)


def call(function: Callable[[], T], timeout_s: float, what: str) -> T:
    """The answer of ``function``, which must be of plain values.

    :raises NotReady: if it fails, or does not answer within ``timeout_s`` seconds.
    """
    return Call(function, timeout_s, what).answer()


def _answer(function: Callable[[], T], writer: int) -> None:
    """In the child: answer through the pipe and be gone, holding nothing that a caller of ours may wait for."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        answer: tuple[bool, object]
        try:
            answer = (True, function())
        except MpsctlError as error:
            answer = (False, str(error))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "wb") as file:
            pickle.dump(answer, file)
    finally:
        os._exit(0)


def _reap(pid: int) -> None:
    """Take note of the end of a child that has answered. One that does not end is ended, and left to the kernel."""
    end_s = time.monotonic() + _END_S
    with suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= end_s:
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(_LOOK_S)


def _read(reader: int, end: float) -> Optional[bytes]:
    """All that comes until the other side closes, or None if it does not in time."""
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
