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

from mpsctl.adapters import trusted  # isort: skip

PYTHON = "/usr/bin/python3"
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
        len(program), str(tmp_path / "remote tmp"), [PYTHON], transport.reconcile(check=True)
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
    command = transport.bootstrap_command(100, "/tmp", [PYTHON], transport.reconcile(check=True))
    done = subprocess.run(["/bin/sh", "-c", command], input=b"print(1)", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"did not arrive whole" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """At each of its moments: before the program, half way, and while it runs."""
    base = tmp_path / "tmp"
    program = b"import sys, time\nprint(sys.argv[0], flush=True)\ntime.sleep(600)\n"
    command = transport.bootstrap_command(len(program), str(base), [PYTHON], [])
    for sent in (b"", program[:20], program):
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["/bin/sh", "-c", command.replace('"$python"', 'exec "$python"', 1)], stdin=pipe, stdout=pipe
        ) as run:
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
    command = transport.bootstrap_command(len(data), str(tmp_path / "tmp"), [PYTHON], [])
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
    command = transport.command(str(tmp_path / "mpsctl"), [PYTHON], transport.reconcile(check=True))
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == transport.ABSENT


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has something to lose")


SPOILT = {
    "file": "chown 1000 $NAME",
    "file for everyone": "chmod 757 $NAME",
    "folder": "chown 1000 .",
    "folder like /tmp": "chmod 1777 .",
    "folder of a group": "chgrp 1000 . && chmod 775 .",
    "folder above": "chown 1000 ..",
    "link of a user": "mv $NAME real && ln -s real $NAME && chown -h 1000 $NAME",
    "behind a link": "mkdir ../theirs && chown 1000 ../theirs && mv $NAME ../theirs/real && ln -s ../theirs/real $NAME",
    "folder behind a link": "chown 1000 . && mv ../folder ../theirs && ln -s theirs ../folder",
}
"""Shell commands in the folder of a file NAME, by what others can change then."""
spoilt = pytest.mark.parametrize("spoil", [pytest.param(spoil, id=name) for name, spoil in SPOILT.items()])


def _do(spoil: str, file: Path) -> None:
    subprocess.run(["/bin/sh", "-ec", spoil], cwd=file.parent, env={**os.environ, "NAME": file.name}, check=True)


def _made(place: Path, name: str, text: str) -> Path:
    file = place / "above" / "folder" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.mark.usefixtures("as_root")
@spoilt
def test_a_program_that_others_can_change_is_not_run(place: Path, spoil: str) -> None:
    """The host is asked by the program that is sent, as one without a program."""
    ran = place / "ran"
    program = _made(place, "mpsctl", f"open({str(ran)!r}, 'w').close()\n")
    command = transport.command(str(program), [PYTHON], [])
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0
    ran.unlink()
    _do(spoil, program)
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == transport.ABSENT
    assert not ran.exists()


@pytest.mark.usefixtures("as_root")
@spoilt
def test_a_python_that_others_can_change_is_not_run(place: Path, spoil: str) -> None:
    ran = place / "ran"
    python = _made(place, "python3", f"#!/bin/sh\ntouch {ran}\n")
    commands = [
        transport.command("/usr/bin/env", [str(python)], []),
        transport.bootstrap_command(1, "", [str(python)], []),
    ]
    for command in commands:
        assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0
        ran.unlink()
    _do(spoil, python)
    for command in commands:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        assert transport.is_final(done.returncode)
        said = transport.no_answer({"rc": done.returncode, "stderr": done.stderr}, [str(python)])
        assert f"{place}/above" in said
        assert "nothing was run" in said
    assert not ran.exists()


@pytest.mark.usefixtures("as_root")
def test_the_shell_judges_as_the_program_does(place: Path) -> None:
    """Every file that stands in for a program here, and a loop of links, which leads to nothing."""
    (place / "loop").symlink_to("loop")
    judge = Path(transport.__file__).with_name("judge.sh").read_text()
    for path in ("/usr/bin/python3", "/tmp/x", "/usr/bin/../bin/env", str(place / "loop"), "/nowhere/at/all", "/"):
        shell = subprocess.run(["/bin/sh", "-c", f"{judge}judge {path}"], capture_output=True, text=True, check=True)
        assert bool(shell.stdout) == (trusted.weak_point(Path(path)) is not None), (path, shell.stdout)


def test_how_a_python_is_named() -> None:
    words = transport.python_words
    assert words("/opt/venv/bin/python") == ["/opt/venv/bin/python"]
    assert words("python3.11") == ["python3.11"]
    assert words("/usr/bin/env python3 -B") == ["python3", "-B"]
    assert words("auto_silent") == words("auto") == words("") == words("auto_legacy") == [PYTHON]


def test_a_python_is_looked_for_by_its_name() -> None:
    command = transport.bootstrap_command(len(b"print(7)"), "", ["python3", "-B"], [])
    done = subprocess.run(["/bin/sh", "-c", command], input=b"print(7)", capture_output=True, check=False)
    assert done.stdout == b"7\n", done.stderr


def test_a_python_without_memfd_takes_a_file_without_a_name(tmp_path: Path) -> None:
    """One that was built for an old C library, as conda's and uv's are."""
    if not os.access("/run", os.W_OK):
        pytest.skip("only root writes to /run")
    command = transport.bootstrap_command(len(b"print(7)"), str(tmp_path), [PYTHON], [])
    without = command.replace("import os\n", "import os\ndel os.memfd_create\n", 1)
    assert without != command
    done = subprocess.run(["/bin/sh", "-c", without], input=b"print(7)", capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"7\n", b"")
