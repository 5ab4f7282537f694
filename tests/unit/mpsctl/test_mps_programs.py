"""Control daemons, front-ends and servers told apart, though the kernel cuts their names to the same 15 characters."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Iterator, Optional

import pytest

from mpsctl.adapters import control_daemon, hardware, procfs

CONTROL, SERVER = hardware.CONTROL_DAEMON, hardware.SERVER
Start = Callable[..., int]


def wait(process: subprocess.Popen[bytes]) -> None:
    """The kernel changes the name a moment after the new program has begun."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a copy of the shell under a name, that waits for the end of its input; and looks at no other process."""
    shell = shutil.which("sh")
    assert shell is not None
    running: list[subprocess.Popen[bytes]] = []

    def begin(name: str, *arguments: str, title: Optional[str] = None) -> int:
        copy = tmp_path / name
        if not copy.exists():
            shutil.copy(os.path.realpath(shell), copy)
        command = [str(copy) if title is None else title, *arguments]
        process = subprocess.Popen(command, executable=copy, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdin is not None
        process.stdin.write(b"echo up\n")
        process.stdin.flush()
        wait(process)
        return process.pid

    monkeypatch.setattr(procfs, "pids", lambda: iter([process.pid for process in running]))
    yield begin
    for process in running:
        process.communicate()


def test_the_kernel_cannot_tell_them_apart(start: Start) -> None:
    assert procfs.name(start(CONTROL)) == procfs.name(start(SERVER)) == "nvidia-cuda-mps"


@pytest.mark.parametrize("arguments", [(), ("-s",)])
def test_a_server_is_neither_a_daemon_nor_a_front_end(start: Start, arguments: tuple[str, ...]) -> None:
    pid = start(SERVER, *arguments)
    assert hardware.mps_program(pid) == SERVER
    assert list(control_daemon.daemons()) == []


def test_a_daemon_has_arguments_and_a_front_end_none(start: Start) -> None:
    started = start(CONTROL, "-s")
    start(CONTROL)
    start(SERVER)
    assert list(control_daemon.daemons()) == [started]


@pytest.mark.parametrize(
    ("name", "title", "program"),
    [
        (CONTROL, "a title", CONTROL),
        (SERVER, "a title", SERVER),
        (CONTROL, CONTROL, CONTROL),
        (f"{CONTROL}-of-another-name", None, None),
        ("sh", CONTROL, None),
    ],
)
def test_the_command_line_counts_and_where_it_says_nothing_the_file(
    start: Start, name: str, title: Optional[str], program: Optional[str]
) -> None:
    assert hardware.mps_program(start(name, "-s", title=title)) == program


def test_a_file_that_was_removed_still_has_its_name(start: Start, tmp_path: Path) -> None:
    pid = start(SERVER, "-s", title="a title")
    (tmp_path / SERVER).unlink()
    assert hardware.mps_program(pid) == SERVER


def test_a_script_is_told_by_its_own_name(tmp_path: Path) -> None:
    script = tmp_path / CONTROL
    script.write_text("#!/bin/sh\necho up\nread line\n")
    script.chmod(0o755)
    with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait(process)
        assert hardware.mps_program(process.pid) == CONTROL
