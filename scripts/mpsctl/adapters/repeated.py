"""One question that is asked again and again, in a process of its own that keeps what it opened from one to the next.

It can be left behind, as the calls of ``bounded`` can: who asks never waits in the driver or the kernel itself.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from contextlib import AbstractContextManager, suppress
from typing import Callable, Generic, Optional, TypeVar, cast

from mpsctl.model.errors import MpsctlError, NotReady

T = TypeVar("T")

_LENGTH = struct.Struct("!I")
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
"""What a terminal sends to all who were started there: it is for the one who asks."""


class Repeated(Generic[T]):
    """``begin`` opens what the answers need and yields the function that makes one; answers are plain values.

    The process is begun with the first question, ends with its asker, and is begun anew after ``end``. The file
    descriptor becomes readable with the answer.
    """

    def __init__(self, begin: Callable[[], AbstractContextManager[Callable[[], T]]], what: str) -> None:
        self._begin, self._what = begin, what
        self._pid: Optional[int] = None
        self._questions = self._answers = -1

    def __enter__(self) -> Repeated[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def fileno(self) -> int:
        return self._answers

    def ask(self) -> None:
        """Ask once; ``answer`` is to be called before it is asked again.

        :raises NotReady: if the process has ended.
        """
        if self._pid is None:
            self._start()
        try:
            os.write(self._questions, b"?")
        except OSError:
            raise self._ended() from None

    def answer(self) -> T:
        """The answer; waits for it once its first byte has come.

        :raises NotReady: if there is none, with why.
        """
        head = _read(self._answers, _LENGTH.size)
        data = _read(self._answers, _LENGTH.unpack(head)[0]) if head is not None else None
        if data is None:
            raise self._ended()
        succeeded, answer = pickle.loads(data)  # of our own child
        if not succeeded:
            raise NotReady(answer)
        return cast(T, answer)

    def end(self) -> None:
        """End the process, also one that hangs: it is left to the kernel then."""
        if self._pid is None:
            return
        os.close(self._questions)
        os.close(self._answers)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        self._pid, self._questions, self._answers = None, -1, -1

    def _ended(self) -> NotReady:
        self.end()
        return NotReady(f"{self._what} ended the process that asked it")

    def _start(self) -> None:
        asked, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._questions)
            os.close(self._answers)
            _serve(self._begin, asked, answers)
        os.close(asked)
        os.close(answers)


def _serve(begin: Callable[[], AbstractContextManager[Callable[[], object]]], asked: int, answers: int) -> None:
    """In the child: answer until nobody asks any more, and be gone."""
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115 (they live as long as the process)
        with begin() as answer:
            while os.read(asked, 1):
                data = pickle.dumps(_tried(answer))
                _write(answers, _LENGTH.pack(len(data)) + data)
    except OSError:
        pass  # nobody reads
    finally:
        os._exit(0)


def _tried(answer: Callable[[], object]) -> tuple[bool, object]:
    try:
        return True, answer()
    except MpsctlError as error:
        return False, str(error)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int, size: int) -> Optional[bytes]:
    """So many bytes, or None where the other side is gone before."""
    data = b""
    while len(data) < size:
        try:
            chunk = os.read(descriptor, size - len(data))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return data
