"""The verb top: one look after the other on a terminal, or one look as text."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterator, Optional, Sequence

from mpsctl.adapters import nvml, stop_request
from mpsctl.adapters.repeated import Repeated
from mpsctl.adapters.stop_request import Stop
from mpsctl.checks.judgement import STATUS
from mpsctl.checks.report import report
from mpsctl.cli import output, top_frame, top_view
from mpsctl.cli.bench import number
from mpsctl.cli.top_view import View
from mpsctl.model.errors import NotReady
from mpsctl.observe import gpus
from mpsctl.observe.host import look
from mpsctl.store import configuration
from mpsctl.store.world import World

LOOK_S = 60.0
"""What a look may take; above what a daemon and /proc may take inside it."""
_LATE_S = 1.0
"""How often a screen that waits for a look says for how long."""
_NOTE = "every {:g} s, q ends"


def top(world: World, options: argparse.Namespace) -> int:
    """Show the named instances, or all that have a file: 0, or 128 + n after signal n.

    :raises BadValue: if one that is named has no file, or for an interval that is none.
    """
    interval_s = number("--interval", options.interval, r"[0-9]{1,4}(\.[0-9]{1,3})?", 0.5, 3600)
    configuration.require(world, options.instances)
    if options.json:
        output.say_json(_view(world, options.instances).as_json())
        return 0
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not options.once
    return _Live(world, options.instances, interval_s).run() if live else _once(world, options.instances)


def _view(world: World, names: Sequence[str]) -> View:
    return top_view.of(report(look(world, names or None), STATUS))


def _once(world: World, names: Sequence[str]) -> int:
    columns = os.get_terminal_size(1).columns if sys.stdout.isatty() else None
    for line in top_frame.lines(_view(world, names), columns or None):
        if columns:
            output.say_cut(line, columns)
        else:
            output.say(*line)
    return 0


@contextmanager
def _looks(world: World, names: Sequence[str]) -> Iterator[Callable[[], View]]:
    """In the process that looks: NVML stays open from one look to the next."""
    kept = nvml.Kept(world.nvml)

    def once() -> View:
        host = look(world, names or None, known_gpus=gpus.of(kept.snapshot()))
        return top_view.of(report(host, STATUS))

    try:
        yield once
    finally:
        kept.close()


@contextmanager
def _keys(descriptor: int) -> Iterator[None]:
    """Keys come one by one and are not shown, for the length of the block."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _unsaid(text: str) -> None:
    """What is said on the way would stand in the middle of the screen."""


class _Live:
    """What is on the screen: the last look, and what became of the one that is due."""

    def __init__(self, world: World, names: Sequence[str], interval_s: float) -> None:
        quiet = replace(world, say=_unsaid)
        self._looks: Repeated[View] = Repeated(partial(_looks, quiet, names), "the look at this host")
        self._interval_s = interval_s
        self._view: Optional[View] = None
        self._problem = ""
        self._asked_s: Optional[float] = None
        self._due_s = 0.0
        self._keyboard = 0 if sys.stdin is not None and sys.stdin.isatty() else None

    def run(self) -> int:
        """Until somebody ends it: 0 by a key, 128 + n by signal n."""
        with ExitStack() as stack:
            stack.enter_context(self._looks)
            self._ask()  # before this process has threads or handlers of its own
            stopped = stack.enter_context(stop_request.on_signals())
            changed = stack.enter_context(stop_request.on_signals((signal.SIGWINCH, signal.SIGTSTP)))
            while True:
                with self._terminal():
                    code = self._until_left(stopped, changed)
                if code is not None:
                    return code
                os.kill(os.getpid(), signal.SIGSTOP)  # as Ctrl-Z asks; the shell has its screen back meanwhile

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._keyboard is not None:
                stack.enter_context(_keys(self._keyboard))
            stack.enter_context(output.whole_screen(sys.stdout))
            yield

    def _until_left(self, stopped: Stop, changed: Stop) -> Optional[int]:
        """The exit code, or None where the terminal is to be given back for a while."""
        while True:
            if stopped.requested is not None:
                return 128 + stopped.requested
            if changed.requested is not None:
                left = changed.requested == signal.SIGTSTP
                changed.rearm()
                if left:
                    return None
            self._show()
            asked: list[Repeated[View]] = [self._looks] if self._asked_s is not None else []
            keyboard = [] if self._keyboard is None else [self._keyboard]
            watched: list[Any] = [stopped, changed, *asked, *keyboard]
            ready, _, _ = select.select(watched, [], [], self._pause_s())
            if self._keyboard in ready and self._pressed(os.read(0, 64)):
                return 0
            self._go_on(self._looks in ready)

    def _pressed(self, keys: bytes) -> bool:
        """Whether a key ends it. A keyboard that is gone is asked no more."""
        if not keys:
            self._keyboard = None
        return b"q" in keys or b"Q" in keys

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        if self._asked_s is None:
            return max(0.0, self._due_s - now_s)
        return _LATE_S

    def _go_on(self, answered: bool) -> None:
        """Take an answer, give up one that does not come, ask anew when it is time."""
        now_s = time.monotonic()
        if self._asked_s is not None:
            if answered:
                try:
                    self._view, self._problem = self._looks.answer(), ""
                except NotReady as error:
                    self._problem = str(error)
            elif now_s - self._asked_s >= LOOK_S:
                self._looks.end()
                self._problem = f"the look did not end within {LOOK_S:g} s and was given up"
            else:
                return
            self._asked_s, self._due_s = None, now_s + self._interval_s
        elif now_s >= self._due_s:
            self._ask()

    def _ask(self) -> None:
        try:
            self._looks.ask()
            self._asked_s = time.monotonic()
        except NotReady as error:
            self._problem, self._due_s = str(error), time.monotonic() + self._interval_s

    def _show(self) -> None:
        size = os.get_terminal_size(1)
        columns, rows = size.columns or 80, size.lines or 24
        late_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        note = self._problem or (f"a look takes {late_s:.0f} s so far" if late_s >= 2 * _LATE_S else "")
        note = "  ".join(part for part in (_NOTE.format(self._interval_s), note) if part)
        lines = top_frame.lines(self._view, columns, rows, note) if self._view else [(f"looking; {note}",)]
        output.show_screen(lines, sys.stdout, columns)
