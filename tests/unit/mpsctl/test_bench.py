"""Sweeps that run: built-in work on a simulated libcuda, commands of the user, and that nothing outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest

import simulated_cuda
from fakes import Host, Temporary, h200, uuid
from mpsctl.adapters import cuda, cuda_work, procfs, worker_pool
from mpsctl.adapters.stop_request import Stop
from mpsctl.cli import main as command_line
from mpsctl.measuring import bench, loopback
from mpsctl.measuring.bench import Request
from mpsctl.measuring.bench_results import Report
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Load
from mpsctl.model.quantity import parse
from mpsctl.store.world import World

QUICK: dict[str, Any] = {"seconds": 0.2, "rounds": 1, "processes": [1, 2]}
REAL = {name: getattr(procfs, name) for name in ("pids", "environment", "alive", "uid")}
MARK = "MPSCTL_BENCH_TEST"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_cuda.build(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def gpu(host: Host, library: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose CUDA processes find the simulated library; the GPU is idle."""
    monkeypatch.setattr(cuda, "BARE_ENVIRONMENT", {**cuda.BARE_ENVIRONMENT, "LD_LIBRARY_PATH": str(library)})
    monkeypatch.setattr(bench, "_WARM_UP_S", 0.02)
    host.nvml.loads = {uuid(index): Load(1000, 142_000, 64) for index in range(4)}
    return host


def sweep(host: Host, stop: Optional[Stop] = None, progress: Any = None, **values: Any) -> tuple[Report, Temporary]:
    temporary = Temporary(host)
    world: World = replace(host.world, temporary_daemon=temporary.daemon)
    request = Request(**{**QUICK, "gpu": "0", **values})
    return bench.bench(world, request, stop or Stop(), progress or (lambda number, report: None)), temporary


def series(report: Report) -> list[str]:
    return list(dict.fromkeys(str(run.step.series) for run in report.runs))


def good(report: Report) -> None:
    assert [run.problem for run in report.runs] == [None] * len(report.runs)
    assert all(run.throughput > 0 for run in report.runs)


# -- built-in work


@pytest.mark.parametrize("work", list(cuda_work.KINDS))
@pytest.mark.sentenceless
def test_built_in_work_runs_on_both_sides(gpu: Host, work: str) -> None:
    report, temporary = sweep(gpu, work=work)
    good(report)
    assert series(report) == ["time-sliced", "MPS"]
    assert [len(run.rates) for run in report.runs] == [1, 1, 2, 2]
    assert all(run.p99_ms and run.p50_ms and run.p99_ms >= run.p50_ms > 0 for run in report.runs)
    assert {run.memory_mib for run in report.runs} == {1000}
    assert {run.utilisation_percent for run in report.runs} == {64}
    [(directory, devices)] = temporary.given
    assert devices == (uuid(0),)
    assert temporary.ended == 1
    assert not directory.exists()
    assert gpu.nvml.modes_set == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("WRONG", "result is wrong"),
        ("NO_COMPILER", r"cuModuleLoadData returned 221"),
        ("FAIL", r"cuInit returned 805"),
    ],
)
def test_no_figure_comes_from_work_that_fails(
    gpu: Host, library: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    monkeypatch.setattr(cuda, "BARE_ENVIRONMENT", {**cuda.BARE_ENVIRONMENT, fault: "805"})
    with pytest.raises(NotReady, match=says):
        sweep(gpu)


def test_a_process_on_the_wrong_side_is_no_figure(gpu: Host) -> None:
    # What the time-sliced side must not find is there: the simulated library takes it for a daemon.
    (gpu.places.root / "run/mps-fleet/no-such-daemon").mkdir(parents=True)
    report, _ = sweep(gpu)
    sliced = [run for run in report.runs if not run.step.series.mps]
    assert sliced
    assert all("ran under MPS" in str(run.problem) for run in sliced)
    assert all(run.problem is None for run in report.runs if run.step.series.mps)
    assert report.verdict.pays is None


@pytest.mark.sentenceless
def test_percentages_and_limits_are_part_of_the_sweep(gpu: Host) -> None:
    report, temporary = sweep(gpu, threads=[50.0, 100.0], memory=[parse("4G"), parse("2G")], processes=[2])
    good(report)
    assert set(series(report)) == {
        "time-sliced",
        "MPS 50 %, 4096 MiB",
        "MPS 50 %, 2048 MiB",
        "MPS 100 %, 4096 MiB",
        "MPS 100 %, 2048 MiB",
    }
    assert gpu.daemons[temporary.given[0][0]].setters == ["set_default_device_pinned_mem_limit 0 4096M"]


def test_through_an_instance_nothing_but_clients_is_started(gpu: Host) -> None:
    gpu.desired(DeviceMemoryLimit="4G")
    gpu.start()
    before = list(gpu.running().setters)
    report, temporary = sweep(gpu, gpu=None, instance="0")
    good(report)
    assert temporary.given == []
    assert gpu.running().setters == before
    assert report.daemon == "instance 0"
    with pytest.raises(BadValue, match="at most the 4096 MiB"):
        sweep(gpu, gpu=None, instance="0", memory=[parse("5G")])


@pytest.mark.parametrize("values", [{"ExpectedClients": 2}, {"Shares": "each-user=2"}, {"Shares": "user:root=2"}])
def test_no_more_processes_than_the_front_door_has_places_for(gpu: Host, values: dict[str, object]) -> None:
    gpu.desired("0", OverExpected="wait", **values)
    gpu.start()
    with pytest.raises(BadValue, match="at most 2, as many as its front door has places free"):
        sweep(gpu, gpu=None, instance="0", processes=[1, 3])
    report, _ = sweep(gpu, gpu=None, instance="0", processes=[])
    good(report)
    assert {run.step.processes for run in report.runs} == {1, 2}


def test_where_no_place_is_free_nothing_is_begun(gpu: Host) -> None:
    gpu.desired(OverExpected="wait", Shares="user:root=0")
    gpu.start()
    with pytest.raises(NotReady, match="not tried: no place is free"):
        sweep(gpu, gpu=None, instance="0")


def test_nor_where_there_is_none_for_the_second_rank(gpu: Host) -> None:
    gpu.desired(OverExpected="wait", ExpectedClients=1)
    gpu.start()
    request = loopback.Request(instance="0", python=sys.executable)
    with pytest.raises(NotReady, match="not tried: 2 places are not free"):
        loopback.loopback(gpu.world, request, Stop(), lambda line, report: None)


def test_what_the_front_door_refused_is_said_with_the_error(
    gpu: Host, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.desired(ComputeMode="exclusive_process")
    gpu.start()
    monkeypatch.setattr(cuda, "BARE_ENVIRONMENT", {**cuda.BARE_ENVIRONMENT, "FAIL": "805"})
    entry = {"MPS_INSTANCE": "0", "MPS_EVENT": "refused", "MPS_REASON": "over-expected", "MESSAGE": "0: one too many"}
    gpu.systemd.entries.append({"_SYSTEMD_UNIT": "mps-front-door@0.service", **entry})
    with pytest.raises(NotReady, match=r"returned 805 .*; the front door refused \(CUDA error 805\): one too many"):
        sweep(gpu, gpu=None, instance="0")


def test_an_exclusive_gpu_has_no_time_sliced_side_and_keeps_its_mode(gpu: Host) -> None:
    gpu.desired(ComputeMode="exclusive_process")
    gpu.start()
    gpu.nvml.modes_set.clear()
    report, _ = sweep(gpu, gpu=None, instance="0")
    good(report)
    assert series(report) == ["MPS"]
    assert "no time-sliced side" in report.all_notes[0]
    assert gpu.nvml.modes_set == []
    assert report.verdict.pays is None


def test_a_busy_gpu_is_left_alone_unless_forced(gpu: Host) -> None:
    gpu.nvml.others_mib = {gpu.process("python3", "python3 train.py", pid=777): 9000}
    with pytest.raises(NotReady, match=r"pid 777.*--force"):
        sweep(gpu)
    good(sweep(gpu, force=True)[0])


def test_a_prohibited_gpu_is_left_alone(gpu: Host) -> None:
    gpu.nvml.all[0] = h200(0, compute_mode="prohibited")
    with pytest.raises(NotReady, match="prohibited"):
        sweep(gpu)


@pytest.mark.parametrize(
    ("free_mib", "values", "says"),
    [
        (142_000, {"processes": [1, 49]}, "at most 48"),
        (3_000, {"processes": [1, 8]}, "at most 5"),
        (3_000, {"processes": [4], "work": "memory"}, "at most 4"),
        (3_000, {"processes": [5], "work": "memory"}, "at most 4"),
    ],
)
def test_more_than_the_gpu_takes_is_refused(gpu: Host, free_mib: int, values: dict[str, Any], says: str) -> None:
    gpu.nvml.loads[uuid(0)] = Load(1, free_mib, 0)
    if values.get("processes") == [4]:
        good(sweep(gpu, **values)[0])
        return
    with pytest.raises(BadValue, match=says):
        sweep(gpu, **values)


@pytest.mark.parametrize(
    "values",
    [{"command": ["true"], "work": "compute"}, {"count_lines": True}, {"processes": [0]}, {"processes": [61]}],
)
def test_what_cannot_be_meant_is_refused_at_once(values: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        bench.refuse(Request(**values))


@pytest.mark.parametrize("loops", [1, 2, 77, 40_000])
def test_results_are_foretold_exactly(loops: int) -> None:
    from mpsctl.adapters import kernels

    for index in (0, 5, 1 << 20):
        x = index
        for _ in range(loops * kernels.STEPS_PER_LOOP):
            x = (x * 1_664_525 + 1_013_904_223) % (1 << 32)
        assert kernels.chained(index, 1_664_525, 1_013_904_223, loops) == x


# -- a command of the user


LINES = "while :; do echo line; sleep 0.01; done"


@pytest.mark.parametrize(
    "values",
    [
        {"command": ["sh", "-c", "sleep 0.05"]},
        {"command": ["sh", "-c", "sleep 0.3"]},  # longer than a run counts: its first completion is waited for
        {"command": ["sh", "-c", LINES], "count_lines": True},
    ],
)
@pytest.mark.sentenceless
def test_a_command_is_counted_by_completions_or_lines(gpu: Host, values: dict[str, Any]) -> None:
    gpu.nvml.held_mib = None  # NVML does not tell its clients
    report, _ = sweep(gpu, inherited=dict(os.environ), **values)
    good(report)
    assert [len(run.rates) for run in report.runs] == [1, 1, 2, 2]
    assert all(run.p50_ms is not None for run in report.runs)


def test_a_command_gets_its_side_by_its_environment(gpu: Host, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = ["sh", "-c", f'echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES $OWN" >> {said}; sleep 0.05']
    gpu.nvml.held_mib = None
    inherited = {**os.environ, "OWN": "kept", "CUDA_MPS_PIPE_DIRECTORY": "/elsewhere", "CUDA_VISIBLE_DEVICES": "7"}
    report, temporary = sweep(gpu, command=command, inherited=inherited, processes=[1])
    good(report)
    assert set(said.read_text().splitlines()) == {
        f"{gpu.places.root}/run/mps-fleet/no-such-daemon {uuid(0)} kept",
        f"{temporary.given[0][0]} {uuid(0)} kept",
    }


def test_a_command_that_never_becomes_a_client_says_nothing_of_mps(gpu: Host) -> None:
    report, _ = sweep(gpu, command=["sleep", "0.05"], inherited=dict(os.environ), processes=[1])
    assert [run.problem is None for run in report.runs] == [True, False]
    assert "no copy was seen as an MPS client" in str(report.runs[1].problem)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"command": ["sh", "-c", "echo bad luck >&2; exit 3"]}, "exit code 3: bad luck"),
        ({"command": ["/no/such/command"]}, "/no/such/command: No such file"),
        ({"command": ["sh", "-c", "kill -9 $$"]}, "signal 9"),
        ({"command": ["sh", "-c", "echo one"], "count_lines": True}, "must run on"),
    ],
)
def test_a_command_that_fails_is_told_and_the_sweep_goes_on(gpu: Host, values: dict[str, Any], says: str) -> None:
    report, _ = sweep(gpu, inherited=dict(os.environ), rounds=2, **values)
    assert len(report.runs) == 8
    assert says in str(report.runs[0].problem)
    assert [str(run.problem) for run in report.runs if run.step.round == 2] == [
        "left out, as it failed in an earlier round"
    ] * 4


def test_without_nvml_utilisation_cannot_be_told(gpu: Host) -> None:
    gpu.nvml.driver_up = False
    values: dict[str, Any] = {"command": ["sleep", "0.05"], "inherited": dict(os.environ), "gpu": None}
    with pytest.raises(NotReady, match="--force"):
        sweep(gpu, **values)
    report, temporary = sweep(gpu, force=True, **values)
    good(report)
    assert series(report) == ["time-sliced"]
    assert temporary.given == []
    assert {run.utilisation_percent for run in report.runs} == {None}
    assert any("cannot tell" in note for note in report.all_notes)


def test_without_nvml_an_instance_still_has_both_sides(gpu: Host) -> None:
    gpu.desired()
    gpu.start()
    gpu.nvml.driver_up = False
    report, _ = sweep(gpu, force=True, command=["sleep", "0.05"], inherited=dict(os.environ), gpu=None, instance="0")
    good(report)
    assert series(report) == ["time-sliced", "MPS"]


@pytest.mark.sentenceless
def test_another_daemon_is_measured_in_turn_with_the_one_in_question(gpu: Host, tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    report, _ = sweep(gpu, against=str(tmp_path), rounds=2)
    good(report)
    assert series(report) == ["time-sliced", "MPS", f"MPS of {tmp_path}"]
    compared = report.as_json()["against"]
    assert [(one["pipe_directory"], one["processes"], one["rounds"]) for one in compared] == [
        (str(tmp_path), 1, 2),
        (str(tmp_path), 2, 2),
    ]
    assert [line for line in report.all_notes if f"of the daemon at {tmp_path}" in line]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"against": "/no/such/directory"}, "expected the pipe directory of a daemon that runs"),
        ({"against": "/", "threads": [50.0]}, "--against with --threads"),
        ({"against": "/", "memory": [parse("4G")]}, "--against with --threads or --memory"),
    ],
)
def test_what_no_daemon_can_be_compared_with(values: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        bench.refuse(Request(**values))


# -- nothing is left


def marked(mark: str) -> list[int]:
    """The processes that carry a mark in their environment."""
    found = []
    for pid in REAL["pids"]():
        environment = REAL["environment"](pid)
        if environment and environment.get(MARK) == mark and REAL["alive"](pid):
            found.append(pid)
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A mark for the environment of one test's processes; what a failed test leaves is ended by its pid."""
    one = f"{os.getpid()}-{tmp_path}"
    yield one
    for pid in marked(one):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.02)


STUBBORN = "trap '' TERM; (setsid sleep 1000 &); echo up; while :; do sleep 0.05; echo on; done"
BENCH = """
import os, sys
sys.path[:0] = {path!r}
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import json
from mpsctl.cli import bench, options
from mpsctl.store.world import World
from mpsctl.model.errors import NotReady
from mpsctl.model.places import Places

@contextmanager
def no_nvml():
    raise NotReady("NVML does not answer")
    yield

world = World(places=Places(Path(sys.argv[1])), nvml=no_nvml)
sys.exit(bench.run(world, options.parser("bench").parse_args(["bench", *sys.argv[2:]])))
"""


def start_bench(root: Path, mark: str, *arguments: str) -> subprocess.Popen[str]:
    script = BENCH.format(path=[path for path in sys.path if path])
    return subprocess.Popen(
        [sys.executable, "-c", script, str(root), "--json", "--force", "--output", str(root / "out"), *arguments],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("command", [STUBBORN, "sleep 1000"])
@pytest.mark.sentenceless
def test_a_sweep_can_be_stopped_at_any_time_and_leaves_no_process(
    root: Path, mark: str, number: signal.Signals, command: str
) -> None:
    lines = ["--count-lines"] if command == STUBBORN else []
    process = start_bench(root, mark, "--processes", "3", "--seconds", "500", *lines, "--", "sh", "-c", command)
    until(lambda: len([pid for pid in marked(mark) if procfs.name(pid) == "sleep"]) >= 3)
    process.send_signal(number)
    said, _ = process.communicate()
    until(lambda: not marked(mark))
    if number == signal.SIGKILL:
        assert process.returncode == -number
        return
    assert process.returncode == 128 + number
    report = json.loads(said)
    assert report["stopped"] == number.name
    assert report["verdict"]["text"].startswith(f"Stopped by {number.name} after 0 of 3 runs.")
    assert json.loads((root / "out/bench.json").read_text())["stopped"] == number.name


def test_what_was_measured_before_the_stop_is_written(root: Path, mark: str) -> None:
    command = f'n=$(ls {root}/runs | wc -l); mktemp {root}/runs/XXXXXX; [ "$n" -lt 2 ] || exec sleep 1000'
    (root / "runs").mkdir()
    process = start_bench(root, mark, "--processes", "1", "--seconds", "0.1", "--", "sh", "-c", command + "; sleep 0.2")
    out = root / "out/bench.json"
    until(lambda: out.exists() and any(procfs.command(pid) == "sleep 1000" for pid in marked(mark)))
    process.terminate()
    said, _ = process.communicate()
    report = json.loads(said)
    assert report["runs"][0]["throughput"] > 0
    assert 1 <= len(report["runs"]) < report["steps"]
    assert json.loads(out.read_text())["runs"] == report["runs"]
    assert marked(mark) == []


@pytest.mark.parametrize("where", ["HANG", "HANG_LATER", None])
def test_built_in_work_ends_with_whoever_started_it(library: Path, where: Optional[str], mark: str) -> None:
    wanted = {"kind": "launch", "uid": None, "gid": None, "loops": 100, "multiprocessors": 132, "life_s": 500}
    script = (
        f"import sys, os, json, time; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
        "from mpsctl.adapters import worker_pool, cuda, stop_request as stop\n"
        f"wanted = json.loads(sys.argv[1]); wanted['parent'] = os.getpid()\n"
        "commands = [cuda.program('cuda_work', json.dumps(wanted))] * 2\n"
        "one = worker_pool.WorkerPool(commands, dict(os.environ), stop.Stop())\n"
        + (
            "print('up', flush=True); time.sleep(1000)"
            if where
            else "one.hear(60); now = time.monotonic()\n"
            "one.go(now, now + 900, now + 900); print('up', flush=True); time.sleep(1000)"
        )
    )
    environment = {**os.environ, MARK: mark, "LD_LIBRARY_PATH": str(library), **({where: "1"} if where else {})}
    process = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(wanted)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    until(lambda: len(marked(mark)) == 3)
    process.kill()
    process.communicate()
    until(lambda: not marked(mark))


def test_a_stop_during_built_in_work_ends_it_and_its_daemon(gpu: Host) -> None:
    stop = Stop()

    def progress(number: int, report: Report) -> None:
        if number == 2:
            stop.request(signal.SIGTERM)

    report, temporary = sweep(gpu, stop, progress)
    assert (len(report.runs), report.steps, report.stopped) == (2, 4, "SIGTERM")
    assert temporary.ended == 1
    assert not temporary.given[0][0].exists()


def test_a_worker_pool_that_says_nothing_is_given_up(library: Path) -> None:
    wanted = {"kind": "launch", "uid": None, "gid": None, "loops": 100, "life_s": 500, "parent": os.getpid()}
    environment = {**cuda.BARE_ENVIRONMENT, "LD_LIBRARY_PATH": str(library), "HANG": "1"}
    command = cuda.program("cuda_work", json.dumps(wanted))
    with (
        worker_pool.WorkerPool([command], environment, Stop()) as one,
        pytest.raises(worker_pool.Failed, match="said nothing within"),
    ):
        one.hear(0.3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_temporary_daemon_ends_with_whoever_started_it(tmp_path: Path, number: signal.Signals) -> None:
    binary, said = tmp_path / "nvidia-cuda-mps-control", tmp_path / "pid"
    binary.write_text(f"#!/bin/sh\necho $$ > {said}.new; mv {said}.new {said}; exec sleep 1000\n")
    binary.chmod(0o755)
    script = (
        f"import sys, time; from pathlib import Path; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
        "from mpsctl.adapters import hardware, temporary_daemon\n"
        f"hardware.binary = lambda name: Path({str(binary)!r})\n"
        f"with temporary_daemon.started(Path({str(tmp_path)!r}), ['GPU-1']): time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    until(said.exists)
    daemon = int(said.read_text())
    assert procfs.alive(daemon)
    process.send_signal(number)
    process.wait()
    until(lambda: not procfs.alive(daemon))


def test_the_directory_of_a_run_that_was_killed_goes_at_the_next(gpu: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = gpu.places.root / f"run/mps-fleet/bench-{ended.pid}-abc"
    left.mkdir(parents=True)
    alive = gpu.places.root / f"run/mps-fleet/bench-{gpu.process('python3', 'mpsctl bench')}-abc"
    alive.mkdir()
    sweep(gpu, processes=[1])
    assert not left.exists()
    assert alive.exists()


# -- the command line


@pytest.mark.parametrize(
    "words",
    [
        ["--processes", "1,,2"],
        ["--processes", "0"],
        ["--processes", "1,61"],
        ["--seconds", "0"],
        ["--seconds", "soon"],
        ["--rounds", "0"],
        ["--rounds", "1.5"],
        ["--threads", "0"],
        ["--memory", "1.5G"],
        ["--count-lines"],
        ["--work", "compute", "--", "true"],
        ["--output", "/proc/none/of/ours"],
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused_on_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["bench", *words]) == BadValue.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"mpsctl bench: found {words[0] if words[0] != '--work' else '--work with a command'}")
    assert said.count("\n") == 1


def test_results_that_cannot_be_written_are_still_told(
    gpu: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = replace(gpu.world, temporary_daemon=Temporary(gpu).daemon)
    monkeypatch.setattr(command_line, "world_of", lambda options: world)
    (tmp_path / "bench.json").mkdir()  # in the way
    words = ["bench", "--gpu", "0", "--processes", "1", "--seconds", "0.1", "--rounds", "1", "--json"]
    assert command_line.main([*words, "--output", str(tmp_path)]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["notes"][0].startswith(f"found {tmp_path}/bench.json, which is a folder, expected a file")
    assert len(found["runs"]) == 2


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.sentenceless
def test_the_verb_answers_and_writes(
    gpu: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    temporary = Temporary(gpu)
    world = replace(gpu.world, temporary_daemon=temporary.daemon)
    monkeypatch.setattr(command_line, "world_of", lambda options: world)
    words = ["bench", "--gpu", "0", "--processes", "1,2", "--seconds", "0.1", "--rounds", "2"]
    assert command_line.main([*words, "--output", str(tmp_path / "out"), *(["--json"] if as_json else [])]) == 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 8, "a line for each run"
    assert "8/8 round 2" in said.err
    kept = json.loads((tmp_path / "out/bench.json").read_text())
    assert len(kept["runs"]) == 8
    if as_json:
        assert json.loads(said.out) == kept
    else:
        assert kept["verdict"]["text"] in said.out
        assert said.out.endswith(f"written to {tmp_path}/out\n")


def test_a_sweep_without_a_figure_is_no_success(
    gpu: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command_line, "world_of", lambda options: replace(gpu.world, temporary_daemon=Temporary(gpu).daemon)
    )
    words = ["bench", "--gpu", "0", "--processes", "1", "--seconds", "0.1", "--rounds", "1", "--"]
    assert command_line.main([*words, "/no/such/command"]) == 1
    assert "Nothing was measured" in capsys.readouterr().out
