"""The command line: help, what is refused, errors on one line with their exit codes, colour, output nobody reads."""

from __future__ import annotations

import argparse
import errno
import inspect
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Optional, Sequence

import pytest

from fakes import Host, h200
from mpsctl.cli import main as command_line
from mpsctl.cli import options
from mpsctl.lifecycle import apply
from shell import Shell

VERBS = list(options.VERBS)


@pytest.fixture
def running(host: Host) -> Host:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50)
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    return host


# -- help


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "mpsctl: the following arguments are required: VERB"),
        (["--loud"], "mpsctl: "),
        (["stauts"], "mpsctl: argument VERB: invalid choice: 'stauts'"),
        *([[verb, "--no-such-option"], f"mpsctl {verb}: "] for verb in VERBS if verb not in ("bench", "run")),
        (["bench", "--no-such-option"], "mpsctl bench: "),
        (["run", "--no-such-option"], "mpsctl run: the following arguments are required: --instance"),
        (["env", "0", "--format", "yaml"], "mpsctl env: argument --format: invalid choice: 'yaml'"),
        (["bench", "--gpu", "0", "--instance", "0"], "mpsctl bench: argument --instance: not allowed with"),
    ],
)
def test_a_command_line_that_is_refused_takes_one_line(mpsctl: Shell, words: list[str], says: str) -> None:
    assert mpsctl(*words) == 2
    assert mpsctl.out == ""
    assert mpsctl.err.startswith(says)
    assert mpsctl.err.endswith(" --help` shows what there is\n")
    assert mpsctl.err.count("\n") == 1


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_function_that_runs_it(verb: str) -> None:
    function = command_line.function_of(verb)
    assert list(inspect.signature(function).parameters) == ["world", "options"]


@pytest.mark.parametrize("columns", ["60", "200", "0", "wide", ""])
def test_help_is_as_wide_as_the_terminal(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert mpsctl("plan", "--help") == 0
    usage = mpsctl.out.partition("\n\n")[0].splitlines()
    width = int(columns) if columns.isdigit() and int(columns) else 80
    assert max(map(len, usage)) <= width - 2
    assert (len(usage) > 5) == (width == 60)


def test_the_help_of_the_program_lists_every_verb(mpsctl: Shell) -> None:
    assert mpsctl("--help") == 0
    for verb in VERBS:
        assert f"\n    {verb}" in mpsctl.out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_version_is_told_by_an_option_as_by_its_verb(mpsctl: Shell, more: list[str]) -> None:
    assert mpsctl("version", *more) == 0
    told = mpsctl.out
    assert mpsctl("--version", *more) == 0
    assert mpsctl.out == told
    assert mpsctl("--version", "status") == 2


@pytest.mark.parametrize("words", [[], ["start"], ["apply"], ["status", "--colour"], ["env", "0", "--format", "xml"]])
def test_a_command_line_that_is_not_understood_ends_with_2(mpsctl: Shell, words: list[str]) -> None:
    assert mpsctl(*words) == 2


# -- exit codes and errors


def test_a_refused_value_ends_with_2(mpsctl: Shell, host: Host) -> None:
    host.desired(DeviceMemoryLimit="20")
    assert mpsctl("prepare", "0") == 2


def test_something_outside_that_is_not_ready_ends_with_3(mpsctl: Shell, host: Host) -> None:
    host.desired(DriverTimeoutSec=1)
    host.nvml.driver_up = False
    assert mpsctl("prepare", "0") == 3
    assert mpsctl("gpus") == 3
    assert mpsctl("apply", "0") == 3


def test_what_does_not_read_back_ends_with_4(mpsctl: Shell, host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    daemon.deaf_to = "set_"
    assert mpsctl("apply", "0", main_pid=daemon.pid) == 4
    host.nvml.all[0] = h200(0, compute_mode=None)
    host.kill(daemon.pid)
    host.desired(ComputeMode="exclusive_process")
    assert mpsctl("prepare", "0") == 4


def test_another_user_is_told_to_be_root(mpsctl: Shell, running: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/run/mps-fleet/0")

    monkeypatch.setattr(apply, "apply", closed)
    assert mpsctl("apply", "0", main_pid=running.running().pid) == 3
    assert "run it as root" in mpsctl.err


def test_a_fault_of_the_program_has_a_code_of_its_own(
    mpsctl: Shell, running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> list[str]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(apply, "apply", faulty)
    assert mpsctl("apply", "0", main_pid=running.running().pid) == 70
    assert "ZeroDivisionError: division by zero (a fault of mpsctl; MPSCTL_TRACE=1 shows where)" in mpsctl.err
    monkeypatch.setenv("MPSCTL_TRACE", "1")
    with pytest.raises(ZeroDivisionError):
        mpsctl("apply", "0")


@pytest.mark.parametrize(
    ("number", "name", "code", "says"),
    [
        (errno.ENOSPC, "/run/x", 3, "/run/x could not be written (No space left on device)"),
        (errno.EROFS, "/etc/x", 3, "/etc/x could not be written (Read-only file system)"),
        (errno.EDQUOT, "/etc/x", 3, "/etc/x could not be written (Disk quota exceeded)"),
        (errno.ENOSPC, None, 3, "the answer could not be written (No space left on device)"),
        (errno.EINVAL, "/run/x", 70, "a fault of mpsctl"),
    ],
)
def test_a_full_disk_is_no_fault_of_the_program(
    mpsctl: Shell, running: Host, monkeypatch: pytest.MonkeyPatch, number: int, name: Optional[str], code: int,
    says: str,
) -> None:  # fmt: skip
    def full(*_: object) -> list[str]:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(apply, "apply", full)
    assert mpsctl("apply", "0", main_pid=running.running().pid) == code
    assert says in mpsctl.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_answer_can_be_written_in_every_locale(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    def answer(arguments: Sequence[str]) -> int:
        print("µ … \udcff")
        return 0

    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(command_line, "_main", answer)
    assert command_line.main([]) == 0
    sys.stdout.flush()
    assert written.getvalue().decode(encoding).endswith("\\udcff\n")


@pytest.mark.parametrize("json_", [True, False])
@pytest.mark.parametrize(
    "words", [["env", "7"], ["status", "7"], ["apply", "0"], ["apply", "../0"], ["prepare", "x y"], ["stop", "7"]]
)
def test_errors_stand_on_one_line_and_name_the_verb(mpsctl: Shell, host: Host, words: list[str], json_: bool) -> None:
    host.desired()
    code = mpsctl(*words, *(["--json"] if json_ else []))
    assert code in (2, 3)
    assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl.err.startswith(f"mpsctl {words[0]}: ")
    if json_:
        assert json.loads(mpsctl.out) == {
            "error": mpsctl.err.partition(": ")[2].rstrip("\n"),
            "exit_code": code,
        }
    else:
        assert mpsctl.out == ""


# -- colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_colour_is_for_terminals_that_want_it(
    mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    command_line.main(["status"])
    assert ("\033[" in terminal.getvalue()) is coloured


@pytest.mark.usefixtures("running")
def test_there_is_no_colour_in_a_pipe(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    mpsctl("status")
    assert "\033" not in mpsctl.out


def test_a_reader_that_goes_away_is_no_success_either(
    mpsctl: Shell, running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> list[str]:
        raise BrokenPipeError(32, "Broken pipe")

    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(apply, "apply", gone)
        assert command_line.main(["apply", "0"]) == 141


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["verify", "--help"],
        ["status", "--json", "nope"],
        ["nonsense"],
        ["loopback", "--cpu", "--python", "true"],
    ],
)
@pytest.mark.parametrize("where", [">/dev/full", "| true", ">&-", "2>/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_what_cannot_be_written_is_no_trace(words: list[str], where: str) -> None:
    """The whole program, as a shell runs it."""
    command = shlex.join([sys.executable, "-m", "mpsctl", *words])
    done = subprocess.run(
        ["bash", "-c", f"{command} {where}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr
    assert done.returncode not in (70, 120)


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (["doctor", "--log", "-"], None, "no standard input"),
        (["doctor", "--log", "/dev/zero"], b"", "which is no file"),
        (["doctor", "--unit", "api.service"], b"", "systemctl cat api.service | mpsctl doctor --unit -"),
        (["doctor", "--log", "-", "--unit", "-"], b"", "standard input twice"),
        (["doctor", "--container", "-"], b"[" * 200_000, "nested too deep"),
        (["doctor", "--container", "-"], b"9" * 100_000, "found n"),
        (["reconcile", "--check"], b"[" * 200_000, "a request on standard input"),
        (["reconcile", "--check"], None, "format 2"),
    ],
)
def test_input_that_nobody_can_read_is_refused_in_one_line(words: list[str], stdin: Optional[bytes], said: str) -> None:
    closed = "<&-" if stdin is None else ""
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join([sys.executable, '-m', 'mpsctl', *words])} {closed}"],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 2, lines
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    "line", [b"cuda " * 800_000, b"CUDA_MPS_PIPE_DIRECTORY=/tmp " * 140_000, b"\xff\xfe" * 2_000_000]
)
def test_a_log_of_one_endless_line_is_read_to_its_bound(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line)
    done = subprocess.run(
        [sys.executable, "-m", "mpsctl", "doctor", "--log", path],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr


# -- standard output that is closed or full


@pytest.mark.parametrize("verb", ["version", "version --json", "status", "status --json"])
@pytest.mark.parametrize(("redirection", "code"), [(">&-", {0, 1}), (">/dev/full", {3})])
def test_an_answer_that_nobody_can_read_is_told_in_one_line(verb: str, redirection: str, code: set[int]) -> None:
    sources = Path(command_line.__file__).parents[2]
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m mpsctl {verb} {redirection}",
        shell=True,
        cwd=sources,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},  # the one file has -I
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in code, done.stderr
    assert done.stderr.count("\n") == (1 if code == {3} else 0), done.stderr


@pytest.mark.parametrize("json", [False, True])
def test_a_run_to_which_nobody_listens_any_more_goes_on(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    """An ssh connection that was cut: what is said on the way is lost, and nothing of what was begun."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr" if json else "stdout", Gone())
    command_line.world_of(argparse.Namespace(json=json)).say("compute mode of GPU 0: default -> exclusive_process")
