"""The command line: every verb's answer for people and as JSON, its exit code, and errors on one line."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Optional, Sequence

import pytest

from fakes import Host, h200, split_by_mig, uuid
from mpsctl.adapters import hardware
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


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_lists_the_exit_codes(mpsctl: Shell, verb: str) -> None:
    assert mpsctl(verb, "--help") == 0
    assert "exit codes:" in mpsctl.out
    for code in ("0  done", "1  status", "2  a value", "3  something outside", "4  what was set", "70 a fault"):
        assert code in mpsctl.out
    assert "--json" in mpsctl.out


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


def test_every_verb_does_something() -> None:
    assert set(command_line._RUN) == set(VERBS)


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


@pytest.mark.parametrize("words", [[], ["start"], ["apply"], ["status", "--colour"], ["env", "0", "--format", "xml"]])
def test_a_command_line_that_is_not_understood_ends_with_2(mpsctl: Shell, words: list[str]) -> None:
    assert mpsctl(*words) == 2


# -- each verb


@pytest.mark.usefixtures("running")
def test_status_of_a_host_that_is_in_the_desired_state(mpsctl: Shell) -> None:
    assert mpsctl("status") == 0
    assert "instance 0: in the desired state; active (running)" in mpsctl.out
    assert "memory limit of device 0: desired 4096 MiB, the daemon shows 4G" in mpsctl.out
    assert "clients may connect" in mpsctl.out
    assert mpsctl.json("status")["instances"]["0"]["as_desired"] is True


def test_status_of_a_host_that_is_not_in_the_desired_state_ends_with_1(mpsctl: Shell, running: Host) -> None:
    daemon = running.running()
    daemon.start_server(9001, clients=[1]).state = "FAULT"
    assert mpsctl("status", "0") == 1
    assert "instance 0: NOT IN THE DESIRED STATE" in mpsctl.out
    assert "! server 9001 is in state FAULT" in mpsctl.out
    assert "1 client\n" in mpsctl.out
    assert mpsctl.json("status")["instances"]["0"]["findings"]


def test_status_of_a_host_that_was_never_converged(mpsctl: Shell) -> None:
    assert mpsctl("status") == 1
    assert "has not been converged" in mpsctl.out
    assert mpsctl.json("status") == {"instances": {}, "findings": []}


@pytest.mark.usefixtures("running")
def test_status_of_an_instance_that_is_not_there(mpsctl: Shell) -> None:
    assert mpsctl("status", "7") == 2
    assert "expected an instance of this host: 0" in mpsctl.err


@pytest.mark.usefixtures("running")
def test_gpus(mpsctl: Shell, host: Host) -> None:
    host.nvml.all[3] = split_by_mig(3)
    assert mpsctl("gpus") == 0
    assert f"GPU 0  {uuid(0)}  0000:10:00.0  NVIDIA H200, 143771 MiB, compute mode default" in mpsctl.out
    assert "instance 0\n" in mpsctl.out
    assert uuid(400, "MIG") in mpsctl.out
    found = mpsctl.json("gpus")
    assert found["simulated"] is False
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 3]


def test_simulated_gpus_are_never_taken_for_real_ones(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "simulated", lambda: True)
    mpsctl("gpus")
    assert mpsctl.out.startswith("simulated GPUs")
    assert mpsctl.json("gpus")["simulated"] is True
    mpsctl("version")
    assert "driver: 580.159.04 (simulated)" in mpsctl.out
    assert mpsctl.json("version")["simulated"] is True


@pytest.mark.usefixtures("running")
def test_env(mpsctl: Shell, host: Host) -> None:
    expected = {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0", "CUDA_VISIBLE_DEVICES": uuid(0)}
    assert mpsctl("env", "0") == 0
    assert mpsctl.out.splitlines() == [f"export {key}={value}" for key, value in expected.items()]
    assert mpsctl.json("env", "0") == expected
    assert mpsctl("env", "0", "--format", "json") == 0
    assert json.loads(mpsctl.out) == expected


def test_version(mpsctl: Shell) -> None:
    assert mpsctl("version") == 0
    assert "driver: 580.159.04" in mpsctl.out
    found = mpsctl.json("version")
    assert found["build"] == "sources"
    assert found["control_daemon"] == "/usr/bin/nvidia-cuda-mps-control"


def test_apply_says_what_it_changed(mpsctl: Shell, running: Host) -> None:
    running.desired(DeviceMemoryLimit="6G", ActiveThreadPercentage=50)
    pid = running.running().pid
    assert mpsctl("apply", "0", main_pid=pid) == 0
    assert mpsctl.out.splitlines() == [
        "memory limit of device 0 (default): 4G -> 6144 MiB",
        "0: limits in force and read back, clients may connect",
    ]
    assert mpsctl.json("apply", "0", main_pid=pid) == {"instance": "0", "changes": []}


def test_prepare_stop_and_release_answer_in_json(mpsctl: Shell, host: Host) -> None:
    public = host.desired(DeviceMemoryLimit="4G")
    prepared = mpsctl.json("prepare", "0")
    assert Path(prepared["pipe_directory"]).parent == public
    assert prepared["devices"] == [uuid(0)]
    pid = host.start().pid
    assert mpsctl.json("stop", "0", main_pid=pid) == {"instance": "0", "gone": True}
    assert mpsctl.json("release", "0") == {"instance": "0"}


def test_a_daemon_that_does_not_end_is_no_success(mpsctl: Shell, running: Host) -> None:
    running.running().on_quit = lambda: None
    assert mpsctl("stop", "0", main_pid=running.running().pid) == 4


def test_condition(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mpsctl("condition", "0") == 0
    assert mpsctl.out == ""
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert mpsctl("condition", "0") == 1
    assert mpsctl.out == "skipped: no NVIDIA GPU is on the PCI bus\n"
    assert mpsctl.json("condition", "0") == {"instance": "0", "skipped": "no NVIDIA GPU is on the PCI bus"}


def test_a_condition_that_cannot_tell_fails_and_does_not_skip(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd takes 1 to 254 for a reason to skip, and never tries a skipped unit again."""

    def broken() -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hardware, "nvidia_on_bus", broken)
    assert mpsctl("condition", "0") == 255
    assert "Input/output error" in mpsctl.err


def request(host: Host, **more: object) -> str:
    desired = {"format": 1, "files": [], "instances": [{"name": "0", "conf": host.conf("0", DeviceMemoryLimit="4G")}]}
    return json.dumps({**desired, **more})


def test_reconcile_answers_with_one_object_and_says_the_rest_aside(mpsctl: Shell, host: Host) -> None:
    answer = mpsctl.json("reconcile", stdin=request(host))
    assert answer["program_differs"] is False
    assert answer["changed"] is True
    assert answer["instances"]["0"]["as_desired"] is True
    assert mpsctl("reconcile", stdin=request(host)) == 0
    assert len(mpsctl.out.splitlines()) == 1


def test_reconcile_with_check(mpsctl: Shell, host: Host) -> None:
    assert mpsctl("reconcile", "--check", stdin=request(host)) == 0
    assert json.loads(mpsctl.out)["check"] is True
    assert host.systemd.acts == []


def test_reconcile_by_another_build_leaves_it_to_that(mpsctl: Shell, host: Host) -> None:
    answer = mpsctl.json("reconcile", stdin=request(host, build="0123456789abcdef"))
    assert answer == {"format": 1, "program_differs": True, "build": "sources"}
    assert host.systemd.acts == []


@pytest.mark.parametrize(
    ("stdin", "says"),
    [("", "no JSON"), ("{", "no JSON"), ("[]", "not of format 1"), ('{"format": 9}', "not of format 1")],
)
def test_reconcile_refuses_what_is_no_request(mpsctl: Shell, stdin: str, says: str) -> None:
    assert mpsctl("reconcile", stdin=stdin) == 2
    assert says in mpsctl.err
    assert mpsctl.json("reconcile", stdin=stdin)["exit_code"] == 2


def test_reconcile_that_is_refused_or_fails_ends_with_1(mpsctl: Shell, host: Host) -> None:
    bad = [{"name": "0", "conf": host.conf("0", DeviceMemoryLimit="20")}]
    assert mpsctl("reconcile", stdin=request(host, instances=bad)) == 1
    assert json.loads(mpsctl.out)["refused"].startswith("mps_device_memory_limit: ")
    host.nvml.driver_up = False
    assert mpsctl("reconcile", stdin=request(host)) == 1
    assert "Driver Not Loaded" in json.loads(mpsctl.out)["error"]


# -- what fits


DESCRIBED = ("--model-memory-mib", "15360", "--gpu-name", "Tesla T4", "--driver", "550.163.01")


def test_plan_on_this_host_and_for_a_gpu_that_is_described(mpsctl: Shell) -> None:
    assert mpsctl("plan", "--memory", "4G", "--clients", "8") == 0
    assert mpsctl.out.startswith("fits: 8 processes of 4096 MiB on NVIDIA H200")
    assert "8 clients x 4096 MiB limit + 66 MiB server + 616 MiB reserved = 33450 MiB <= 143771 MiB" in mpsctl.out
    assert mpsctl("plan", "--memory", "20%", *DESCRIBED) == 0
    assert "4 processes of 3072 MiB on Tesla T4" in mpsctl.out
    assert mpsctl.json("plan", "--memory", "4G", *DESCRIBED)["most_clients"] == 3
    assert mpsctl("plan", "--memory", "4G", "--latency", "short", "--format", "vars") == 0
    assert "mps_device_memory_limit: 4096M\nmps_active_thread_percentage: 30\nmps_expected_clients: 8" in mpsctl.out


def test_a_plan_that_cannot_fit_ends_with_2_and_the_arithmetic(mpsctl: Shell) -> None:
    assert mpsctl("plan", "--memory", "4G", "--clients", "40") == 2
    assert "164522 MiB > 143771 MiB" in mpsctl.out
    assert mpsctl.json("plan", "--memory", "4G", "--clients", "40")["verdict"] == "refused"


@pytest.mark.parametrize(
    "words",
    [
        ["--memory", "20"],
        ["--memory", "4G", "--clients", "0"],
        ["--memory", "4G", "--threads", "101"],
        ["--memory", "4G", "--rates", "3"],
        ["--memory", "4G", "--gpu", "9"],
        ["--memory", "4G", "--gpu-name", "Tesla T4"],
        ["--memory", "4G", "--gpu", "0", *DESCRIBED],
        ["--memory", "4G", "--gpu-name", "", "--model-memory-mib", "15360"],
        ["--memory", "4G", "--gpu-name", "Tesla\nT4", "--model-memory-mib", "15360"],
        ["--memory", "4G", "--gpu-name", "x", "--model-memory-mib", "4G"],
        ["--memory", "4G", "--gpu-name", "x", "--model-memory-mib", "15360", "--driver", "new"],
    ],
)
def test_plan_refuses_on_one_line(mpsctl: Shell, words: list[str]) -> None:
    assert mpsctl("plan", *words) == 2
    assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl.out == ""


@pytest.mark.usefixtures("running")
def test_hints_are_comments_and_change_nothing_else(mpsctl: Shell) -> None:
    for kind in ("shell", "systemd"):
        mpsctl("env", "0", "--format", kind)
        plain = mpsctl.out
        assert mpsctl("env", "0", "--format", kind, "--hints") == 0
        assert mpsctl.out.startswith(plain)
        added = mpsctl.out[len(plain) :].splitlines()
        assert len(added) == 3
        assert all(line.startswith("# ") for line in added)
        assert "--gpu-memory-utilization 0.0260" in mpsctl.out
    for kind in ("docker", "json"):
        assert mpsctl("env", "0", "--format", kind, "--hints") == 2


def test_hints_of_an_instance_without_a_limit(mpsctl: Shell, host: Host) -> None:
    host.desired()
    assert mpsctl("env", "0", "--hints") == 0
    assert mpsctl.out.splitlines()[-1].startswith("# no memory limit is managed here")


@pytest.mark.usefixtures("running")
def test_run_passes_the_exit_code_and_refuses_in_one_line(mpsctl: Shell, host: Host) -> None:
    report = host.places.root / "report.json"
    assert mpsctl("run", "--instance", "0", "--", "sh", "-c", "exit 9") == 9
    assert "never seen as an MPS client" in mpsctl.err
    assert mpsctl("run", "--instance", "0", "--json", "--report", str(report), "--", "sh", "-c", "exit 9") == 9
    assert mpsctl.err == ""
    assert json.loads(report.read_text())["exit_code"] == 9
    assert mpsctl("run", "--instance", "0", "--require-mps", "--", "true") == 4
    for words in (
        ["--memory", "5G", "--", "true"],
        ["--memory", "5", "--", "true"],
        ["--threads", "60", "--", "true"],
        ["--priority", "2", "--", "true"],
        ["--prove-timeout", "soon", "--", "true"],
        ["--"],
        [],
        ["--json", "--", "true"],
    ):
        assert mpsctl("run", "--instance", "0", *words) == 2
        assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl("run", "--instance", "7", "--", "true") == 2


@pytest.mark.usefixtures("running")
def test_measure_without_a_gpu_that_answers(mpsctl: Shell, host: Host) -> None:
    host.nvml.others_mib = {777: 1}
    host.process("python3", "python3", pid=777)
    assert mpsctl("measure", "--gpu", "0") == 3
    assert "in use by 1 process" in mpsctl.err
    assert mpsctl("measure", "--instance", "0", "--gpu", "0") == 2
    assert mpsctl("measure", "--threads", "101") == 2


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
        (["doctor", "--log", "-", "--unit", "-"], b"", "standard input twice"),
        (["doctor", "--container", "-"], b"[" * 200_000, "nested too deep"),
        (["doctor", "--container", "-"], b"9" * 100_000, "found n"),
        (["reconcile", "--check"], b"[" * 200_000, "a request on standard input"),
        (["reconcile", "--check"], None, "format 1"),
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


# -- health


def test_health_of_a_host_that_is_well(mpsctl: Shell, running: Host) -> None:
    assert mpsctl("health") == 0
    assert mpsctl.out == "instance 0: well\n"
    assert mpsctl.json("health") == {"instances": {"0": {"instance": "0", "findings": [], "actions": []}}}


def test_health_names_what_is_amiss_and_ends_with_1(mpsctl: Shell, running: Host) -> None:
    pid = running.client(variable="1G")
    running.running().start_server(9001, clients=[pid])
    assert mpsctl("health") == 1
    assert mpsctl.out.startswith("instance 0: NOT WELL\n")
    assert f"client {pid} " in mpsctl.out
    assert "client" in mpsctl.json("health")["instances"]["0"]["findings"][0]


def test_health_says_what_it_did(mpsctl: Shell, running: Host) -> None:
    running.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, LimitBypass="terminate", LimitBypassGraceSec=1)
    pid = running.client(variable="1G")
    running.running().start_server(9001, clients=[pid])
    mpsctl("health")
    running.clock.pass_by(1)
    assert mpsctl("health") == 1
    assert f"terminate_client 9001 {pid}" in mpsctl.out
    assert mpsctl("health") == 0


def test_health_of_a_host_with_nothing_active(mpsctl: Shell) -> None:
    assert mpsctl("health") == 0
    assert "no instance is active" in mpsctl.out


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


# -- doctor


@pytest.mark.parametrize(
    ("words", "stdin", "code", "first"),
    [
        (("--error", "810"), "", 1, "terminated-by-daemon"),
        (("--log", "-"), "Cannot find MPS control daemon process\n", 1, "daemon-not-found"),
        (("--log", "-"), "nothing of note\n", 0, None),
        (("--unit", "-"), "[Service]\nExecStop=/usr/bin/nvidia-cuda-mps-control quit\n", 1, "quit-as-argument"),
        (("--container", "-"), '{"services": {"a": {}}}', 1, "container-without-pipe-directory"),
    ],
)
def test_doctor_answers_what_it_is_given(
    mpsctl: Shell, words: tuple[str, ...], stdin: str, code: int, first: Optional[str]
) -> None:
    assert mpsctl("doctor", *words, stdin=stdin) == code
    assert (f"1. {first} (" in mpsctl.out) == (first is not None)
    assert ("nothing found" in mpsctl.out) == (first is None)
    found = mpsctl.json("doctor", *words, stdin=stdin)
    assert [one["name"] for one in found["diagnoses"]][:1] == ([first] if first else [])
    for one in found["diagnoses"]:
        assert set(one) == {"name", "cause", "evidence", "remedy", "certainty"}


@pytest.mark.parametrize(
    "words",
    [
        ("--error", "frobnicate"),
        ("--error", ""),
        ("--log", "/nowhere/at/all"),
        ("--unit", "/"),
        ("--pid", "many"),
        ("--pid", "0"),
        ("--pid", "4000000"),
        ("--container", "-"),
        ("7",),
    ],
)
def test_doctor_refuses_in_one_line(mpsctl: Shell, words: tuple[str, ...]) -> None:
    assert mpsctl("doctor", *words) == 2
    assert mpsctl.err.count("\n") == 1
    assert mpsctl.out == ""


@pytest.mark.parametrize("json", [False, True])
def test_a_run_to_which_nobody_listens_any_more_goes_on(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    """An ssh connection that was cut: what is said on the way is lost, and nothing of what was begun."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr" if json else "stdout", Gone())
    command_line._acting_world(argparse.Namespace(json=json)).say("compute mode of GPU 0: default -> exclusive_process")
