"""A call that may hang: its answer, its error, or the news that it gave none."""

from __future__ import annotations

import os
import signal
import time

import pytest

from mpsctl.adapters import bounded
from mpsctl.model.errors import NotInForce, NotReady

pytestmark = pytest.mark.forks


def test_the_answer_comes_back_whole() -> None:
    large = {"gpus": ["x" * 1000] * 1000}  # more than a pipe holds
    assert bounded.call(lambda: large, 30, "it") == large


def test_it_is_asked_in_another_process() -> None:
    assert bounded.call(os.getpid, 30, "it") != os.getpid()


def test_what_it_prints_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    def noisy() -> int:
        os.write(1, b"noise")
        os.write(2, b"noise")
        return 1

    assert bounded.call(noisy, 30, "it") == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotReady("no driver"), "^no driver$"),
        (NotInForce("refused"), "^refused$"),
        (ValueError("x"), "^ValueError: x$"),
    ],
)
def test_its_error_is_told(error: Exception, says: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(NotReady, match=says):
        bounded.call(fail, 30, "it")


def test_one_that_hangs_is_left_behind_and_ended() -> None:
    with pytest.raises(NotReady, match=r"NVML did not answer within 0\.1 s"):
        bounded.call(lambda: time.sleep(3600), 0.1, "NVML")


def test_one_that_is_ended_by_the_driver_is_told() -> None:
    with pytest.raises(NotReady, match="it ended the process that asked it"):
        bounded.call(lambda: os.kill(os.getpid(), signal.SIGKILL), 30, "it")


def test_an_answer_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(NotReady, match="it ended the process that asked it"):
        bounded.call(lambda: lambda: None, 30, "it")
