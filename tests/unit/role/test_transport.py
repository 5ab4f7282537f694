"""How a request travels and how the answer is read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

from mps_role import project, transport

ANSWER = json.dumps({"format": 2, "changed": False})


@pytest.mark.parametrize("before", ["", "motd\n", "{\n", '{"a": 1} and more\n', "\x1b[0m{}\n"])
def test_the_last_object_is_the_answer(before: str) -> None:
    assert transport.answer(f"{before}{ANSWER}\n") == {"format": 2, "changed": False}
    assert transport.answer(f"{before}{ANSWER}\r\n\n") == {"format": 2, "changed": False}


@pytest.mark.parametrize("text", ["", "\n", "[]", "1", "{", '{"a": 1}', ANSWER[:-1], f"{ANSWER}\n{{broken"])
def test_anything_else_is_none(text: str) -> None:
    assert transport.answer(text) is None


def test_an_error_is_an_answer() -> None:
    assert transport.answer('{"error": "no root"}') == {"error": "no root"}


def _carry(tmp_path: Path, program: bytes, request: bytes) -> subprocess.CompletedProcess[bytes]:
    command = transport.bootstrap_command(
        len(program), str(tmp_path / "remote tmp"), sys.executable, transport.reconcile(check=True)
    )
    tmp_path.mkdir(exist_ok=True)
    shared = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.defpath}
    done = subprocess.run(
        ["/bin/sh", "-c", command], input=program + request, capture_output=True, check=False, env=shared, cwd=tmp_path
    )
    assert list(tmp_path.iterdir()) == [], "it lay in a folder"
    return done


def test_the_program_takes_its_bytes_and_leaves_the_request(tmp_path: Path) -> None:
    program = b"import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(5)\n" + b"#" * 300_000
    done = _carry(tmp_path, program, b"the request")
    assert done.stdout.decode() == "['reconcile', '--json', '--check'] the request\n"
    assert done.returncode == 5


def test_a_program_that_does_not_arrive_whole_is_not_run() -> None:
    command = transport.bootstrap_command(100, "/tmp", sys.executable, transport.reconcile(check=True))
    done = subprocess.run(["/bin/sh", "-c", command], input=b"print(1)", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"did not arrive whole" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """At each of its moments: before the program, half way, and while it runs."""
    base = tmp_path / "tmp"
    program = b"import sys, time\nprint(sys.argv[0], flush=True)\ntime.sleep(600)\n"
    command = transport.bootstrap_command(len(program), str(base), sys.executable, [])
    for sent in (b"", program[:20], program):
        pipe = subprocess.PIPE
        with subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], stdin=pipe, stdout=pipe) as run:
            assert run.stdin is not None
            assert run.stdout is not None
            run.stdin.write(sent)
            run.stdin.flush()
            if sent == program:
                assert run.stdout.readline().startswith(b"/proc/self/fd/")
            run.send_signal(number)
        assert run.returncode == -number
    assert list(tmp_path.iterdir()) == []


def test_the_program_can_be_read_from_where_it_runs(tmp_path: Path) -> None:
    """It installs itself, and imports late."""
    program = tmp_path / "program"
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr(
            "__main__.py", "import sys\nimport late\nprint(late.SAID, len(open(sys.argv[0], 'rb').read()))"
        )
        archive.writestr("late.py", "SAID = 'late'\n")
    data = program.read_bytes()
    program.unlink()
    command = transport.bootstrap_command(len(data), str(tmp_path / "tmp"), sys.executable, [])
    done = subprocess.run(["/bin/sh", "-c", command], input=data, capture_output=True, check=True)
    assert done.stdout.decode() == f"late {len(data)}\n"


def test_the_real_program_runs_from_memory_with_its_children(tmp_path: Path) -> None:
    """Its modules, its own file for an installation, and a child that is another Python."""
    built = tmp_path / "mpsctl"
    builder = project.PROJECT / "scripts/build_mpsctl.py"
    subprocess.run([sys.executable, builder, built], check=True, capture_output=True)
    child = "import mpsctl.adapters.cuda as c, subprocess, sys; from mpsctl.cli.reconcile import _own_file as own;"
    child += "code = c.program('cuda'); code[3] = code[3].replace('; cuda.child()', '; print(cuda.__name__)');"
    child += "print(own().read_bytes() == sys.stdin.buffer.read()); print(subprocess.check_output(code).decode())"
    entry = f"import sys\nsys.path.insert(0, sys.argv[0])\n{child}\n"
    with zipfile.ZipFile(built, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the second entry of that name, which counts
        archive.writestr("__main__.py", entry)
    done = _carry(tmp_path / "empty", built.read_bytes(), built.read_bytes())
    assert done.stdout.split() == [b"True", b"mpsctl.adapters.cuda"], done.stderr


def test_the_command_for_a_host_without_the_program(tmp_path: Path) -> None:
    command = transport.command(str(tmp_path / "mpsctl"), sys.executable, transport.reconcile(check=True))
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == transport.ABSENT


def test_a_python_without_memfd_takes_a_file_without_a_name(tmp_path: Path) -> None:
    """One that was built for an old C library, as conda's and uv's are."""
    if not os.access("/run", os.W_OK):
        pytest.skip("only root writes to /run")
    command = transport.bootstrap_command(len(b"print(7)"), str(tmp_path), sys.executable, [])
    without = command.replace("import os\n", "import os\ndel os.memfd_create\n", 1)
    assert without != command
    done = subprocess.run(["/bin/sh", "-c", without], input=b"print(7)", capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"7\n", b"")
