"""The live view on a terminal of its own: it starts, follows the size, ends by a key or a signal, and restores it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from typing import Callable, Iterator, Optional

import pytest

from fakes import Host
from mpsctl.cli import main as command_line
from mpsctl.cli import top_frame
from mpsctl.model.errors import FAULT
from shell import Shell

MOMENT_S = 60.0
"""What a test waits for something that happens at once."""
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A terminal with the program on it, in a process of its own that has this one's fakes."""

    def __init__(self, words: list[str], columns: int = 100, rows: int = 30) -> None:
        self.seen = ""
        self.pid, self._main = pty.fork()
        if self.pid == 0:
            self._run(words, columns, rows)
        self.before = termios.tcgetattr(self._main)

    def _run(self, words: list[str], columns: int, rows: int) -> None:
        code = 99
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, "r"), os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ["TERM"] = "xterm"
            code = command_line.main(words)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def until(self, done: Callable[[str], object], what: str) -> str:
        """All that came since the last call until it is enough."""
        end_s = time.monotonic() + MOMENT_S
        begin = len(self.seen)
        while not done(self.seen[begin:]):
            assert time.monotonic() < end_s, f"{what}: {self.seen[begin:]!r}"
            if not self._read(end_s):
                assert done(self.seen[begin:]), f"{what}: the program ended: {self.seen[begin:]!r}"
        return self.seen[begin:]

    def _read(self, end_s: float) -> bool:
        if not select.select([self._main], [], [], max(0.0, min(1.0, end_s - time.monotonic())))[0]:
            return True
        try:
            data = os.read(self._main, 1 << 16)
        except OSError:  # nobody has its other end any more
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def code(self) -> int:
        """How it ended; what it wrote until then is read."""
        end_s = time.monotonic() + MOMENT_S
        while time.monotonic() < end_s and self._read(end_s):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    @property
    def restored(self) -> bool:
        """Whether the former screen, its cursor and its keys are back."""
        screens = re.findall(r"\x1b\[\?1049[hl]", self.seen)
        return (
            self.seen.rfind("\x1b[?25h") > self.seen.rfind("\x1b[?25l") and screens[-1] == LEFT and self.keys_are_whole
        )

    @property
    def keys_are_whole(self) -> bool:
        flags = int(termios.tcgetattr(self._main)[3])
        return flags & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._main)


Open = Callable[..., Terminal]


@pytest.fixture
def open_(mpsctl: Shell, live: Host) -> Iterator[Open]:
    del mpsctl, live  # the fakes of a host on which an instance runs
    opened: list[Terminal] = []

    def one(*words: str, **size: int) -> Terminal:
        opened.append(Terminal(["top", *words], **size))
        return opened[-1]

    yield one
    for each in opened:
        each.end()


def a_frame(said: str) -> Optional[re.Match[str]]:
    return re.search(r"INSTANCE.*serve\.py\x1b\[J", said, re.DOTALL)


def test_it_shows_a_look_and_ends_by_its_key(open_: Open) -> None:
    terminal = open_()
    said = terminal.until(a_frame, "a frame")
    assert said.startswith(ENTERED)
    assert not terminal.keys_are_whole
    terminal.type("x q")
    assert terminal.code() == 0
    assert terminal.restored


def test_one_look_follows_the_other(open_: Open) -> None:
    terminal = open_("--interval", "0.5")
    for _ in range(3):
        terminal.until(a_frame, "a frame")
    terminal.type("q")
    assert terminal.code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_with_the_terminal_as_it_was(open_: Open, number: signal.Signals) -> None:
    terminal = open_()
    terminal.until(a_frame, "a frame")
    os.kill(terminal.pid, number)
    assert terminal.code() == 128 + number
    assert terminal.restored


def test_ctrl_c_ends_it_as_it_ends_every_verb(open_: Open) -> None:
    terminal = open_()
    terminal.until(a_frame, "a frame")
    terminal.type("\x03")
    assert terminal.code() == 130
    assert terminal.restored


def test_it_follows_the_size_of_the_terminal(open_: Open) -> None:
    terminal = open_("--interval", "3600", columns=130)
    assert "DEVICE" in terminal.until(a_frame, "a frame")
    terminal.resize(60, 10)
    said = terminal.until(lambda new: re.search(r"INSTANCE.*\x1b\[J", new, re.DOTALL), "a frame of the new size")
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", said[said.rfind("\x1b[H") :]).splitlines()
    assert max(len(line.rstrip("\r")) for line in lines) <= 60
    assert "DEVICE" not in said
    terminal.type("q")
    assert terminal.code() == 0


def test_ctrl_z_gives_the_terminal_back_for_as_long_as_it_lasts(open_: Open) -> None:
    terminal = open_("--interval", "0.5")
    terminal.until(a_frame, "a frame")
    os.kill(terminal.pid, signal.SIGTSTP)
    terminal.until(lambda new: LEFT in new, "the former screen")
    _, status = os.waitpid(terminal.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert terminal.restored
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(lambda new: ENTERED in new and a_frame(new), "a frame")
    terminal.type("q")
    assert terminal.code() == 0
    assert terminal.restored


def test_a_fault_leaves_the_terminal_as_it_was(open_: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(top_frame, "lines", faulty)
    terminal = open_()
    assert terminal.code() == FAULT
    assert terminal.restored
    assert "ZeroDivisionError" in terminal.seen[terminal.seen.rfind(LEFT) :]


def test_a_look_that_fails_is_said_and_the_next_is_made(
    open_: Open, monkeypatch: pytest.MonkeyPatch, live: Host
) -> None:
    from mpsctl.cli import top

    real, mark = getattr(top, "report"), live.places.root / "fail"  # noqa: B009 (it is not top's own)

    def sometimes(*arguments: object) -> object:
        if mark.exists():
            raise ZeroDivisionError("division by zero")
        return real(*arguments)

    monkeypatch.setattr(top, "report", sometimes)
    mark.touch()
    terminal = open_("--interval", "0.5")
    terminal.until(lambda new: "ZeroDivisionError" in new, "what failed")
    mark.unlink()
    terminal.until(a_frame, "a frame")
    mark.touch()
    said = terminal.until(lambda new: re.search(r"ZeroDivisionError.*serve\.py\x1b\[J", new, re.DOTALL), "both")
    assert said
    terminal.type("q")
    assert terminal.code() == 0


@pytest.mark.parametrize(("words", "term"), [(["--once"], "xterm"), ([], "dumb")])
def test_one_look_on_a_terminal_takes_no_screen(
    open_: Open, monkeypatch: pytest.MonkeyPatch, words: list[str], term: str
) -> None:
    real = command_line.main

    def on_such(arguments: list[str]) -> int:
        os.environ["TERM"] = term
        return real(arguments)

    monkeypatch.setattr(command_line, "main", on_such)
    terminal = open_(*words, columns=50)
    assert terminal.code() == 0
    assert ENTERED not in terminal.seen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen)
    assert "INSTANCE" in plain
    assert max(map(len, plain.splitlines())) <= 50
