"""Processes that work at the same time: what the others say, and what the pool leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from mpsctl.adapters import procfs, worker_pool
from mpsctl.adapters.stop_request import Stop

WAIT = "import os; os.read(0, 1)"


def of(source: str) -> worker_pool.WorkerPool:
    return worker_pool.WorkerPool([[sys.executable, "-c", source]], dict(os.environ), Stop())


@pytest.mark.parametrize("said", ["null", "5", "[]", '"text"', "true", "welcome to this host", "", "[" * 100_000])
def test_a_line_that_is_no_process_of_a_worker_pool_is_told_as_it_is(said: str) -> None:
    with (
        of(f"print({said!r}, flush=True); {WAIT}") as one,
        pytest.raises(worker_pool.Failed, match="a process said b'"),
    ):
        one.hear(60)


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_LONGEST_LINE", 1000)
    source = f"print('y' * 1001, end='', flush=True); {WAIT}"
    with of(source) as one, pytest.raises(worker_pool.Failed, match="a process said b'yyy"):
        one.hear(60)


@pytest.mark.parametrize(
    ("then", "end_s"),
    [(f"{WAIT}", 60), ("pass", 60), ("import signal; signal.pause()", 0)],
    ids=["ends with its input", "ends at once", "does not end"],
)
def test_what_a_process_started_ends_with_it(monkeypatch: pytest.MonkeyPatch, then: str, end_s: int) -> None:
    monkeypatch.setattr(worker_pool, "_END_S", end_s)
    start = "import subprocess; child = subprocess.Popen(['sleep', '1000']).pid"
    with of(f"{start}; print('{{\"child\": %d}}' % child, flush=True); {then}") as one:
        [said] = one.hear(60)
        assert procfs.alive(said["child"])
    limit = time.monotonic() + 60
    while procfs.alive(said["child"]):
        assert time.monotonic() < limit, "it never ended"
        time.sleep(0.01)


def test_processes_end_where_the_kernel_awaits_them() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some supervisors start their programs
    try:
        with of("print('{}', flush=True)") as one:
            [said] = one.hear(60)
            [pid] = one.pids
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert said == {}
    assert not procfs.alive(pid)
