"""What a sweep found, for people and for tools: text, JSON, CSV, plots as SVG, and one page of HTML with all of it.

The page loads nothing from anywhere, follows the reader's light or dark theme, and can be read on a telephone.
"""

from __future__ import annotations

import csv
import io
import json
from html import escape
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import Callable, Optional, Sequence

from mpsctl.adapters import files
from mpsctl.cli import table
from mpsctl.measuring.bench_results import Point, Report, Series

JSON, CSV, THROUGHPUT, P99, PAGE = "bench.json", "bench.csv", "throughput.svg", "p99.svg", "bench.html"
_COLUMNS = ("series", "processes", "requests/s", "spread", "p50 ms", "p99 ms", "GPU %", "MiB", "fairness")
_WIDTH, _PLANE, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 240, 60, 12, 34, 46
_LEGEND = 17
_COLOURS = 6

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5a6675; --paper: #ffffff; --line: #d9dee5; --card: #f5f7f9;
  --c0: #b4530a; --c1: #0b6bcb; --c2: #12805c; --c3: #8a3ffc; --c4: #c2185b; --c5: #6b6f00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b6; --paper: #12161c; --line: #2e3744;
  --card: #1a2029; --c0: #f0a45d; --c1: #6db3ff; --c2: #5fd3a8; --c3: #c4a1ff; --c4: #ff85b3; --c5: #d6da5a; } }
"""
_PLOT_STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--soft); }
.title { font-size: 15px; font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2.5; } .range { stroke-width: 1.5; opacity: .6; }
"""
_PAGE_STYLE = """
* { box-sizing: border-box; } body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: .5rem 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
.verdict { font-size: 1.15rem; border-left: .35rem solid var(--soft); background: var(--card); padding: .8rem 1rem; }
.verdict.yes { border-color: var(--c2); } .verdict.no { border-color: var(--c0); } .soft { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; } .scroll { overflow-x: auto; }
svg { width: 100%; max-width: 46rem; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
li { overflow-wrap: anywhere; }
@media (max-width: 40rem) { thead { display: none; } table, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .1rem .6rem; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  td { display: block; text-align: left; white-space: normal; overflow-wrap: anywhere; border: 0; padding: 0; }
  td:first-child { grid-column: 1 / -1; font-weight: 600; }
  td:not(:first-child)::before { content: attr(data-name); display: block; font-size: .75rem; color: var(--soft); } }
@media print { body { max-width: none; } .plot { break-inside: avoid; } }
"""


def write(folder: Path, report: Report) -> None:
    """All forms of the report, each whole at any moment."""
    for name, text in {
        JSON: json.dumps(report.as_json(), indent=1) + "\n",
        CSV: as_csv(report),
        THROUGHPUT: throughput_plot(report.points),
        P99: p99_plot(report.points),
        PAGE: as_page(report),
    }.items():
        files.write(folder / name, text, lasting=False)


def as_text(report: Report) -> str:
    lines = [
        f"{report.gpu}, driver {report.driver}{' (simulated)' if report.simulated else ''}: {report.work}",
        f"a request: {report.request}; {report.rounds} rounds of {report.seconds:g} s each",
    ]
    lines += table.lines(_COLUMNS, [_row(point) for point in report.points], 1)
    return "\n".join([*lines, *report.all_notes, report.verdict.text])


def _row(point: Point) -> list[str]:
    return [
        str(point.series),
        str(point.processes),
        _short(point.throughput),
        f"{100 * point.spread:.1f} %",
        _short(point.p50_ms),
        _short(point.p99_ms),
        _short(point.utilisation_percent, "cannot tell"),
        _short(point.memory_mib, "cannot tell"),
        f"{point.fairness:.2f}",
    ]


def _short(value: Optional[float], missing: str = "-") -> str:
    if value is None:
        return missing
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def as_csv(report: Report) -> str:
    """One line for each run, in the order in which they were done."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "round",
            "series",
            "thread_percentage",
            "limit_mib",
            "pipe_directory",
            "processes",
            "requests_per_s",
            "p50_ms",
            "p99_ms",
            "utilisation_percent",
            "memory_mib",
            "fairness",
            "problem",
        ]
    )
    for run in report.runs:
        series = run.step.series
        figures = [run.throughput, run.p50_ms, run.p99_ms, run.utilisation_percent, run.memory_mib, run.fairness]
        writer.writerow(
            [
                run.step.round,
                "MPS" if series.mps else "time-sliced",
                series.thread_percentage,
                series.limit_mib,
                series.pipe_directory,
                run.step.processes,
                *(figures if not run.problem else [None] * len(figures)),
                run.problem,
            ]
        )
    return text.getvalue()


def throughput_plot(points: Sequence[Point]) -> str:
    return _plot("throughput, requests/s", points, lambda point: point.throughput, logarithmic=False, ranges=True)


def p99_plot(points: Sequence[Point]) -> str:
    return _plot("p99 latency, ms (logarithmic)", points, lambda point: point.p99_ms, logarithmic=True)


def _plot(
    title: str,
    points: Sequence[Point],
    value_of: Callable[[Point], Optional[float]],
    logarithmic: bool,
    ranges: bool = False,
) -> str:
    """A plot over the number of processes, one line for each series; also without any point."""
    shown = [(point, value) for point in points if (value := value_of(point)) is not None and value > 0]
    counts = sorted({point.processes for point, _ in shown}) or [1]
    most = max((max(value, point.most if ranges else 0) for point, value in shown), default=1.0)
    least = min((value for _, value in shown), default=most)
    every = list(dict.fromkeys(point.series for point in points))
    top = _TOP + _LEGEND * len(every)
    height = top + _PLANE + _BOTTOM
    ticks = _decades(least, most) if logarithmic else _even(most)

    def across(count: int) -> float:
        wide = log2(counts[-1]) - log2(counts[0])
        part = (log2(count) - log2(counts[0])) / wide if wide else 0.5
        return _LEFT + 14 + part * (_WIDTH - _LEFT - _RIGHT - 28)

    def up(value: float) -> float:
        low, high = (log10(ticks[0]), log10(ticks[-1])) if logarithmic else (0.0, ticks[-1])
        part = ((log10(value) if logarithmic else value) - low) / (high - low)
        return top + (1 - part) * _PLANE

    parts = [f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>']
    for tick in ticks:
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{up(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for count in counts:
        parts.append(f'<text x="{across(count):.1f}" y="{height - 26}" text-anchor="middle">{count}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{height - 8}" text-anchor="middle">processes at a time</text>')
    for number, series in enumerate(every):
        mine = [(point, value) for point, value in shown if point.series == series]
        parts += _line(number, series, mine, across, up, ranges)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{escape(title)}">\n<style>{_STYLE}{_PLOT_STYLE}</style>\n{body}\n</svg>\n'
    )


def _line(
    number: int,
    series: Series,
    mine: Sequence[tuple[Point, float]],
    across: Callable[[int], float],
    up: Callable[[float], float],
    ranges: bool,
) -> list[str]:
    colour = f"var(--c{number % _COLOURS})"
    dots = [(across(point.processes), up(value)) for point, value in mine]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    parts = [f'<polyline class="line" points="{joined}" style="stroke:{colour}"/>']
    for (x, y), (point, value) in zip(dots, mine):
        if ranges and point.rounds > 1:
            ends = f'y1="{up(point.least):.1f}" y2="{up(point.most):.1f}"'
            parts.append(f'<line class="range" x1="{x:.1f}" x2="{x:.1f}" {ends} style="stroke:{colour}"/>')
        told = escape(f"{series}, {point.processes} processes: {_short(value)}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" style="fill:{colour}"><title>{told}</title></circle>')
    x, y = _LEFT, _TOP + 6 + _LEGEND * number
    parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="4" style="fill:{colour}"/>')
    parts.append(f'<text x="{x + 18}" y="{y - 3}">{escape(str(series))}</text>')
    return parts


def _even(most: float) -> list[float]:
    """Even steps from 0 to at least ``most``: 1, 2 or 5 times a power of ten."""
    rough = most / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * number for number in range(ceil(most / step) + 1)]


def _decades(least: float, most: float) -> list[float]:
    first, last = floor(log10(least)), ceil(log10(most))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def as_page(report: Report) -> str:
    verdict = report.verdict
    mood = {True: "yes", False: "no", None: "open"}[verdict.pays]
    about = {
        "host": report.host,
        "GPU": f"{report.gpu}{' (simulated)' if report.simulated else ''}",
        "driver": report.driver,
        "work": report.work,
        "a request": report.request,
        "MPS daemon": report.daemon or "none",
        "runs": f"{len(report.runs)} of {report.steps}: {report.rounds} rounds of {report.seconds:g} s each",
        "begun": report.begun,
    }
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in about.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.all_notes)
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = "".join(
        "<tr>"
        + "".join(f'<td data-name="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(_COLUMNS, _row(point)))
        + "</tr>"
        for point in report.points
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>Does MPS pay? {escape(report.work)} on {escape(report.gpu)}</title>
<style>{_STYLE}{_PAGE_STYLE}</style>
</head>
<body>
<h1>Does MPS pay for this work?</h1>
<p class="verdict {mood}">{escape(verdict.text)}</p>
{f'<ul class="soft">{notes}</ul>' if notes else ""}
<div class="plot scroll">{throughput_plot(report.points)}</div>
<div class="plot scroll">{p99_plot(report.points)}</div>
<h2>Figures</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p class="soft">Medians of the rounds; spread is how far they lie apart, as a part of the median; fairness is what the
slowest process gets of what the fastest does. GPU % is the share of time in which any kernel ran.</p>
<h2>How it was measured</h2>
<dl>{facts}</dl>
</body>
</html>
"""
