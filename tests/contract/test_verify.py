"""Judgements of NVIDIA's own daemons 535, 550 and 555: what they rely on, and that nothing makes a look hang."""

from __future__ import annotations

import signal

import pytest

from mpsctl.checks.judgement import VERIFY
from mpsctl.checks.report import report
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, Check
from mpsctl.observe.host import look
from real_daemon import RealDaemonHost, Running, Starter, held_session


@pytest.fixture
def daemon(host: RealDaemonHost) -> Running:
    """Instance 0 in the desired state, its daemon a real one."""
    host.desired(DeviceMemoryLimit="900M", ActiveThreadPercentage=50, ComputeMode="exclusive_process")
    host.places.root.chmod(0o755)
    unit = host.systemd.unit("mps-control@0.service")
    unit.enabled = True
    running = host.bring_up()
    unit.active_state, unit.sub_state, unit.invocation = "active", "running", "0"
    return running


def checks(host: RealDaemonHost) -> dict[str, Check]:
    seen = look(host.world, isolated=True, deep=True)
    return {one.name: one for one in report(seen, VERIFY).instances["0"]}


@pytest.mark.usefixtures("daemon")
def test_a_daemon_in_the_desired_state_passes(host: RealDaemonHost) -> None:
    found = checks(host)
    passed = {name for name, one in found.items() if one.level == OK}
    # Its parent is this test, not systemd.
    assert set(found) - passed == {"main-process"}, [one for one in found.values() if one.level != OK]


@pytest.mark.parametrize("name", ["log", "control_lock"])
def test_files_that_a_cleaner_removes(host: RealDaemonHost, daemon: Running, name: str) -> None:
    (daemon.pipe_directory / name).unlink()
    found = checks(host)
    assert found["pipe-directory-files"].level == CRITICAL
    assert found["daemon-answers"].level == OK


def test_a_stopped_daemon(host: RealDaemonHost, daemon: Running) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    found = checks(host)
    assert (found["daemon-answers"].level, found["memory-limit"].level) == (CRITICAL, UNKNOWN)
    assert "state T" in found["daemon-answers"].found


def test_a_held_front_end(host: RealDaemonHost, daemon: Running) -> None:
    with held_session(daemon) as holder:
        found = checks(host)
    assert (found["daemon-answers"].level, found["memory-limit"].level) == (CRITICAL, UNKNOWN)
    assert holder in found["daemon-answers"].facts["holders"]  # type: ignore[operator]


def test_a_second_daemon_on_the_same_directory(host: RealDaemonHost, daemon: Running, start: Starter) -> None:
    (daemon.pipe_directory / "control_lock").unlink()
    second = start(daemon.pipe_directory)
    found = checks(host)
    assert found["orphan-daemon"].level == CRITICAL
    assert second.pid in found["orphan-daemon"].facts["pids"]  # type: ignore[operator]
