"""The line between "skip this host" and "could not tell": the unit's own ExecCondition, run as systemd runs it.

systemd takes 1 to 254 of a condition for a reason to skip, and never tries a skipped unit again.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Callable

import pytest

from mpsctl.adapters import hardware
from mpsctl.cli.unit import SKIP
from shell import Shell
from test_build import builder

PROJECT = Path(__file__).resolve().parents[3]
UNIT = PROJECT / "roles/mps/templates/mps-control@.service.j2"
START, FAILED = 0, 255
PROGRAM = "/usr/local/bin/mpsctl"


def words_of_condition(program: Path, instance: str = "0") -> list[str]:
    """The command of ExecCondition, with its words as systemd makes them, for another program."""
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecCondition=")]
    words = shlex.split(line.partition("=")[2].removeprefix("+"))
    assert words.count(PROGRAM) == 1
    replaced = {PROGRAM: str(program), "%i": instance}
    return [replaced.get(word, word).replace("$$", "$") for word in words]


class Condition:
    """A program, and what its judgement comes to. The pause before a failure is not waited for, and is counted."""

    def __init__(self, place: Path) -> None:
        self.program, self._path, self._paused = place / "mpsctl", place / "bin", place / "paused"
        self._path.mkdir()
        (self._path / "sleep").write_text(f'#!/bin/sh\necho "$1" >>{self._paused}\n')
        (self._path / "sleep").chmod(0o755)

    def script(self, text: str, mode: int = 0o755) -> None:
        self.program.write_text(text)
        self.program.chmod(mode)

    def ends(self, instance: str = "0", before: Callable[[], None] = lambda: None) -> int:
        done = subprocess.run(
            words_of_condition(self.program, instance),
            env={"PATH": f"{self._path}:/usr/bin:/bin"},
            capture_output=True,
            check=False,
            timeout=60,
            preexec_fn=before,
        )
        return done.returncode

    @property
    def pauses_s(self) -> list[int]:
        return [int(word) for word in self._paused.read_text().split()] if self._paused.exists() else []


@pytest.fixture
def condition(tmp_path: Path) -> Condition:
    return Condition(tmp_path)


@pytest.mark.sentenceless
def test_a_start_and_the_one_skip_are_told_as_they_are(condition: Condition) -> None:
    condition.script(f'#!/bin/sh\n[ "$*" = "condition odd name" ] || exit 0\nexit {SKIP}\n')
    assert condition.ends() == START
    assert condition.ends("odd name") == SKIP
    assert condition.pauses_s == []


def test_the_programs_own_skip_is_that_code(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert mpsctl("condition", "0") == SKIP


@pytest.mark.sentenceless
@pytest.mark.parametrize("code", [code for code in range(1, 256) if code != SKIP])
def test_every_other_code_is_a_failure(condition: Condition, code: int) -> None:
    condition.script(f"#!/bin/sh\nexit {code}\n")
    assert condition.ends() == FAILED
    assert condition.pauses_s == [10], "systemd tries again after 20 ms"


@pytest.mark.sentenceless
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE])
def test_a_program_that_a_signal_ends_is_a_failure(condition: Condition, number: signal.Signals) -> None:
    condition.script(f"#!/bin/sh\nkill -{int(number)} $$\n")
    assert condition.ends() == FAILED


def _absent(path: Path) -> None:
    path.unlink()


def _no_python(path: Path) -> None:
    path.write_bytes(b"#!/nowhere/python3 -IS\n" + path.read_bytes().partition(b"\n")[2])


def _not_executable(path: Path) -> None:
    path.chmod(0o644)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200_000])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _damaged_inside(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"def condition", b"!!! condition"))


def _without_a_module(path: Path) -> None:
    with zipfile.ZipFile(path) as before:
        kept = {name: before.read(name) for name in before.namelist() if name != "mpsctl/lifecycle/prepare.py"}
    path.write_bytes(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(path, "a") as after:
        for name, data in kept.items():
            after.writestr(name, data)


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def _a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES = (
    _absent,
    _no_python,
    _not_executable,
    _empty,
    _cut_short,
    _zeros,
    _damaged_inside,
    _without_a_module,
    _a_folder,
    _a_fifo,
    _a_link_to_nothing,
    _a_link_to_itself,
)


@pytest.mark.sentenceless
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__.strip("_").replace("_", " "))
def test_a_program_that_cannot_be_run_is_a_failure(condition: Condition, damage: Callable[[Path], None]) -> None:
    builder().build(condition.program)
    whole = condition.program.read_bytes().replace(b"#!/usr/bin/python3", f"#!{sys.executable}".encode(), 1)
    condition.program.write_bytes(whole)
    assert condition.ends() in (START, SKIP), "the program itself"
    damage(condition.program)
    # An empty file is a script that does nothing, to a shell. systemd does not run it: its prepare fails (203/EXEC).
    assert condition.ends() == (START if damage is _empty else FAILED)


@pytest.mark.sentenceless
@pytest.mark.skipif(os.geteuid() != 0, reason="root's processes are not counted")
def test_a_shell_that_can_start_nothing_is_a_failure(root: Path) -> None:
    condition = Condition(root)

    def poor() -> None:
        import resource

        os.setgid(12321)
        os.setuid(12321)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    condition.script(f"#!/bin/sh\nexit {SKIP}\n")
    assert condition.ends(before=poor) == FAILED
