"""The daemon's log as evidence: only while nobody else can have written it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator

import pytest

from consulting import ask, names
from fakes import FakeDaemon, Host, uuid
from judging import SERVER, UNIT, amiss, connect, judge, only
from mpsctl.adapters import log_fifo, procfs
from mpsctl.lifecycle import health, log_evidence
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING
from mpsctl.store import open_log

ME = os.geteuid()


# -- modes and owners


@pytest.fixture
def pipe_directory(root: Path) -> Path:
    """A daemon's directory as it is once it is closed."""
    made = root / "pipe"
    made.mkdir(mode=0o700)
    os.mkfifo(made / "log", 0o600)
    return made


@pytest.mark.parametrize(
    ("directory", "log", "closed"),
    [
        (0o700, 0o600, True),
        (0o710, 0o600, os.getegid() == 0),
        (0o700, 0o777, False),
        (0o700, 0o620, False),
        (0o700, 0o602, False),
        (0o700, 0o640, False),
        (0o711, 0o600, False),
        (0o701, 0o600, False),
        (0o711, 0o777, False),
    ],
)
def test_closed_is_what_nobody_else_can_open(pipe_directory: Path, directory: int, log: int, closed: bool) -> None:
    (pipe_directory / "log").chmod(log)
    pipe_directory.chmod(directory)
    assert log_fifo.is_closed(pipe_directory, owner=ME) is closed


def test_it_is_closed_for_its_owner_alone(pipe_directory: Path) -> None:
    assert log_fifo.is_closed(pipe_directory, owner=ME + 1) is False


@pytest.mark.skipif(ME != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["log", ""])
def test_a_log_or_a_directory_of_another_user_is_open(pipe_directory: Path, name: str) -> None:
    os.chown(pipe_directory / name, 65534, -1)
    assert log_fifo.is_closed(pipe_directory) is False


@pytest.mark.skipif(ME != 0, reason="only root gives files away")
def test_a_directory_that_a_group_of_users_may_enter_is_open(pipe_directory: Path) -> None:
    pipe_directory.chmod(0o710)
    os.chown(pipe_directory, -1, 65534)
    assert log_fifo.is_closed(pipe_directory) is False


def test_what_is_no_fifo_is_not_the_daemons(pipe_directory: Path) -> None:
    (pipe_directory / "log").unlink()
    assert log_fifo.is_closed(pipe_directory, owner=ME) is None
    (pipe_directory / "elsewhere").touch()
    (pipe_directory / "log").symlink_to("elsewhere")
    assert log_fifo.is_closed(pipe_directory, owner=ME) is False


def test_what_is_not_there_cannot_be_told(root: Path) -> None:
    assert log_fifo.is_closed(root / "nowhere") is None


# -- who writes now

Writer = Callable[..., int]
_HOLD = "import os, sys; one = os.open(sys.argv[1], int(sys.argv[2])); print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def writer(pipe_directory: Path) -> Iterator[Writer]:
    """Starts a process, of another user if we are root, that has the FIFO open; its pid."""
    running: list[subprocess.Popen[str]] = []
    reader = os.open(pipe_directory / "log", os.O_RDWR)  # so that opening it waits for nobody

    def begin(flags: int = os.O_WRONLY, user: int = 65534, path: str = "log") -> int:
        pipe_directory.parent.chmod(0o755)
        pipe_directory.chmod(0o711)
        (pipe_directory / "log").chmod(0o777)
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(pipe_directory / path), str(flags)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user if ME == 0 else None,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    yield begin
    for process in running:
        process.communicate()
    os.close(reader)


needs_root = pytest.mark.skipif(ME != 0, reason="another user's process is needed")


@needs_root
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_another_users_writer_is_found_however_the_modes_are_now(
    pipe_directory: Path, writer: Writer, flags: int
) -> None:
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is True
    writer(flags)
    (pipe_directory / "log").chmod(0o600)
    pipe_directory.chmod(0o700)
    assert log_fifo.is_closed(pipe_directory) is True
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is False


@needs_root
def test_it_is_found_under_another_name(pipe_directory: Path, writer: Writer) -> None:
    os.link(pipe_directory / "log", pipe_directory / "other")
    writer(path="other")
    (pipe_directory / "other").unlink()
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is False


@needs_root
def test_who_only_reads_writes_nothing(pipe_directory: Path, writer: Writer) -> None:
    writer(os.O_RDONLY | os.O_NONBLOCK)
    writer(os.O_PATH)
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is True


@needs_root
def test_roots_writers_the_daemon_and_its_servers_are_the_logs_own(pipe_directory: Path, writer: Writer) -> None:
    writer(user=0)
    daemon = writer()
    assert log_fifo.written_by_root_alone(pipe_directory, daemon) is True
    assert log_fifo.written_by_root_alone(pipe_directory, os.getpid()) is True, "the daemon's child"
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is False


def test_where_processes_cannot_be_read_nothing_is_proven(
    pipe_directory: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    writer()
    monkeypatch.setattr(procfs, "uid", lambda pid: 1000)
    monkeypatch.setattr(os, "listdir", lambda path: refused(path) if str(path).endswith("/fd") else ["1"])
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is None


def test_a_look_that_does_not_end_proves_nothing(pipe_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> Iterator[int]:
        time.sleep(60)
        yield 1

    monkeypatch.setattr(log_fifo, "_SCAN_S", 0.2)
    monkeypatch.setattr(procfs, "pids", hang)
    assert log_fifo.written_by_root_alone(pipe_directory, 0) is None


def test_no_fifo_proves_nothing(root: Path) -> None:
    assert log_fifo.written_by_root_alone(root, 0) is None


# -- what is noted


@pytest.mark.parametrize(("closed", "alone"), [(True, True), (True, False), (True, None), (False, True), (None, True)])
def test_what_is_not_proven_closed_is_noted_as_open(
    live: Host, monkeypatch: pytest.MonkeyPatch, closed: object, alone: object
) -> None:
    daemon = live.running()
    started_at = live.processes[daemon.pid].started_at
    monkeypatch.setattr(log_fifo, "is_closed", lambda directory: closed)
    monkeypatch.setattr(log_fifo, "written_by_root_alone", lambda directory, pid: alone)
    log_evidence.note(live.world, "0", live.pipe_root, daemon.pid, started_at)
    monkeypatch.undo()
    proven = bool(closed and alone)
    assert open_log.noted(live.world, "0", daemon.pid, started_at) is not proven


@pytest.fixture
def opened(live: Host) -> Host:
    """The host with a daemon into whose log everybody can write."""
    live.open_logs.add(live.running().pid)
    return live


def test_once_open_is_open_until_the_daemon_ends(opened: Host) -> None:
    health.health(opened.world)
    opened.open_logs.clear()
    assert only(opened, "daemon-log", WARNING)
    opened.kill(SERVER)
    opened.restart()
    assert judge(opened).check("0", "daemon-log").level == OK


def test_a_look_that_is_not_healths_writes_nothing(opened: Host) -> None:
    before = opened.snapshot()
    judge(opened)
    assert opened.snapshot() == before


# -- what is made of it


def test_a_closed_log_is_no_finding(live: Host) -> None:
    assert amiss(judge(live)) == {}
    assert judge(live).check("0", "daemon-log").level == OK


def test_an_open_log_is_a_warning_that_says_what_to_do(opened: Host) -> None:
    check = only(opened, "daemon-log", WARNING)
    assert f"systemctl restart {UNIT}" in check.remedy
    assert names(opened) == ["open-log"]


def test_a_log_that_cannot_be_looked_at_is_unknown(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_fifo, "is_closed", lambda directory: None)
    assert amiss(judge(live)) == {"daemon-log": UNKNOWN}


def forge_loop(daemon: FakeDaemon) -> None:
    for pid in (71, 72, 73):
        daemon.write("Control", pid, f"Starting new server {pid} for user 1000")
        daemon.write("Control", pid, f"Server {pid} exited with status 1")


def forge_fault(daemon: FakeDaemon) -> None:
    (client,) = daemon.servers[SERVER].clients
    daemon.write("Server", SERVER, f"Client {{PID: {client}, Context ID: 0}} encountered a fatal GPU error")


def forge_hidden(daemon: FakeDaemon) -> None:
    daemon.write("Control", daemon.pid, "NEW CLIENT 0 from user 1000: Server already exists")


def forge_version(daemon: FakeDaemon) -> None:
    daemon.write("Control", daemon.pid, "CUDA MPS Control binary version: 12000")


def forge_pending(daemon: FakeDaemon) -> None:
    (client,) = daemon.servers[SERVER].clients
    daemon.write(
        "Control", daemon.pid, f"NEW CLIENT {client} from user 1000: Server is not ready, push client to pending list"
    )


@pytest.mark.parametrize(
    ("forge", "check", "trusted"),
    [
        (forge_loop, "server-exits", CRITICAL),
        (forge_fault, "client-faults", WARNING),
        (forge_hidden, "client-pids", WARNING),
        (forge_version, "daemon-version", WARNING),
        (forge_pending, "waiting-clients", WARNING),
    ],
)
def test_lines_that_others_can_have_written_warn_at_most_and_say_so(
    live: Host, forge: Callable[[FakeDaemon], None], check: str, trusted: str
) -> None:
    forge(live.running())
    found = judge(live).check("0", check)
    assert (found.level, found.facts.get("log_trusted")) == (trusted, None)
    sure = [one.certainty for one in ask(live).diagnoses if one.name in {reason.cause for reason in found.reasons}]
    assert "possible" not in sure
    live.open_logs.add(live.running().pid)
    found = judge(live).check("0", check)
    assert (found.level, found.facts["log_trusted"]) == (WARNING, False)
    causes = {reason.cause for reason in found.reasons}
    assert {one.certainty for one in ask(live).diagnoses if one.name in causes} <= {"possible"}


def test_a_forged_limit_of_a_server_is_neither_believed_nor_mended(opened: Host) -> None:
    daemon = opened.running()
    daemon.write("Server", SERVER, "Device pinned memory limit for device 0 set to 0x1 bytes")
    daemon.write("Control", daemon.pid, "Cmd:set_default_device_pinned_mem_limit 0 1M")
    assert judge(opened).check("0", "memory-limit").level == OK
    opened.open_logs.clear()
    assert judge(opened).check("0", "memory-limit").level == CRITICAL


def test_a_forged_line_ends_no_client(opened: Host) -> None:
    """Another's client is made to look as if it had a tiny limit and held more."""
    opened.desired(
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        LimitBypass="terminate",
        LimitBypassGraceSec=5,
    )
    daemon = opened.running()
    daemon.write("Server", SERVER, "Device pinned memory limit for device 0 set to 0x100000 bytes")
    victim = connect(opened, daemon)
    assert opened.nvml.held_mib is not None
    opened.nvml.held_mib[uuid(0)][victim] = 900
    for _ in range(3):
        found = health.health(opened.world)
        opened.clock.pass_by(60)
        assert found.actions.get("0", []) == []
    assert daemon.terminated == []
    opened.open_logs.clear()
    (opened.places.runtime("0") / "open-log.json").unlink()
    health.health(opened.world)
    opened.clock.pass_by(60)
    health.health(opened.world)
    assert daemon.terminated == [victim], "with a log that is proof it is ended"


def test_a_client_that_says_so_itself_is_still_ended(opened: Host) -> None:
    """Its own environment is evidence, whoever writes the log."""
    opened.desired(
        DeviceMemoryLimit="4G", ComputeMode="exclusive_process", LimitBypass="terminate", LimitBypassGraceSec=5
    )
    daemon = opened.running()
    client = connect(opened, daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="nonsense")
    health.health(opened.world)
    opened.clock.pass_by(60)
    health.health(opened.world)
    assert daemon.terminated == [client]


def test_a_client_without_a_line_of_its_limit_is_not_accused(opened: Host) -> None:
    daemon = opened.running()
    daemon.log[:] = [line for line in daemon.log if "memory limit" not in line]
    assert judge(opened).check("0", "client-limits").level == UNKNOWN
    opened.open_logs.clear()
    assert judge(opened).check("0", "client-limits").level == CRITICAL
