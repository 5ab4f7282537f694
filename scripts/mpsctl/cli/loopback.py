"""The verb loopback: its options, its progress, its table, and where its results go."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import files, stop_request, trusted
from mpsctl.cli import output, table
from mpsctl.cli.bench import is_written, number, show_progress
from mpsctl.measuring import loopback as measuring
from mpsctl.measuring import loopback_results as values
from mpsctl.measuring.loopback_results import Report
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.store.world import World

_WHOLE = r"[0-9]{1,7}"
_SECONDS = r"[0-9]{1,4}(\.[0-9]{1,3})?"
_COLUMNS = ("backend", "side", "rounds", "steps/s", "least to most", "mean µs", "p50 µs", "p99 µs")


def run(world: World, options: argparse.Namespace) -> int:
    """Try it; 0, 1 where a result was wrong or a failure case did not hold, or 128 + n if signal n cut it short.

    3 where the results could not be written: the answer has them all the same.
    """
    request = measuring.Request(
        python=options.python,
        backends=_backends(options.backends, options.cpu),
        steps=int(number("--steps", options.steps, _WHOLE, 1, 100_000)),
        all_reduces=int(number("--all-reduces", options.all_reduces, _WHOLE, 1, 1_000_000)),
        rounds=int(number("--rounds", options.rounds, _WHOLE, 1, 100)),
        timeout_s=number("--timeout", options.timeout, _SECONDS, 6, 1800),
        instance=options.instance,
        gpu=options.gpu,
        force=options.force,
        cpu=options.cpu,
        inherited=dict(os.environ),
    )
    measuring.refuse(request)
    place = _writable(options.output)
    with stop_request.on_signals() as stopped:

        def progress(line: str, report: Report) -> None:
            show_progress(f"mpsctl loopback: {line}")
            with suppress(OSError, MpsctlError):  # told at the end
                _write(place, report)

        try:
            report = measuring.loopback(world, request, stopped, progress)
        finally:
            if sys.stderr.isatty():
                output.say("", stream=sys.stderr)
        written = is_written(report.notes, lambda: _write(place, report))
        if options.json:
            output.say_json(report.as_json())
        else:
            output.say_lines(as_text(report))
            if place is not None and written:
                output.say(f"written to {place}")
        if stopped.requested is not None:
            return 128 + stopped.requested
        if not written:
            return NotReady.exit_code
        return 0 if report.right else 1


def _backends(text: Optional[str], cpu: bool) -> Sequence[str]:
    if text is None:
        return (values.GLOO,) if cpu else values.BACKENDS
    given = text.split(",")
    if not set(given) <= set(values.BACKENDS):
        raise BadValue(f"--backends {text!r}", "gloo, nccl or both with a comma", "correct it")
    return list(dict.fromkeys(given))


def _writable(text: Optional[str]) -> Optional[Path]:
    if text is None:
        return None
    path = Path(text)
    trusted.require(path.absolute().parent)
    if not files.can_replace(path):
        raise BadValue(f"--output {text}", "a file in a folder that can be written", "name another")
    return path


def _write(path: Optional[Path], report: Report) -> None:
    if path is not None:
        files.write(path, json.dumps(report.as_json(), indent=1) + "\n", lasting=False)


def as_text(report: Report) -> str:
    ran = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    about = "no GPU" if report.cpu else f"{report.gpu}, driver {report.driver}"
    memory = "" if report.half_mib is None else f"; {report.half_mib} MiB for each rank"
    lines = [
        f"{about}{' (simulated)' if report.simulated else ''}{f'; {ran}' if ran else ''}",
        f"two ranks, {report.rounds} rounds of {report.steps} steps of training and {report.all_reduces} all-reduces of"
        f" 4 bytes{memory}",
    ]
    rows = [
        [
            point.backend,
            point.side,
            str(point.rounds),
            f"{point.steps_per_s:,.1f}",
            f"{point.least:,.1f} to {point.most:,.1f}",
            *(f"{value:,.1f}" for value in (point.mean_us, point.p50_us, point.p99_us)),
        ]
        for point in report.points
    ]
    lines += table.lines(_COLUMNS, rows, 2)
    for row in report.nccl:
        if row.outcome != values.MEASURED:
            lines.append(f"nccl, {row.side}: {row.outcome}{f': {row.words}' if row.words else ''}")
    paths = [
        [
            path.name,
            path.backend,
            path.side,
            "pass" if path.held else "fail",
            "-" if path.seconds is None else f"{path.seconds:.1f}",
            path.seen,
        ]
        for path in report.failure_cases
    ]
    lines += table.lines(("failure case", "backend", "side", "held", "s", "seen"), paths, 6)
    return "\n".join([*lines, *report.all_notes, f"{report.verdict[0].upper()}{report.verdict[1:]}"])
