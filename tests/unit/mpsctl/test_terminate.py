"""The end of a client: the daemon first, then the process, and never another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Optional

import pytest

from fakes import FakeDaemon, Host
from mpsctl.adapters import procfs
from mpsctl.lifecycle import drain, terminate
from mpsctl.lifecycle.terminate import Ended
from mpsctl.observe.facts import ClientFacts

SERVER = 9001
TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.fixture
def daemon(host: Host) -> FakeDaemon:
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    made = host.start()
    made.start_server(SERVER)
    return made


def join(host: Host, daemon: FakeDaemon, pid: int = 0) -> int:
    pid = host.client(pid)
    daemon.connect(SERVER, pid)
    return pid


def connected(daemon: FakeDaemon) -> list[tuple[int, ClientFacts]]:
    """The clients, each with its server's pid."""
    return drain.connected(daemon)


def end(host: Host, daemon: FakeDaemon, *pids: int, signals: bool = True) -> list[Ended]:
    clients = [(server, client) for server, client in connected(daemon) if client.pid in pids]
    return terminate.end(host.world, daemon, clients, signals)


def test_the_daemon_takes_a_client_off_before_its_process_gets_a_signal(host: Host, daemon: FakeDaemon) -> None:
    pid, other = join(host, daemon), join(host, daemon)
    order: list[str] = []
    daemon.before_command = lambda command: order.append(f"{command} after {len(host.signals)} signals")
    (ended,) = end(host, daemon, pid)
    assert f"terminate_client {SERVER} {pid} after 0 signals" in order
    assert host.signals == [(pid, TERM)]
    assert (ended.taken_off, ended.gone, ended.problem) == (True, True, None)
    assert ended.steps == [
        f"ended by the daemon (`terminate_client {SERVER} {pid}`), it sees error 810",
        f"SIGTERM to pid {pid}",
    ]
    assert other in host.processes
    assert daemon.servers[SERVER].clients == [other]


def test_a_client_that_ends_by_itself_once_taken_off_gets_no_signal(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    host.clock.when(1, lambda: host.kill(pid))
    (ended,) = end(host, daemon, pid)
    assert ended.gone
    assert host.signals == []


def test_a_process_that_ignores_the_first_signal_gets_the_second(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    host.processes[pid].ignores = frozenset({TERM})
    (ended,) = end(host, daemon, pid)
    assert host.signals == [(pid, TERM), (pid, KILL)]
    assert ended.gone


def test_a_process_that_nothing_ends_is_reported_in_bounded_time(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    rows = connected(daemon)
    host.processes[pid].state = "D"
    begun_s = host.clock.now_s
    (ended,) = terminate.end(host.world, daemon, [(SERVER, rows[0][1])])
    assert host.clock.now_s - begun_s <= terminate.BOUND_S
    assert (ended.taken_off, ended.gone) == (True, False)
    assert ended.problem == "its process does not end (state D); it waits in the kernel, see dmesg"


@pytest.mark.parametrize("answer", ["1", "Server 9001 not found", ""])
def test_what_the_daemon_does_not_take_off_gets_no_signal(host: Host, daemon: FakeDaemon, answer: str) -> None:
    pid = join(host, daemon)
    daemon.answer_to_terminate = answer
    (ended,) = end(host, daemon, pid)
    assert host.signals == []
    assert (ended.taken_off, ended.gone) == (False, False)
    assert ended.problem == f"`terminate_client {SERVER} {pid}` answered {answer or 'nothing'}"


def test_a_daemon_that_does_not_answer_is_asked_once_for_all(host: Host, daemon: FakeDaemon) -> None:
    pids = [join(host, daemon) for _ in range(3)]
    clients = connected(daemon)
    asked: list[str] = []
    daemon.before_command = asked.append
    daemon.not_served = True
    ended = terminate.end(host.world, daemon, clients)
    assert len(asked) == 1
    assert [bool(one.problem) for one in ended] == [True] * len(pids)
    assert host.signals == []


@pytest.mark.parametrize("again", [False, True])
def test_a_client_that_left_meanwhile_is_not_looked_for(host: Host, daemon: FakeDaemon, again: bool) -> None:
    """Also where its process id is another process's by now, client or not."""
    pid = join(host, daemon)
    clients = connected(daemon)
    host.end(pid)
    host.clock.pass_by(10)
    if again:
        join(host, daemon, pid)
    (ended,) = terminate.end(host.world, daemon, clients)
    assert (ended.left, ended.taken_off, ended.gone, ended.problem) == (True, False, True, None)
    assert (daemon.terminated, host.signals) == ([], [])
    assert (pid in host.processes) == again


def test_a_process_id_used_again_between_daemon_and_signal_is_not_hit(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)

    def used_again() -> None:
        host.kill(pid)
        host.client(pid)

    host.clock.when(1, used_again)
    (ended,) = end(host, daemon, pid)
    assert ended.gone
    assert host.signals == []
    assert pid in host.processes


def test_a_process_that_is_no_client_any_more_gets_no_signal(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    daemon.answer_to_terminate = "1"
    daemon.before_command = lambda command: (
        daemon.leave(SERVER, pid) if command.startswith("terminate") and daemon.servers[SERVER].clients else None
    )
    (ended,) = end(host, daemon, pid)
    assert (ended.left, ended.problem) == (True, None)
    assert host.signals == []
    assert pid in host.processes


def test_without_signals_the_process_is_left_alone(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    (ended,) = end(host, daemon, pid, signals=False)
    assert (ended.taken_off, ended.gone) == (True, False)
    assert host.signals == []


def test_a_signal_that_is_not_allowed_is_told(host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> bool:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(procfs, "send", forbidden)
    pid = join(host, daemon)
    (ended,) = end(host, daemon, pid)
    assert ended.problem == f"SIGTERM to pid {pid}: Operation not permitted"


# -- the signal itself


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_real_process_with_another_start_gets_no_signal(offset: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        began_at = procfs.started_at(child.pid)
        assert began_at is not None
        assert not procfs.send(child.pid, began_at + offset, KILL)
        assert child.poll() is None
        assert procfs.send(child.pid, began_at, KILL)
        assert child.wait() == -KILL
    assert not procfs.send(child.pid, began_at, KILL)


def test_the_age_of_this_process() -> None:
    began_at = procfs.started_at(os.getpid())
    assert began_at is not None
    ticks = os.sysconf("SC_CLK_TCK")
    for moment in (began_at, 818_744, *range(1, 100_000, 7)):
        assert procfs.age_s(moment, moment / ticks + 61) == 61
    assert procfs.age_s(began_at, began_at / ticks + 60.98) == 60
    assert procfs.age_s(began_at, 0) == 0
    assert procfs.age_s(None, 5) is None


# -- the verb


class Terminal:
    """Standard input of a person who answers."""

    def __init__(self, answer: Optional[str]) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return self._answer is not None

    def readline(self) -> str:
        return f"{self._answer}\n"


def verb(host: Host, monkeypatch: pytest.MonkeyPatch, *words: str, answer: Optional[str] = None) -> int:
    from mpsctl.cli import main
    from mpsctl.store import world

    monkeypatch.setattr(world, "World", lambda **_: host.world)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    return main.main(["clients", *words])


def test_an_end_is_asked_for_on_a_terminal(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(procfs, "user", lambda uid: f"user-{uid}")
    pid = join(host, daemon)
    assert verb(host, monkeypatch, "--terminate", str(pid), answer="n") == 1
    assert daemon.terminated == []
    assert verb(host, monkeypatch, "--terminate", str(pid), answer="y") == 0
    assert daemon.terminated == [pid]
    assert f"client {pid} (python3 serve.py, user user-1000)" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [None, "y"])
def test_without_a_terminal_or_with_json_a_yes_is_needed(
    host: Host,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Optional[str],
) -> None:
    pid = join(host, daemon)
    words = ["--terminate", str(pid), *([] if answer is None else ["--json"])]
    assert verb(host, monkeypatch, *words, answer=answer) == 2
    assert "add --yes" in capsys.readouterr().err
    assert daemon.terminated == []
    assert verb(host, monkeypatch, *words, "--yes", answer=answer) == 0
    assert daemon.terminated == [pid]


@pytest.mark.parametrize("words", [["--terminate", "4242", "--yes"], ["--terminate", "python3", "--yes"], ["--yes"]])
def test_only_a_client_of_ours_is_ended(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    host.client(4242)
    join(host, daemon)
    assert verb(host, monkeypatch, *words) == 2
    assert (daemon.terminated, host.signals) == ([], [])


def test_a_daemon_that_does_not_answer_ends_nobody(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = join(host, daemon)
    daemon.not_served = True
    assert verb(host, monkeypatch, "--terminate", str(pid), "--yes") == 3
    assert host.signals == []


def test_what_could_not_be_ended_ends_with_4(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = join(host, daemon)
    daemon.answer_to_terminate = "1"
    assert verb(host, monkeypatch, "--terminate", str(pid), "--yes", "--json") == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["problem"] == f"`terminate_client {SERVER} {pid}` answered 1"
    assert "could not be ended" in captured.err
