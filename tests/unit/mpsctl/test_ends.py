"""Waits that had no end: each now has one, and what comes then."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest

from fakes import Host
from mpsctl.adapters import bounded
from mpsctl.cli import reconcile
from mpsctl.lifecycle import stop
from mpsctl.model.errors import NotReady
from mpsctl.store import admission
from mpsctl.store.admission import OPEN, WAITING, Admission, Stuck
from shell import Shell

_HOLDS = """\
import fcntl, sys, time
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_SH)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def passing_on(host: Host, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A front door that is stopped by a signal while it passes a client on, or comes to do so."""
    path = admission.path(host.places, "0").with_suffix(name)
    path.touch()
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(path)], stdout=subprocess.PIPE) as door:
        assert door.stdout is not None
        assert door.stdout.readline() == b"held\n"
        door.send_signal(signal.SIGSTOP)
        try:
            yield door
        finally:
            door.kill()


each_lock = pytest.mark.parametrize("name", [".lock", ".entry.lock"])


@each_lock
def test_a_front_door_that_is_stopped_is_named_and_nothing_is_written(host: Host, name: str) -> None:
    admission.write(host.places, "0", Admission(OPEN))
    with passing_on(host, name):
        with pytest.raises(Stuck, match=r"mps-front-door@0\.service"):
            admission.write(host.places, "0", Admission(WAITING), bound_s=0.2)
        assert admission.read(host.places, "0") == Admission(OPEN)
    assert admission.write(host.places, "0", Admission(WAITING))


def test_a_lock_that_comes_too_late_is_given_back(host: Host) -> None:
    admission.write(host.places, "0", Admission(OPEN))
    with passing_on(host, ".lock"), pytest.raises(Stuck):
        admission.write(host.places, "0", Admission(WAITING), bound_s=0.2)
    descriptor = os.open(admission.path(host.places, "0").with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


@each_lock
def test_a_stop_goes_on_past_it(host: Host, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    host.desired("0", ComputeMode="exclusive_process", StopTimeoutSec=1)
    pid = host.start().pid
    client = host.client()
    host.running().start_server(9001, clients=[client])
    monkeypatch.setattr(stop, "_GRACE_S", 0.2)
    monkeypatch.setattr("mpsctl.lifecycle.admit._REFUSE_ALL_S", 0.2)
    daemon = host.running()
    with passing_on(host, name):
        host.stop()
    assert daemon.terminated == [client]
    assert pid not in host.processes
    assert host.nvml.gpu(0).compute_mode == "default"
    assert any("mps-front-door@0.service" in line for line in host.said)


@pytest.mark.forks
@pytest.mark.parametrize("stopped", [True, False])
def test_a_child_that_has_answered_and_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    monkeypatch.setattr(bounded, "_END_S", 0.1)
    end = os._exit

    def stays(code: int) -> None:
        signal.raise_signal(signal.SIGSTOP) if stopped else signal.pause()
        end(code)

    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", stays)
        call = bounded.Call(lambda: 7, 5, "a call")
    assert call.answer() == 7
    _, status = os.waitpid(call._pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("sent", [b"", b'{"format": 2'])
def test_a_sender_that_says_nothing_more_is_given_up(
    mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    reader, writer = os.pipe()
    os.write(writer, sent)
    monkeypatch.setattr(reconcile, "INPUT_S", 0.1)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(NotReady, match=f"found {len(sent)} bytes of a request and then nothing"):
            reconcile._request()
    os.close(writer)


def test_a_request_that_comes_in_pieces_is_taken_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '{"one": "' + "µ" * 100_000 + '"}'
    sent = tmp_path / "request"
    sent.write_text(text)
    sender: Any = subprocess.Popen(["cat", str(sent)], stdout=subprocess.PIPE)
    with sender, os.fdopen(os.dup(sender.stdout.fileno())) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert reconcile._request() == text
