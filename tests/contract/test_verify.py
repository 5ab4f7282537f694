"""verify against NVIDIA's own control daemons 535, 550 and 555: what it relies on, and that nothing makes it hang."""

from __future__ import annotations

import signal

import pytest

from mpsctl.checks import verify as proofs
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, Check
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
    return {one.name: one for one in proofs.verify(host.world).instances["0"]}


@pytest.mark.usefixtures("daemon")
def test_a_daemon_in_the_desired_state_passes(host: RealDaemonHost, version: int) -> None:
    found = checks(host)
    passed = {name for name, one in found.items() if one.level == PASS}
    # Its parent is this test, not systemd; and before 550 everybody may change limits.
    amiss = {"main-process"} | ({"limits-guarded"} if version < 550 else set())
    assert set(found) - passed == amiss, [one for one in found.values() if one.level != PASS]


@pytest.mark.parametrize("name", ["log", "control_lock"])
def test_files_that_a_cleaner_removes(host: RealDaemonHost, daemon: Running, name: str) -> None:
    (daemon.pipe_directory / name).unlink()
    found = checks(host)
    assert found["pipe-directory-files"].level == FAIL
    assert found["daemon-answers"].level == PASS


def test_a_stopped_daemon(host: RealDaemonHost, daemon: Running) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    found = checks(host)
    assert (found["daemon-answers"].level, found["memory-limit"].level) == (FAIL, CANNOT_TELL)
    assert "state T" in found["daemon-answers"].found


def test_a_held_front_end(host: RealDaemonHost, daemon: Running) -> None:
    with held_session(daemon) as holder:
        found = checks(host)
    assert (found["daemon-answers"].level, found["memory-limit"].level) == (FAIL, CANNOT_TELL)
    assert f"pid {holder} " in found["daemon-answers"].found


def test_a_second_daemon_on_the_same_directory(host: RealDaemonHost, daemon: Running, start: Starter) -> None:
    (daemon.pipe_directory / "control_lock").unlink()
    second = start(daemon.pipe_directory)
    found = checks(host)
    assert found["orphan-daemon"].level == FAIL
    assert f"pid {second.pid} " in found["orphan-daemon"].found
