"""A call that goes on beside its caller."""

from __future__ import annotations

import threading

import pytest

from mpsctl.adapters.background import Background


def test_its_result_is_what_the_call_returns_or_raises() -> None:
    assert Background(lambda: 7).result() == 7

    def fail() -> int:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        Background(fail).result()


def test_it_runs_while_its_caller_does_other_things() -> None:
    here, there = threading.Event(), threading.Event()

    def call() -> str:
        there.set()
        assert here.wait(60)
        return "both"

    begun = Background(call)
    assert there.wait(60)
    here.set()
    assert begun.result(60) == "both"


def test_what_does_not_answer_is_left_alone() -> None:
    never = threading.Event()
    begun = Background(never.wait)
    with pytest.raises(TimeoutError):
        begun.result(0.01)
    never.set()
    assert begun.result(60) is True
