"""The daemon's log as evidence: only while nobody else can have written it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest

from consulting import ask, names
from fakes import FakeDaemon, Host, uuid
from judging import SERVER, UNIT, amiss, connect, judge, only
from mpsctl.adapters import log_fifo
from mpsctl.lifecycle import apply, health
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


# -- what is noted


def test_a_log_that_was_open_to_others_for_a_moment_is_noted_by_the_next_reload(live: Host) -> None:
    daemon = live.running()
    started_at = live.processes[daemon.pid].started_at
    assert not open_log.noted(live.world, "0", daemon.pid, started_at), "as it was started"
    (live.own() / "log").chmod(0o666)
    apply.apply(live.world, "0", daemon.pid)
    assert open_log.noted(live.world, "0", daemon.pid, started_at)
    daemon = live.restart()
    assert not open_log.noted(live.world, "0", daemon.pid, live.processes[daemon.pid].started_at)


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
    monkeypatch.setattr(log_fifo, "is_closed", lambda directory, public: None)
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
