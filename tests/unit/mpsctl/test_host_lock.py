"""One run at a time changes a host; the commands of the units never wait; a lock ends with who has it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from fakes import Host
from mpsctl.adapters import bytecode, locks
from mpsctl.adapters.systemd import Systemctl
from mpsctl.converge import reconcile, removal
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request
from mpsctl.lifecycle import health, host_lock

NOW_S = 0.0
"""A deadline that has passed: whoever finds a lock taken does not wait."""


def converge(host: Host, check: bool) -> Answer:
    desired = [{"name": "0", "conf": host.conf(DeviceMemoryLimit="4G", ComputeMode="exclusive_process")}]
    request = Request.from_json({"format": 2, "files": [], "instances": desired})
    return reconcile.reconcile(host.world, request, check)


def take_away(host: Host, check: bool) -> Answer:
    return removal.remove(host.world, check)


RUNS = [converge, take_away]
Run = Callable[[Host, bool], Answer]


def take(host: Host) -> int:
    return locks.take(host.places.host_lock, NOW_S)


@pytest.fixture
def deployed(host: Host) -> Host:
    converge(host, False)
    host.desired(DeviceMemoryLimit="6G", ComputeMode="exclusive_process")  # something to do for either run
    return host


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_a_run_beside_another_changes_nothing_and_names_its_process(deployed: Host, run: Run, check: bool) -> None:
    lock = take(deployed)
    pid = deployed.process("python3", "/usr/bin/python3 -IS /usr/local/bin/mpsctl reconcile --json")
    os.write(lock, f"{pid}\n".encode())
    before = deployed.snapshot()
    answer = run(deployed, check)
    assert answer.error is not None
    assert f"pid {pid} (/usr/bin/python3 -IS /usr/local/bin/mpsctl reconcile --json)" in answer.error
    assert "nothing was changed" in answer.error
    assert not answer.changed
    assert deployed.snapshot() == before
    os.close(lock)
    assert run(deployed, check).error is None


@pytest.mark.parametrize("run", RUNS)
def test_a_run_goes_on_when_the_other_has_ended(deployed: Host, run: Run) -> None:
    lock = take(deployed)
    deployed.clock.when(host_lock.BOUND_S / 2, lambda: os.close(lock))
    answer = run(deployed, False)
    assert answer.changed
    assert answer.error is None


@pytest.mark.parametrize("run", RUNS)
def test_a_look_shows_the_host_as_the_other_run_left_it(deployed: Host, run: Run) -> None:
    """Or the next run of a playbook would find nothing to do on a host that the killed one still changes."""
    told = run(deployed, True).actions
    lock = take(deployed)

    def end() -> None:
        """The other run writes a file that either run has to deal with."""
        deployed.places.conf("1").write_text(deployed.conf("1"))
        os.close(lock)

    deployed.clock.when(host_lock.BOUND_S / 2, end)
    assert run(deployed, True).actions != told


@pytest.mark.parametrize("run", RUNS)
def test_looks_do_not_wait_for_each_other(deployed: Host, run: Run) -> None:
    with deployed.places.host_lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert run(deployed, True).error is None
    assert deployed.clock.slept_s == []


@pytest.mark.parametrize("run", RUNS)
def test_a_look_leaves_no_trace(host: Host, run: Run) -> None:
    run(host, True)
    assert not host.places.host_lock.parent.exists()


def test_the_commands_of_the_units_never_wait(deployed: Host) -> None:
    lock = take(deployed)
    deployed.stop()
    deployed.start()
    deployed.restart()
    assert health.health(deployed.world).report.word("0") == "ok"
    os.close(lock)


@pytest.mark.parametrize("run", RUNS)
def test_no_lock_stays(host: Host, run: Run) -> None:
    run(host, False)
    assert not host.places.host_lock.exists()
    os.close(take(host))


def test_a_bare_host_stays_bare(host: Host) -> None:
    assert not take_away(host, False).changed
    assert not host.places.host_lock.parent.exists()


def test_only_root_can_have_it(host: Host) -> None:
    lock = take(host)
    assert host.places.host_lock.stat().st_mode & 0o777 == 0o600
    os.close(lock)


HOLDER = """\
import os, subprocess, sys
from pathlib import Path
from mpsctl.adapters import locks
from mpsctl.adapters.systemd import Systemctl
lock = locks.take(Path(sys.argv[1]), 0)
os.set_inheritable(lock, True)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=False)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_run_has_the_turn_until_what_it_started_ends(root: Path) -> None:
    path = root / "turn"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    duplicate = os.open(f"/proc/{child}/fd/0", os.O_RDONLY)  # keeps its pipe's end in view
    try:
        with pytest.raises(locks.Taken):
            locks.take(path, NOW_S)
        # Its standard input closes with the holder: the child ends by itself.
        holder.kill()
        holder.wait()
    finally:
        os.close(duplicate)
    pidfd = os.pidfd_open(child) if os.path.exists(f"/proc/{child}") else None
    if pidfd is not None:
        import select

        select.select([pidfd], [], [])
        os.close(pidfd)
    os.close(locks.take(path, NOW_S))


def test_who_waited_for_a_file_that_was_removed_waits_for_its_successor(root: Path) -> None:
    path = root / "turn"
    first = locks.take(path, NOW_S)
    taken: list[int] = []

    def sleep(_: float) -> None:
        if not taken:
            path.unlink()
            os.close(first)
            taken.append(locks.take(path, NOW_S))

    clock = iter(range(100))
    with pytest.raises(locks.Taken):
        locks.take(path, 5, lambda: next(clock), sleep)
    os.close(taken[0])


def test_what_a_killed_run_started_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = take(host)
    os.write(lock, b"4711\n")
    child = host.process("systemctl", "systemctl start mps-control@0.service")
    monkeypatch.setattr("mpsctl.adapters.procfs.has_open", lambda pid, path: pid == child)
    error = converge(host, False).error
    assert error is not None
    assert f"pid 4711 was interrupted, and what it started is at work: pid {child} (systemctl start" in error
    os.close(lock)


@pytest.mark.parametrize(("act", "expected"), [(True, True), (False, False)])
def test_a_systemctl_that_acts_has_the_turn_as_well(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: bool, expected: bool
) -> None:
    """Should the run be killed, its jobs come to their end before the next run looks."""
    script = tmp_path / "systemctl"
    script.write_text(f"#!/bin/sh\nreadlink /proc/$$/fd/* >{tmp_path}/open || :\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with host_lock.taken(host.world):
        if act:
            assert Systemctl().act("start", ["mps-control@0.service"]) is None
        else:
            Systemctl().job("mps-control@0.service")
        has_it = str(host.places.host_lock) in (tmp_path / "open").read_text().splitlines()
    assert has_it == expected


def test_who_waits_needs_nothing_more_of_a_program_that_the_other_run_removes(tmp_path: Path) -> None:
    """The kept bytecode goes with a removal, and a zip that is gone can be imported from no more."""
    package = tmp_path / "mpsctl"
    shutil.copytree(Path(bytecode.__file__).parents[1], package)
    program = (
        "import shutil, sys; sys.path.insert(0, sys.argv[1])\n"
        "from mpsctl.adapters import bytecode\n"
        "from pathlib import Path\n"
        "paths = [p.relative_to(sys.argv[1]).with_suffix('') for p in Path(sys.argv[1]).rglob('*.py')]\n"
        "names = ['.'.join(p.parts) for p in paths]\n"
        "bytecode.load_all(); shutil.rmtree(sys.argv[1] + '/mpsctl')\n"
        "missing = [n for n in names if n.removesuffix('.__init__') not in sys.modules]\n"
        "assert missing == ['mpsctl.__main__'], missing\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd="/")
