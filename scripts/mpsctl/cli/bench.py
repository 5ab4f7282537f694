"""The verb bench: its options, its progress, and where its results go."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from mpsctl.cli import output
from mpsctl.model import foreign
from mpsctl.model.errors import BadValue, MpsctlError, NotReady

if TYPE_CHECKING:  # every call of the program reads the options: what runs is read when it does
    from mpsctl.measuring.bench_results import Report
    from mpsctl.store.world import World


def run(world: World, options: argparse.Namespace) -> int:
    """The sweep; 0, 1 if no run gave a figure, or 128 + n if signal n cut it short. What there is is written.

    3 where it could not be written: the answer has it all the same.
    """
    from mpsctl.adapters import stop_request
    from mpsctl.cli import bench_report
    from mpsctl.cli.fitting import option
    from mpsctl.measuring import bench
    from mpsctl.model import checked_values, quantity

    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    request = bench.Request(
        work=options.work,
        command=command,
        count_lines=options.count_lines,
        processes=_counts(options.processes),
        seconds=number("--seconds", options.seconds, r"[0-9]{1,4}(\.[0-9]{1,3})?", 0.1, 3600),
        rounds=int(number("--rounds", options.rounds, r"[0-9]{1,3}", 1, 100)),
        threads=[option("--threads", text, checked_values.check_thread_percentage) for text in options.threads],
        memory=[option("--memory", text, quantity.parse) for text in options.memory],
        against=options.against,
        instance=options.instance,
        gpu=options.gpu,
        force=options.force,
        inherited=dict(os.environ),
    )
    bench.refuse(request)
    folder = None if options.output is None else Path(options.output)
    if folder is not None:
        _make(folder)
    with stop_request.on_signals() as stopped:
        # On the way as well: what was measured outlives even a SIGKILL.
        def progress(number: int, report: Report) -> None:
            _tell(number, report)
            if folder is not None:
                with suppress(OSError, MpsctlError):  # told at the end
                    bench_report.write(folder, report)

        try:
            report = bench.bench(world, request, stopped, progress)
        finally:
            if sys.stderr.isatty():
                output.say("", stream=sys.stderr)
        written = folder is None or is_written(report.notes, lambda: bench_report.write(folder, report))
        if options.json:
            output.say_json(report.as_json())
        else:
            output.say_lines(bench_report.as_text(report))
            if folder is not None and written:
                output.say(f"written to {folder}")
        if stopped.requested is not None:
            return 128 + stopped.requested
        if not written:
            return NotReady.exit_code
        return 0 if report.points else 1


def _tell(number: int, report: Report) -> None:
    """One line for each run."""
    last = report.runs[-1]
    figures = last.problem or f"{last.throughput:,.1f} requests/s"
    if last.p99_ms is not None and not last.problem:
        figures += f", p99 {last.p99_ms:.2f} ms"
    where = f"round {last.step.round}, {last.step.processes} processes, {last.step.series}"
    show_progress(f"mpsctl bench: {number}/{report.steps} {where}: {figures}")


def is_written(notes: list[str], write: Callable[[], None]) -> bool:
    """Whether ``write`` could. If not, why becomes a note of the answer: what was measured is not lost by it."""
    try:
        write()
    except OSError as error:
        notes.append(f"{error.filename} could not be written ({error.strerror})")
        return False
    except MpsctlError as error:
        notes.append(str(error))
        return False
    return True


def show_progress(line: str) -> None:
    """A line on standard error; on a terminal it takes the place of the one before. One that is lost ends no work."""
    with suppress(OSError):
        if sys.stderr.isatty():
            output.show_in_place(foreign.shown(line, 150), sys.stderr)
        else:
            output.say(line, stream=sys.stderr)


def _make(folder: Path) -> None:
    from mpsctl.adapters import trusted

    trusted.require(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(f"--output {folder} ({error.strerror})", "a folder that can be made", "name another") from None
    if not os.access(folder, os.W_OK):
        raise BadValue(f"--output {folder}", "a folder that can be written", "name another")


def _counts(text: Optional[str]) -> list[int]:
    if text is None:
        return []
    if not re.fullmatch(r"[1-9][0-9]{0,2}(,[1-9][0-9]{0,2})*", text):
        raise BadValue(f"--processes {text!r}", "numbers of processes, with commas", "write for example 1,2,4,8,16")
    return [int(part) for part in text.split(",")]


def number(name: str, text: str, form: str, least: float, most: float) -> float:
    """An option's number.

    :raises BadValue: naming the option.
    """
    if re.fullmatch(form, text) and least <= float(text) <= most:
        return float(text)
    raise BadValue(f"{name} {text!r}", f"a number from {least:g} to {most:g}", "correct it")
