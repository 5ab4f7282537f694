"""Runs that are interrupted at any step: nothing is half-written or goes unnoticed, the next run makes it whole."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import pytest

from fakes import Host
from judging import amiss, judge
from mpsctl.adapters import files, locks, procfs
from mpsctl.checks.judgement import STATUS
from mpsctl.converge import reconcile, removal
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request
from mpsctl.model.finding import CRITICAL
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS
from mpsctl.model.places import FINGERPRINT
from mpsctl.store import record, saved_compute_modes

DEAD_PID = 1 << 22
"""Above every process id that Linux gives."""


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches a SIGKILL."""


def unit_text(more: str = "") -> str:
    return f"{FINGERPRINT}\n[Service]\nExecStart=@NVIDIA_CUDA_MPS_CONTROL@ -f\n{more}"


def conf(host: Host, name: str, **values: object) -> str:
    return host.conf(name, {"ComputeMode": EXCLUSIVE_PROCESS, "DeviceMemoryLimit": "4G", **values})


def desired(host: Host, confs: dict[str, str], unit: str = "") -> Request:
    path = host.places.units / "mps-control@.service"
    return Request.from_json(
        {
            "format": 2,
            "files": [{"path": str(path), "content": unit_text(unit), "mode": "0644"}],
            "instances": [{"name": name, "conf": text} for name, text in confs.items()],
        }
    )


def run(host: Host, request: Request, check: bool = False) -> Answer:
    program = host.places.root / "sent"
    program.write_bytes(b"a program")
    return reconcile.reconcile(host.world, request, check, program)


DESIRED: dict[str, Callable[[Host], Request]] = {
    "first": lambda host: desired(host, {name: conf(host, name) for name in "01"}),
    "limits": lambda host: desired(host, {name: conf(host, name, DeviceMemoryLimit="6G") for name in "01"}),
    "same getter": lambda host: desired(host, {name: conf(host, name, DeviceMemoryLimit="4100M") for name in "01"}),
    "another GPU": lambda host: desired(host, {"0": conf(host, "0", GPUs=2), "1": conf(host, "1")}),
    "one less": lambda host: desired(host, {"1": conf(host, "1")}),
    "one more": lambda host: desired(host, {name: conf(host, name) for name in "012"}),
    "another unit": lambda host: desired(host, {name: conf(host, name) for name in "01"}, "Nice=1\n"),
    "removed": lambda host: Request((), (), remove=True),
}


def cut(monkeypatch: pytest.MonkeyPatch, host: Host, steps: int) -> None:
    """Kill this program before its step ``steps`` + 1: a file written, a unit acted on, a mode set, a file removed."""
    left, in_systemd, act = [steps], list[bool](), host.systemd.act

    def counted(really: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **more: Any) -> Any:
            # The lock goes with this process either way, and what systemd does is not killed with it.
            if arguments[0] == host.places.host_lock or in_systemd:
                return really(*arguments, **more)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            try:
                in_systemd.extend([True] * (really == act))
                return really(*arguments, **more)
            finally:
                in_systemd.clear()

        return step

    monkeypatch.setattr(files, "write", counted(files.write))
    monkeypatch.setattr(host.systemd, "act", counted(host.systemd.act))
    monkeypatch.setattr(host.nvml, "set_compute_mode", counted(host.nvml.set_compute_mode))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


def unnoticed(host: Host) -> list[int]:
    """GPUs that nobody can use, of which `mpsctl status` does not say so."""
    serving = {uuid for pid in host.processes for uuid in _devices(host, pid)}
    stuck = [gpu for gpu in host.nvml.all if gpu.compute_mode == EXCLUSIVE_PROCESS and gpu.uuid not in serving]
    found = judge(host, verb=STATUS)
    told = set(found.check(None, "modes-without-daemon").facts.get("gpus", ()))  # type: ignore[call-overload]
    for name, one in found.facts.instances.items():
        if found.check(name, "compute-mode").level == CRITICAL:
            told |= {device.uuid for device in one.devices}
    return [gpu.index for gpu in stuck if gpu.uuid not in told]


def _devices(host: Host, pid: int) -> Sequence[str]:
    environment = host.processes[pid].environment or {}
    return environment.get("CUDA_VISIBLE_DEVICES", "").split(",")


@pytest.mark.parametrize("desired", DESIRED)
def test_a_run_that_is_interrupted_before_any_of_its_steps_is_made_whole_by_the_next(
    host: Host, monkeypatch: pytest.MonkeyPatch, desired: str
) -> None:
    for steps in range(200):
        assert run(host, DESIRED["first"](host)).error is None
        with monkeypatch.context() as patch:
            cut(patch, host, steps)
            partial_files = True
            with suppress(Killed):
                run(host, DESIRED[desired](host))
                partial_files = False
        assert unnoticed(host) == [], steps
        os.close(locks.take(host.places.host_lock, 0))
        assert run(host, DESIRED[desired](host)).error is None, steps
        _assert_as(host, desired)
        assert not run(host, DESIRED[desired](host), check=True).changed, steps
        if not partial_files:
            return
    pytest.fail("it never came to its end")


def _assert_as(host: Host, desired: str) -> None:
    modes = [gpu.compute_mode == EXCLUSIVE_PROCESS for gpu in host.nvml.all]
    expected = {"another GPU": [1, 2], "one less": [1], "one more": [0, 1, 2], "removed": []}.get(desired, [0, 1])
    assert modes == [index in expected for index in range(4)]
    if desired == "removed":
        assert not (host.places.root / "run/mps-fleet").exists()
        assert not host.places.program.exists()
        return
    assert amiss(judge(host, verb=STATUS)) == {"health-timer": "warning"}


def test_a_gpu_that_no_instance_has_any_more_is_told_and_its_mode_brought_back(host: Host) -> None:
    request = DESIRED["another GPU"](host)
    run(host, DESIRED["first"](host))
    run(host, request)
    # As a run leaves it that is interrupted between the restart and the GPU that was freed by it.
    saved_compute_modes.record(host.world, host.nvml.gpu(0))
    host.nvml.set_compute_mode(host.nvml.gpu(0), EXCLUSIVE_PROCESS)
    assert judge(host, verb=STATUS).check(None, "modes-without-daemon").facts["gpus"] == [host.nvml.gpu(0).uuid]
    told = run(host, request, check=True)
    assert [step["kind"] for step in told.steps] == ["restore-compute-mode"]
    assert told.warnings == [], "what the run mends is nothing for people"
    assert run(host, request).error is None
    assert host.nvml.gpu(0).compute_mode == DEFAULT


@pytest.mark.parametrize("how", ["damaged", "not ours", "gone"])
def test_a_gpu_whose_daemon_runs_keeps_its_mode_whatever_became_of_its_file(host: Host, how: str) -> None:
    run(host, desired(host, {name: conf(host, name) for name in "01"}))
    path = host.places.conf("1")
    path.write_text(f"{FINGERPRINT}\nhalf a fi" if how == "damaged" else "\0" * 100)
    if how == "gone":
        path.unlink()
    run(host, desired(host, {"0": conf(host, "0")}))
    assert host.running("1").pid in host.processes
    assert host.nvml.gpu(1).compute_mode == EXCLUSIVE_PROCESS


def test_a_mode_that_somebody_sets_on_a_gpu_that_is_ours_no_longer_is_left(host: Host) -> None:
    run(host, DESIRED["first"](host))
    run(host, DESIRED["one less"](host))
    assert host.nvml.gpu(0).compute_mode == DEFAULT
    host.nvml.set_compute_mode(host.nvml.gpu(0), EXCLUSIVE_PROCESS)
    assert not run(host, DESIRED["one less"](host)).changed
    assert host.nvml.gpu(0).compute_mode == EXCLUSIVE_PROCESS


# -- a reload that goes on after its run was killed


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("limit", ["4G", "6G"])
def test_an_instance_that_is_being_reloaded_is_reloaded_again_and_not_taken_for_stopped(
    host: Host, limit: str, atomic: bool
) -> None:
    """What that reload read of the file cannot be told, even where the limits are in the desired state just now."""
    run(host, DESIRED["first"](host))
    unit = host.systemd.unit("mps-control@0.service")
    unit.active_state, unit.sub_state = "reloading", "reload"
    really = host.systemd.carry_out

    def carry_out(verb: str, name: str) -> Optional[str]:
        if verb == "reload":
            unit.active_state, unit.sub_state = "active", "running"
        return really(verb, name)

    host.systemd.carry_out = carry_out
    host.systemd.acts.clear()
    made = desired(host, {"0": conf(host, "0", DeviceMemoryLimit=limit), "1": conf(host, "1")})
    answer = run(host, Request(made.files, made.instances, atomic=atomic))
    assert (answer.error, answer.refused) == (None, None)
    assert host.systemd.acts == ["reload mps-control@0.service"]
    known = record.read(host.world, "0")
    assert known is not None
    assert known.limits_mib == (int(limit[0]) << 10,)


# -- halves of files

WRITER = """\
import os, signal, sys
from pathlib import Path
from mpsctl.adapters import files
def stop(descriptor):
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()
os.fsync = stop
files.write(Path(sys.argv[1]), "half")
"""


def writer(path: Path, what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def killed_while_writing(path: Path) -> Path:
    """What a process leaves that SIGKILL met while it wrote the file."""
    process = writer(path, "kill")
    process.communicate()
    return path.with_name(f".{path.name}.{process.pid}.new")


@pytest.mark.parametrize("before", [None, "old"])
def test_a_killed_write_leaves_the_old_file_and_the_next_one_removes_the_half(
    root: Path, before: Optional[str]
) -> None:
    path = root / "0.conf"
    if before is not None:
        path.write_text(before)
    left = killed_while_writing(path)
    assert left.exists()
    assert files.read_text(path) == before
    files.write(path, "half and the rest")
    assert list(root.iterdir()) == [path]
    assert path.read_text() == "half and the rest"


def test_a_half_that_is_not_one_of_this_file_stays(root: Path) -> None:
    left = root / f".0.conf.{DEAD_PID}.new"
    left.write_text("somebody else's")
    files.write(root / "0.conf", "new")
    assert left.read_text() == "somebody else's"


def test_what_another_process_is_writing_is_left_to_it(root: Path) -> None:
    path = root / "0.conf"
    process = writer(path, "wait")
    assert process.stdout is not None
    process.stdout.readline()
    files.write(path, "new")
    process.communicate()
    assert process.returncode == 0
    assert path.read_text() == "half"
    assert list(root.iterdir()) == [path]


def test_a_process_that_has_the_number_of_a_dead_writer_keeps_no_half(root: Path) -> None:
    left = root / f".0.conf.{os.getppid()}.new"
    left.write_text("half")
    assert files.partial_files(root) == [left]


def ours(host: Host) -> list[Path]:
    places = host.places
    return [
        places.conf("0"),
        places.conf("never-begun"),
        places.units / "mps-control@.service",
        places.program,
        places.measured,
        saved_compute_modes.directory(host.world) / host.nvml.gpu(0).uuid,
        places.cache / "mpsctl-0-cpython-311.zip",
    ]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("removing", [False, True])
def test_halves_of_our_files_are_told_and_removed_and_nothing_else_is(host: Host, number: int, removing: bool) -> None:
    run(host, DESIRED["first"](host))
    path = ours(host)[number]
    path.parent.mkdir(parents=True, exist_ok=True)
    left = path.with_name(f".{path.name}.{DEAD_PID}.new")
    left.write_text("#!/usr/bin/python3 -I" if path == host.places.program else FINGERPRINT[:9])
    others = [
        host.places.configuration / ".0.conf.swp",
        host.places.configuration / ".0.conf.new",
        host.places.configuration / f".notes.{DEAD_PID}.new",
        host.places.units / f".nginx.service.{DEAD_PID}.new",
        host.places.program.with_name(f".other.{DEAD_PID}.new"),
        *(one.with_name(f".{one.name}.{DEAD_PID - 1}.new") for one in ours(host)[:4]),  # of our very names
    ]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("somebody else's")
    request = DESIRED["removed" if removing else "first"](host)
    told = run(host, request, check=True)
    assert left.exists()
    if not removing:
        assert told.actions == [f"remove {left}: a run was interrupted"]
    assert run(host, request).error is None
    assert not left.exists()
    assert [other.read_text() for other in others] == ["somebody else's"] * len(others)
    assert not run(host, request, check=True).changed


def test_a_removal_finds_what_alone_is_left(host: Host) -> None:
    left = host.places.conf("0").with_name(f".0.conf.{DEAD_PID}.new")
    left.parent.mkdir(parents=True)
    left.write_text(FINGERPRINT[:7])
    assert removal.remove(host.world, check=False).error is None
    assert not left.parent.exists()


def test_who_has_a_file_open_is_told(root: Path) -> None:
    path = root / "file"
    with path.open("w"):
        assert procfs.has_open(os.getpid(), path)
    assert not procfs.has_open(os.getpid(), path)
    assert not procfs.has_open(DEAD_PID, path)
