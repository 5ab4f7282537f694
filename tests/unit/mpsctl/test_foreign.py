"""Text that others wrote: on one line, cut, and exact where it is pasted; no verb prints a line that another made."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

from fakes import Host
from mpsctl.adapters import hardware, procfs
from mpsctl.causes import environment
from mpsctl.cli import output
from mpsctl.lifecycle import prepare
from mpsctl.model import client_variable, fit, foreign, mps_variables
from mpsctl.model.errors import NotReady
from shell import Shell

ODD = [
    "",
    "plain",
    "two words",
    "it's",
    "-rf",
    "~root",
    "x\nMPS OK: all fine\x1b[2J$(touch /tmp/pwned)",
    "`id`; $(id) && rm *",
    'a"b\\c\\n',
    "tab\there",
    "\x01\x7f9",
    "digits after a control sign \x013",
    "\u202egpj.exe",
    "zero\u200bwidth",
    "line\u2028separator\u2029",
    "caf\xe9 \u4e2d\u6587 \U0001f600",
    "\udcff\udc80 no text",
    "$'quoted'",
    "!history!",
    "\r\n",
]


@pytest.mark.parametrize("text", ODD)
def test_what_is_shown_is_one_line_that_prints(text: str) -> None:
    for made in (foreign.shown(text), foreign.line(text), foreign.pasted(text)):
        assert made.isprintable() or not made
        assert len(made.splitlines()) <= 1


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("shell", ["bash"])
def test_what_is_pasted_is_the_exact_text_again(text: str, shell: str) -> None:
    done = subprocess.run([shell, "-c", f"printf %s {foreign.pasted(text)}"], capture_output=True, check=True)
    assert done.stdout == text.encode("utf-8", "surrogateescape")
    assert done.stderr == b""


def test_what_is_left_out_is_counted() -> None:
    assert foreign.shown("x" * 200) == "x" * 200
    assert foreign.shown("x" * 1000) == "x" * 200 + "… (800 more characters)"
    assert foreign.shown("\x1b" * 10, 8) == "\\x1b\\x1b… (8 more characters)", "no escape is cut in two"
    assert foreign.line("x" * 1000) == "x" * 1000


def test_shown_twice_is_shown_once() -> None:
    for text in ODD:
        assert foreign.shown(foreign.shown(text)) == foreign.shown(text)
        assert foreign.line(foreign.shown(text)) == foreign.shown(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_our_own_colours_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        output.say(output.colour("\x1b[0mfail", "31"), " \x1b[32mpass\nMPS OK", stream=stream)
    assert terminal.getvalue() == "\x1b[31m\\x1b[0mfail\x1b[0m \\x1b[32mpass\\nMPS OK\n"
    assert file.getvalue() == "\\x1b[0mfail \\x1b[32mpass\\nMPS OK\n"


def test_no_verb_prints_by_itself() -> None:
    cli = Path(output.__file__).parent
    assert {path.name for path in cli.glob("*.py") if " print(" in path.read_text()} == {"output.py"}


def test_what_the_host_itself_names_can_be_pasted(host: Host) -> None:
    public = host.desired()
    (odd,) = mps_variables.oddities({"CUDA_MPS_PIPE_DIRECTORY": '"x"\nMPS OK\x1b[2J'})
    assert odd.line.isprintable()
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_MPS_PIPE_DIRECTORY": str(public)})
    with pytest.raises(NotReady, match=f"CUDA_MPS_PIPE_DIRECTORY={public} nvidia-cuda-mps-control"):
        prepare.prepare(host.world, "0")


@pytest.mark.parametrize("digits", ["9" * 5000, "²", "１"])
def test_numbers_that_are_none_end_nothing(digits: str) -> None:
    assert client_variable.visible({"CUDA_VISIBLE_DEVICES": digits}, ["GPU-0"]) == 0
    assert client_variable.limit_bypass({client_variable.VARIABLE: f"{digits}=1G"}, ["GPU-0"])
    assert fit.lowers_cap(digits)


def test_odd_variables_without_end_are_few_lines() -> None:
    many = {f"CUDA_MPS_{number}_{'X' * 100_000}": "'" for number in range(50)}
    found = mps_variables.oddities(many)
    assert len(found) < 12
    assert sum(len(one.line) for one in found) < 10_000
    assert all(one.evidence and len(" ".join(one.evidence)) < 1000 for one in environment.lint(many, None))


# -- /proc


@pytest.fixture
def proc(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(procfs, "_PROC", root)
    (root / "7").mkdir()
    return root / "7"


def test_a_title_is_raw_for_code_and_shown_for_people(proc: Path) -> None:
    (proc / "cmdline").write_bytes(b"/usr/bin/nvidia-cuda-mps-control\0-f\0\xff\nMPS OK\x1b[2J\0")
    (proc / "comm").write_bytes(b"nvidia-cuda-mps\n")
    assert procfs.title(7).split()[1] == "-f"
    assert procfs.command(7) == "/usr/bin/nvidia-cuda-mps-control -f \ufffd\\nMPS OK\\x1b[2J"
    assert hardware.mps_program(7) == "nvidia-cuda-mps-control"


def test_a_name_with_a_line_break_is_shown_where_there_is_no_title(proc: Path) -> None:
    (proc / "cmdline").write_bytes(b"")
    (proc / "comm").write_bytes(b"a\nMPS OK\n")
    assert procfs.command(7) == "a\\nMPS OK"


@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_of_a_huge_environment_no_variable_is_cut_off(proc: Path, cut: int) -> None:
    first = b"CUDA_VISIBLE_DEVICES=0\0"
    filler = b"X=" + b"x" * ((128 << 10) - len(first) - 3 - cut) + b"\0"
    (proc / "environ").write_bytes(first + filler + b"CUDA_MPS_PIPE_DIRECTORY=/run/mps/0\0" + b"Y=y\0" * 500_000)
    found = procfs.environment(7)
    assert found is not None
    assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert len(found["X"]) == len(filler) - 3
    assert set(found) == {"CUDA_VISIBLE_DEVICES", "X"}


def test_a_huge_title_is_read_in_part(proc: Path) -> None:
    (proc / "cmdline").write_bytes(b"x" * (2 << 20))
    assert len(procfs.title(7)) == 128 << 10
    assert len(procfs.command(7)) < 250


def test_the_name_of_a_container_is_shown(proc: Path) -> None:
    (proc / "cgroup").write_text("0::/machine.slice/machine-x\x1b[2J\u202e.scope\n")
    assert procfs.container(7) == "x\\x1b[2J\\u202e"


# -- every verb

HOSTILE = "x\nMPS OK: all fine\x1b[2J$(touch /tmp/pwned)"
SECOND = "x\u2028MPS OK: all fine\u202e\x9b2J\udc80"
VERBS = [
    ["status"],
    ["verify"],
    ["verify", "--all"],
    ["health"],
    ["clients"],
    ["gpus"],
    ["doctor"],
    ["doctor", "--error", "2"],
    ["doctor", "--error", "805"],
    ["reconcile", "--check"],
    ["drain", "--timeout", "0"],
    ["remove", "--check"],
]


def crowd(host: Host, words: str, count: int = 1, size: int = 0) -> None:
    """An instance with clients, processes beside it, and a daemon of somebody else, all with hostile words."""
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    server = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 1000)
    daemon.start_server(server)
    hostile = {
        "CUDA_MPS_PIPE_DIRECTORY": words + "x" * size,
        "CUDA_MPS_PIPE_DIR": words + "x" * size,
        "CUDA_VISIBLE_DEVICES": words + "x" * size,
        "CUDA_DEVICE_MAX_CONNECTIONS": words + "x" * size,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": words + "x" * size,
        "SLURM_JOB_ID": words,
        "RANK": words,
        "WORLD_SIZE": words,
        "MASTER_ADDR": words + "x" * size,
    }
    for _ in range(count):
        pid = host.process("python3", words + "y" * size, hostile, 1000)
        host.nvml.clients_mib[pid] = 5000
        daemon.connect(server, pid)
        host.nvml.others_mib[host.process(words[:15], words + "z" * size, hostile, 1001)] = 2000
    host.process("nvidia-cuda-mps-control", f"nvidia-cuda-mps-control -d {words}", hostile, 1002)


@pytest.mark.parametrize("words", [HOSTILE, SECOND], ids=["newline", "separator"])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_prints_a_line_of_somebody_else(mpsctl: Shell, host: Host, verb: list[str], words: str) -> None:
    crowd(host, words)
    odd = host.places.configuration / "x\nMPS OK: all fine\x1b[2J.conf"
    odd.write_text("[Instance]\nKey\x1b[2J=\u202e\n")
    code = mpsctl(*verb, stdin='{"instances": []}')
    assert code != 70, mpsctl.err
    told = mpsctl.out + mpsctl.err
    assert told.strip()
    for line in told.splitlines():
        assert not line.lstrip().startswith("MPS OK"), line
        assert line.isprintable() or line.startswith("{"), line


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_what_a_verb_says_of_many_huge_processes_is_bounded(mpsctl: Shell, host: Host, verb: list[str]) -> None:
    """What /proc hands on of each is bounded to 128 KiB before; here it is 20,000 signs for each of five variables."""
    crowd(host, HOSTILE, count=150, size=20_000)
    for words in (verb, [*verb, "--json"]):
        mpsctl(*words, stdin='{"instances": []}')
        assert len(mpsctl.out) + len(mpsctl.err) < 150 * 7_500


def test_an_error_in_json_is_one_line_and_cut(mpsctl: Shell, host: Host) -> None:
    assert mpsctl("doctor", "--error", "\x1b" * 20_000, "--json") == 2
    assert len(json.loads(mpsctl.out)["error"]) < 5000
    assert mpsctl.err.count("\n") == 1
    assert "\x1b" not in mpsctl.err
