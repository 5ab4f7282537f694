"""Bounded calls that run in the test's own process.

On a host each runs in a process of its own (``mpsctl.adapters.bounded``). A fork of pytest costs some 20 ms, and a
look at one instance takes six: more than half of what the tests cost. So only tests of what the fork is for have it:
they are marked ``forks``. Those are tests of a call that hangs or ends its process, of calls that run side by side,
and of what a child leaves unchanged in its parent. Everything in tests/contract, tests/lab and molecule forks.
"""

from __future__ import annotations

import io
import pickle
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Callable

import pytest

from mpsctl.adapters.bounded import Call
from mpsctl.model.errors import MpsctlError, NotReady


def use(patch: pytest.MonkeyPatch) -> None:
    """Every bounded call from now on runs when it begins; its answer and its error are those of a child process."""
    patch.setattr(Call, "__init__", _begin)
    patch.setattr(Call, "answer", _answer)


def _begin(call: Any, function: Callable[[], object], timeout_s: float, what: str) -> None:
    succeeded, answer = True, None
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            answer = function()
        except MpsctlError as error:
            succeeded, answer = False, str(error)
        except Exception as error:
            succeeded, answer = False, f"{type(error).__name__}: {error}"
    # Nothing but plain values comes through, and the caller gets copies.
    call.sent = pickle.dumps((succeeded, answer))


def _answer(call: Any) -> object:
    succeeded, answer = pickle.loads(call.sent)
    if not succeeded:
        raise NotReady(answer)
    return answer
