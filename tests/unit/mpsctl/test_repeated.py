"""A question that is asked again and again in a process of its own, and NVML that stays open there."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import pytest

from fakes import Host
from mpsctl.adapters import nvml
from mpsctl.adapters.repeated import Repeated
from mpsctl.model.errors import BadValue, NotReady

MOMENT_S = 60.0
"""What a test waits for something that happens at once."""


def repeated(answer: Callable[[], Any]) -> Repeated[Any]:
    @contextmanager
    def begin() -> Iterator[Callable[[], Any]]:
        yield answer

    return Repeated(begin, "the question")


def gone(pid: int) -> bool:
    """Whether a child has ended, or was taken note of."""
    end_s = time.monotonic() + MOMENT_S
    while time.monotonic() < end_s:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.01)
    return False


def test_one_process_answers_every_question_and_keeps_what_it_opened() -> None:
    opened: list[int] = []

    @contextmanager
    def begin() -> Iterator[Callable[[], tuple[int, int, int]]]:
        opened.append(1)
        numbers = iter((1, 2, 3))
        yield lambda: (os.getpid(), len(opened), next(numbers))

    with Repeated(begin, "it") as asking:
        answers = []
        for _ in range(3):
            asking.ask()
            answers.append(asking.answer())
    assert [one[1:] for one in answers] == [(1, 1), (1, 2), (1, 3)]
    assert len({one[0] for one in answers}) == 1
    assert answers[0][0] != os.getpid()
    assert opened == []
    assert gone(answers[0][0])


def test_it_can_be_waited_for_beside_others() -> None:
    with repeated(lambda: "x" * 1_000_000) as asking:
        asking.ask()
        assert select.select([asking], [], [], MOMENT_S)[0] == [asking]
        assert asking.answer() == "x" * 1_000_000


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadValue("a", "b", "c"), "a"),
        (NotReady("no driver"), "no driver"),
        (ZeroDivisionError("0"), "ZeroDivisionError: 0"),
    ],
)
def test_an_error_is_an_answer_and_the_next_question_is_heard(error: Exception, said: str) -> None:
    due: list[Exception] = [error]

    def answer() -> int:
        if due:
            raise due.pop()
        return 7

    with repeated(answer) as asking:
        asking.ask()
        with pytest.raises(NotReady, match=said):
            asking.answer()
        asking.ask()
        assert asking.answer() == 7


def test_one_that_ends_itself_is_begun_anew() -> None:
    with repeated(lambda: os._exit(3)) as asking:
        for _ in range(2):
            asking.ask()
            with pytest.raises(NotReady, match="the question ended the process that asked it"):
                asking.answer()


def test_one_that_hangs_is_left_and_the_next_is_asked_anew() -> None:
    here = os.getpid()

    def answer() -> int:
        if not os.path.exists(f"/proc/{here}/fd/{reader}"):
            return 0
        time.sleep(10 * MOMENT_S)
        return 1

    reader, writer = os.pipe()
    with repeated(answer) as asking:
        asking.ask()
        child = asking._pid
        assert child is not None
        asking.end()
        assert gone(child)
        os.close(reader)
        os.close(writer)
        asking.ask()
        assert asking.answer() == 0


def test_what_a_terminal_sends_to_all_does_not_end_it() -> None:
    with repeated(lambda: 7) as asking:
        asking.ask()
        assert asking.answer() == 7
        assert asking._pid is not None
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH):
            os.kill(asking._pid, number)
        asking.ask()
        assert asking.answer() == 7


def test_nvml_is_opened_once_for_many_looks_and_anew_after_a_failure(host: Host) -> None:
    opened: list[int] = []

    def open_() -> Any:
        opened.append(1)
        return host.nvml.opened()

    kept = nvml.Kept(open_)
    for _ in range(3):
        assert len(kept.snapshot().gpus) == 4
    assert len(opened) == 1
    host.nvml.driver_up = False
    host.nvml.all = []
    kept.snapshot()
    assert kept.snapshot().unread is not None
    host.nvml.driver_up = True
    kept.close()
    assert kept.snapshot().unread is None
    assert len(opened) > 1
