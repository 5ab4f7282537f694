"""The arithmetic of a sweep on invented numbers: order, medians, verdicts, and the forms of the report."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Mapping, Optional, Sequence

import pytest

from mpsctl.cli import bench_report
from mpsctl.measuring import bench_results
from mpsctl.measuring.bench_results import Report, Run, Series, Step

SLICED, MPS, HALF = Series(False), Series(True), Series(True, 50.0)
OTHER = Series(True, pipe_directory="/run/by-hand")


def run(series: Series, processes: int, throughput: float, round_: int = 1, **more: float) -> Run:
    each = throughput / processes
    known = {"p50_ms": 1.0, "p99_ms": 2.0, "utilisation_percent": 90.0, **more}
    return Run(Step(round_, processes, series), (each,) * processes, memory_mib=900, **known)  # type: ignore[arg-type]


def sweep(table: Mapping[Series, Mapping[int, float]], noise: Sequence[float] = (0.995, 1.0, 1.005)) -> list[Run]:
    return [
        run(series, processes, throughput * factor, number + 1)
        for series, row in table.items()
        for processes, throughput in row.items()
        for number, factor in enumerate(noise)
    ]


def report(runs: Sequence[Run], stopped: Optional[str] = None) -> Report:
    made = Report("host", "NVIDIA H200", "580.159.04", "launch", "4 kernels", 2.0, 3, "instance 0", stopped=stopped)
    made.runs, made.steps = list(runs), 99
    return made


# -- order


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize("series", [[SLICED, MPS], [SLICED, MPS, HALF], [MPS]])
@pytest.mark.parametrize("processes", [[1], [1, 2, 4], [1, 2, 4, 8]])
def test_every_step_is_run_once_a_round_and_the_sides_take_turns(
    rounds: int, series: list[Series], processes: list[int]
) -> None:
    steps = bench_results.order(processes, series, rounds)
    assert sorted((s.round, s.processes, str(s.series)) for s in steps) == sorted(
        (number, count, str(one)) for number in range(1, rounds + 1) for count in processes for one in series
    )
    alternations = [
        [s.series for s in steps_] for _, steps_ in itertools.groupby(steps, lambda s: (s.round, s.processes))
    ]
    assert all(one in (series, series[::-1]) for one in alternations)
    for count in processes:
        mine = [one for one, (_, n) in zip(alternations, itertools.product(range(rounds), processes)) if n == count]
        assert all(one == other[::-1] for one, other in zip(mine, mine[1:])), "who is first changes from round to round"


# -- statistics


@pytest.mark.parametrize(
    ("values", "percent", "is_"),
    [
        ([], 50, None),
        ([7.0], 99, 7.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 101)], 50, 50.0),
        ([float(n) for n in range(1, 11)], 99, 10.0),
    ],
)
def test_percentiles_are_values_that_were_seen(values: list[float], percent: float, is_: Optional[float]) -> None:
    assert bench_results.percentile(values, percent) == is_


def test_rounds_give_medians_and_their_spread() -> None:
    [point] = bench_results.points(
        [run(MPS, 4, throughput, number) for number, throughput in enumerate((90, 100, 120))]
    )
    assert (point.rounds, point.throughput, point.least, point.most) == (3, 100, 90, 120)
    assert point.spread == pytest.approx(0.3)


def test_a_run_with_a_problem_is_no_figure() -> None:
    assert bench_results.points([Run(Step(1, 4, MPS), problem="out of memory"), Run(Step(1, 2, MPS))]) == []


@pytest.mark.parametrize(
    ("rates", "fairness"), [((5.0, 10.0), 0.5), ((3.0, 3.0), 1.0), ((0.0, 2.0), 0.0), ((0.0,), 0.0)]
)
def test_fairness_is_what_the_slowest_gets_of_the_fastest(rates: tuple[float, ...], fairness: float) -> None:
    assert Run(Step(1, 2, MPS), rates).fairness == fairness


# -- verdicts


H200 = {
    SLICED: {1: 2773.0, 4: 2105.0, 16: 1935.0, 32: 1900.0},
    MPS: {1: 2745.0, 4: 10908.0, 16: 42752.0, 32: 42800.0},
}


@pytest.mark.parametrize(
    ("table", "pays", "says"),
    [
        (
            H200,
            True,
            [
                "MPS gives 22.1 times the throughput at 16 processes: 42,752 against 1,935",
                "past 16 nothing more",
                "at 1 it costs 1 %",
                "one alone leaves the GPU idle in part (16 do 15.6 times the work of one)",
            ],
        ),
        ({SLICED: {1: 100, 4: 60}, MPS: {1: 100, 4: 100}}, True, ["1.67 times", "time-slicing loses", "costs nothing"]),
        (
            {SLICED: {1: 989, 2: 894}, MPS: {1: 996, 2: 1036}},
            True,
            [
                "1.16 times",
                "one alone all but fills the GPU (2 do 1.04 times the work of one)",
                "the rounds' spread (1 %)",
            ],
        ),
        (
            {SLICED: {1: 100, 4: 100}, MPS: {1: 102, 4: 101}},
            False,
            ["does not pay", "one process fills the GPU already"],
        ),
        ({SLICED: {1: 100, 4: 100}, MPS: {1: 90, 4: 80}}, False, ["does not pay", "only 0.80 times", "at 4 processes"]),
        (
            {SLICED: {2: 100, 4: 100, 8: 100}, MPS: {2: 101, 4: 90, 8: 70}},
            False,
            ["does not pay", "only 0.70 times the throughput at 8 processes"],
        ),
        ({SLICED: {2: 100}, MPS: {2: 100}, HALF: {2: 150}}, True, ["1.50 times", "(MPS 50 %)"]),
        ({MPS: {1: 100, 4: 390}}, None, ["Only MPS was measured", "4 processes do 3.9 times the work of one"]),
        ({SLICED: {1: 100, 4: 90}}, None, ["Only time-slicing was measured"]),
        ({SLICED: {1: 100}, MPS: {1: 96}}, None, ["more than one process", "at 1 it costs 4 %"]),
        ({SLICED: {2: 100}, MPS: {4: 96}}, None, ["no common number"]),
        ({}, None, ["Nothing was measured"]),
        ({SLICED: {1: 0, 2: 0}, MPS: {1: 0, 2: 0}}, None, ["not one request was done", "cannot be told"]),
        ({SLICED: {1: 5, 2: 0, 4: 0}, MPS: {1: 5, 2: 9, 4: 9}}, None, ["not one request", "cannot be told"]),
        ({SLICED: {2: 5, 4: 0}, MPS: {2: 10, 4: 20}}, True, ["2.0 times the throughput at 2 processes"]),
    ],
)
def test_the_verdict_is_true_to_the_numbers(
    table: Mapping[Series, Mapping[int, float]], pays: Optional[bool], says: list[str]
) -> None:
    found = bench_results.judge(bench_results.points(sweep(table)))
    assert found.pays is pays, found.text
    for part in says:
        assert part in found.text
    assert found.text.endswith(".")
    assert "\n" not in found.text


def test_what_the_rounds_do_not_agree_on_is_no_gain() -> None:
    table = {SLICED: {4: 100.0}, MPS: {4: 115.0}}
    assert bench_results.judge(bench_results.points(sweep(table))).pays is True
    assert bench_results.judge(bench_results.points(sweep(table, noise=(0.85, 1.0, 1.1)))).pays is False


@pytest.mark.parametrize(
    ("sliced", "shared", "noted"),
    [((100, 100), (500, 60), True), ((100, 100), (500, 99), False), ((100, 100), (90, 60), False)],
)
def test_utilisation_that_falls_while_work_gets_faster_is_explained(
    sliced: tuple[float, float], shared: tuple[float, float], noted: bool
) -> None:
    runs = [
        run(SLICED, 4, sliced[0], utilisation_percent=sliced[1]),
        run(MPS, 4, shared[0], utilisation_percent=shared[1]),
    ]
    note = bench_results.utilisation_note(bench_results.points(runs))
    assert (note is not None) == noted
    if note:
        assert "from 100 % to 60 % at 4 processes" in note
        assert "share of time in which any kernel ran" in note


def test_a_sweep_that_was_cut_short_says_so() -> None:
    assert report(sweep(H200), "SIGTERM").verdict.text.startswith("Stopped by SIGTERM after 24 of 99 runs. MPS gives")
    assert report([], "SIGINT").verdict.text == (
        "Stopped by SIGINT after 0 of 99 runs. Nothing was measured, so nothing can be said."
    )


# -- forms


@pytest.mark.parametrize(
    ("p99_ms", "throughput", "says"),
    [
        (  # an H200 with driver 580, small kernels
            {8: 0.357, 16: 0.366, 32: 4.38, 48: 12.1},
            {8: 23_238.0, 16: 45_756.0, 32: 47_381.0, 48: 47_665.0},
            "From 16 to 32 processes under MPS the throughput changes by +4 % and the p99 latency grows 12.0 times,"
            " from 0.366 to 4.38 ms.",
        ),
        ({1: 1.0, 2: 4.0}, {1: 100.0, 2: 90.0}, "changes by -10 % and the p99 latency grows 4.0 times"),
        ({1: 1.0, 2: 4.0}, {1: 100.0, 2: 190.0}, None),  # worth its wait
        ({1: 1.0, 2: 1.9}, {1: 100.0, 2: 101.0}, None),
        ({1: 1.0}, {1: 100.0}, None),
    ],
)
def test_from_where_on_more_processes_only_wait(
    p99_ms: Mapping[int, float], throughput: Mapping[int, float], says: Optional[str]
) -> None:
    runs = [run(MPS, count, throughput[count], p99_ms=p99_ms[count]) for count in p99_ms]
    runs += [run(SLICED, count, 100.0, p99_ms=100.0 * count) for count in p99_ms]
    note = bench_results.latency_note(bench_results.points(runs))
    assert (note is None) if says is None else (says in str(note))


@pytest.mark.parametrize(
    ("sliced", "shared", "says"),
    [
        ([187.4, 220.1, 250.4], [281.0, 285.6, 252.7], "it makes no difference beyond the rounds' spread (29 %)"),
        ([100.0, 100.5, 101.0], [95.0, 95.5, 96.0], "it costs 5 %"),
        ([100.0, 100.0, 100.0], [100.1, 100.2, 100.3], "it costs nothing"),
    ],
)
def test_a_difference_at_one_process_is_told_only_beyond_the_spread(
    sliced: Sequence[float], shared: Sequence[float], says: str
) -> None:
    # The first is a torch model on an H200 with driver 580.
    runs = [run(one, 1, rate, n) for one, rates in ((SLICED, sliced), (MPS, shared)) for n, rate in enumerate(rates, 1)]
    many = sweep({SLICED: {16: 1156.0}, MPS: {16: 3251.0}})
    assert f"; at 1 {says}; " in bench_results.judge(bench_results.points([*runs, *many])).text


@pytest.mark.parametrize("shared", [{1: 104.0}, {1: 96.0, 2: 100.0}, {2: 150.0}, {2: 90.0}])
@pytest.mark.parametrize(("rounds", "of_sliced"), [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_a_verdict_on_one_round_says_so(shared: Mapping[int, float], rounds: int, of_sliced: int) -> None:
    runs = sweep({MPS: shared}, [1.0] * rounds) + sweep({SLICED: dict.fromkeys(shared, 100.0)}, [1.0] * of_sliced)
    said = "One round: how far rounds lie apart is not known." in bench_results.judge(bench_results.points(runs)).text
    assert said is (1 in (rounds, of_sliced))


def test_another_daemon_is_compared_round_by_round_and_has_no_part_in_the_verdict() -> None:
    drift = [1.0, 0.5, 0.25]  # of both alike: the rounds decide nothing
    rounds = [
        run(one, 4, each * factor, number)
        for number, factor in enumerate(drift, 1)
        for one, each in ((SLICED, 100.0), (MPS, 198.0), (OTHER, 200.0 if number < 3 else 190.0))
    ]
    rounds.append(Run(Step(4, 4, OTHER), problem="no room"))
    [found] = bench_results.against(rounds)
    assert (found.pipe_directory, found.processes, found.rounds) == ("/run/by-hand", 4, 3)
    assert found.part == pytest.approx(0.99)
    assert found.told("instance 0") == (
        "instance 0: 0.990 of the throughput of the daemon at /run/by-hand (4 processes, median of 3 rounds)"
    )
    many = sweep({SLICED: {2: 100.0}, MPS: {2: 150.0}, OTHER: {2: 900.0}})
    verdict = bench_results.judge(bench_results.points(many))
    assert verdict.pays
    assert "1.50 times" in verdict.text


def test_a_daemon_with_nothing_to_compare() -> None:
    assert bench_results.against([run(MPS, 4, 100.0)]) == bench_results.against([run(OTHER, 4, 100.0)]) == []


AWKWARD = '<b>&"quote"</b>'


def reports() -> list[Report]:
    odd = report([run(Series(True, 12.5, 4096), 2, 1e-3), Run(Step(1, 4, SLICED), problem=AWKWARD)])
    odd.work, odd.notes = AWKWARD, [AWKWARD]
    blind = report([Run(Step(1, 1, SLICED), (5.0,)), Run(Step(1, 1, MPS), (0.0,))])
    compared = report(sweep({SLICED: {2: 100.0}, MPS: {2: 150.0}, OTHER: {2: 149.0}}))
    return [report(sweep(H200)), report([]), odd, blind, compared]


@pytest.mark.parametrize("made", reports())
def test_every_form_is_well_made_and_whole(made: Report, tmp_path: Path) -> None:
    bench_report.write(tmp_path, made)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["bench.json", "bench.csv", "throughput.svg", "p99.svg", "bench.html"]
    )
    for name in ("throughput.svg", "p99.svg"):
        plot = ElementTree.parse(tmp_path / name).getroot()
        lines = plot.findall(".//{http://www.w3.org/2000/svg}polyline")
        assert len(lines) == len({point.series for point in made.points})
        assert "nan" not in (tmp_path / name).read_text()
    page = (tmp_path / "bench.html").read_text()
    ElementTree.fromstring(page.replace("<!DOCTYPE html>\n", ""))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    assert not [
        word
        for word in ("http:", "https:", "url(", "<script", "@import")
        if word in page.replace("http://www.w3.org/2000/svg", "")
    ], "nothing is loaded from anywhere"
    head = re.findall(r"<th>([^<]*)</th>", page)
    named = re.findall(r'<td data-name="([^"]*)">', page)
    assert named == head * (len(named) // len(head)), "without the head, on a telephone, each cell has its name"
    assert AWKWARD not in page
    told = json.loads((tmp_path / "bench.json").read_text())
    assert told["verdict"]["text"] == made.verdict.text
    assert len(told["runs"]) == len(made.runs)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "bench.csv").read_text())))
    assert len(rows) == len(made.runs)
    assert made.verdict.text in bench_report.as_text(made)


def test_dots_stand_where_the_figures_are() -> None:
    plot = ElementTree.fromstring(bench_report.throughput_plot(bench_results.points(sweep(H200))))
    told = {
        circle.findtext("{http://www.w3.org/2000/svg}title"): (
            float(circle.get("cx", "")),
            float(circle.get("cy", "")),
        )
        for circle in plot.iter("{http://www.w3.org/2000/svg}circle")
    }
    assert len(told) == 8
    assert told["MPS, 16 processes: 42,752"][1] < told["MPS, 4 processes: 10,908"][1], "higher up is more"
    assert (
        told["MPS, 1 processes: 2,745"][0] < told["MPS, 4 processes: 10,908"][0] < told["MPS, 16 processes: 42,752"][0]
    )


def test_what_is_not_known_is_said_to_be() -> None:
    text = bench_report.as_text(report([Run(Step(1, 1, SLICED), (5.0,))]))
    assert text.count("cannot tell") == 2
