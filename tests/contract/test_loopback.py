"""Two ranks with the distribution's own torch and gloo, without a GPU: the whole run, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from mpsctl.adapters import procfs

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
MARK = "MPSCTL_LOOPBACK_TEST"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one file. That there is no torch for its ranks is a failure, never a skip."""
    torch = subprocess.run([PYTHON, "-c", "import torch.distributed"], capture_output=True, text=True, check=False)
    if torch.returncode:
        pytest.fail(f"found no torch in {PYTHON}, expected Debian's python3-torch; run `make setup`", pytrace=False)
    path = tmp_path_factory.mktemp("build") / "mpsctl"
    subprocess.run([sys.executable, PROJECT / "scripts/build_mpsctl.py", path], check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A mark for the environment of one test's processes; what a failed test leaves is ended by its pid."""
    one = f"{os.getpid()}-{tmp_path}"
    yield one
    for pid in marked(one):
        os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    return [pid for pid in procfs.pids() if (procfs.environment(pid) or {}).get(MARK) == mark and procfs.alive(pid)]


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.02)


def start(program: Path, mark: str, *words: str, python: str = PYTHON) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-IS", program, "loopback", "--cpu", "--python", python, "--json", *words],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """Where root may write results: pytest's own folders lie in /tmp."""
    with tempfile.TemporaryDirectory(prefix="mps-test-", dir=Path.home()) as path:
        yield Path(path)


def test_the_whole_run_with_a_real_torch(program: Path, mark: str, own_folder: Path) -> None:
    out = own_folder / "out.json"
    process = start(program, mark, "--all-reduces", "50", "--rounds", "2", "--timeout", "18", "--output", str(out))
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(said)
    assert json.loads(out.read_text()) == report
    assert [(run["backend"], run["side"], run["problem"]) for run in report["runs"]] == [("gloo", "CPU", None)] * 2
    for run in report["runs"]:
        assert run["steps_per_s"] > 0
        assert 0 < run["p50_us"] <= run["p99_us"]
        assert run["loss"][1] < run["loss"][0]
    assert [path["name"] for path in report["failure_cases"]] == [
        "a rank is killed in the storm",
        "and nothing is left",
        "a rank never comes",
        "and nothing is left",
    ]
    assert all(path["held"] for path in report["failure_cases"])
    killed, _, never, _ = report["failure_cases"]
    assert "RuntimeError" in killed["seen"]
    assert "imeout" in never["seen"] or "imed out" in never["seen"]
    assert report["versions"]["torch"]
    assert "nothing is said of MPS" in report["verdict"]
    assert marked(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("forks", [False, True])
def test_nobody_is_left_when_it_is_ended_in_the_storm(
    program: Path, mark: str, tmp_path: Path, number: signal.Signals, forks: bool
) -> None:
    """``forks``: the Python is a wrapper that stays the parent of the real one, as one around chroot may be."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{PYTHON} "$@"\nexit $?\n' if forks else f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    process = start(program, mark, "--all-reduces", "1000000", python=str(python))
    assert process.stderr is not None
    assert "100 steps done, 1000000 all-reduces" in process.stderr.readline()
    assert len(marked(mark)) == (5 if forks else 3)
    process.send_signal(number)
    said, _ = process.communicate()
    until(lambda: not marked(mark))
    if number == signal.SIGKILL:
        assert (process.returncode, said) == (-number, "")
        return
    assert process.returncode == 128 + number
    report = json.loads(said)
    assert (report["stopped"], report["runs"], report["failure_cases"]) == (number.name, [], [])


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_dies_in_the_measured_storm_is_no_figure_and_ends_the_rest(
    program: Path, mark: str, number: int
) -> None:
    process = start(program, mark, "--all-reduces", "1000000", "--rounds", "1", "--timeout", "6")
    assert process.stderr is not None
    process.stderr.readline()
    ranks = [pid for pid in marked(mark) if pid != process.pid]
    os.kill(sorted(ranks)[number], signal.SIGKILL)
    said, _ = process.communicate()
    report = json.loads(said)
    assert process.returncode == 1
    assert [run["problem"] is None for run in report["runs"]] == [False]
    assert report["points"] == []
    assert marked(mark) == []
