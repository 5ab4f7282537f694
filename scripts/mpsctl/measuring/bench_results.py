"""Does sharing pay: the steps of a sweep, what many runs say together, and the verdict in one sentence.

Runs with MPS and without alternate, and change places from round to round, so that a GPU that grows warm or a host
that grows busy decides nothing. What counts is the median of the rounds, and a difference must be larger
than their spread.

It is long, and stays one module: the rules by which steps are paired, judged and put into words are read as one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Iterable, Optional, Sequence

_NOISE = 0.03
"""Below this part of a difference nothing is said, however small the spread."""
ONE_ROUND = "one round: how far rounds lie apart is not known"
_IDLE = 1.1
"""From so many times the work of one on, one alone left the GPU idle in part."""
_FULL = 0.97
"""From this part of the highest throughput on, more processes bring nothing more."""

_LITTLE, _LONGER = 1.1, 2.0
"""Less than so many times the throughput is little; more than so many times the wait is much longer."""


@dataclass(frozen=True)
class Series:
    """One way to share a GPU: time-sliced, or under MPS with a thread percentage and a memory limit in MiB.

    ``pipe_directory`` is that of another daemon than the one in question, with which it is compared.
    """

    mps: bool
    thread_percentage: Optional[float] = None
    limit_mib: Optional[int] = None
    pipe_directory: Optional[str] = None

    def __str__(self) -> str:
        if not self.mps:
            return "time-sliced"
        if self.pipe_directory is not None:
            return f"MPS of {self.pipe_directory}"
        parts = [] if self.thread_percentage is None else [f"{self.thread_percentage:g} %"]
        parts += [] if self.limit_mib is None else [f"{self.limit_mib} MiB"]
        return " ".join(["MPS", ", ".join(parts)]).strip()


@dataclass(frozen=True)
class Step:
    """One run of the sweep. Rounds count from 1."""

    round: int
    processes: int
    series: Series


def order(processes: Sequence[int], series: Sequence[Series], rounds: int) -> list[Step]:
    """The runs of a sweep: all series of a number of processes one after the other, in alternating order."""
    steps = []
    for number in range(rounds):
        for place, count in enumerate(processes):
            alternation = series if (number + place) % 2 == 0 else series[::-1]
            steps += [Step(number + 1, count, one) for one in alternation]
    return steps


def percentile(values: Sequence[float], percent: float) -> Optional[float]:
    """The smallest value that this percentage of the values does not exceed (nearest rank); None of nothing."""
    if not values:
        return None
    in_order = sorted(values)
    rank = -(-len(in_order) * percent // 100)
    return in_order[max(0, int(rank) - 1)]


@dataclass(frozen=True)
class Run:
    """What one step gave. ``rates`` are the requests per second of each process.

    ``utilisation_percent`` is the median of NVML's samples, ``memory_mib`` the highest, None where it does not tell.
    ``problem`` says why there is no figure.
    """

    step: Step
    rates: tuple[float, ...] = ()
    p50_ms: Optional[float] = None
    p99_ms: Optional[float] = None
    utilisation_percent: Optional[float] = None
    memory_mib: Optional[int] = None
    problem: Optional[str] = None

    @property
    def throughput(self) -> float:
        return sum(self.rates)

    @property
    def fairness(self) -> float:
        """What the slowest process gets of what the fastest does: 1 is fair."""
        return min(self.rates) / max(self.rates) if self.rates and max(self.rates) > 0 else 0.0


@dataclass(frozen=True)
class Point:
    """The rounds of one series at one number of processes: medians, and the least and most throughput."""

    series: Series
    processes: int
    rounds: int
    throughput: float
    least: float
    most: float
    p50_ms: Optional[float]
    p99_ms: Optional[float]
    utilisation_percent: Optional[float]
    memory_mib: Optional[int]
    fairness: float

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a part of the median."""
        return (self.most - self.least) / self.throughput if self.throughput else 0.0


def points(runs: Iterable[Run]) -> list[Point]:
    """What the good runs say together, by series in their first order, then by processes."""
    found: dict[tuple[Series, int], list[Run]] = {}
    for run in runs:
        if not run.problem and run.rates:
            found.setdefault((run.step.series, run.step.processes), []).append(run)
    in_order = list(dict.fromkeys(series for series, _ in found))
    in_order.sort(
        key=lambda series: (
            series.mps,
            series.pipe_directory is not None,
            -(series.thread_percentage or 1000),
            series.limit_mib or 0,
        )
    )
    return [_point(*key, found[key]) for key in sorted(found, key=lambda key: (in_order.index(key[0]), key[1]))]


def _point(series: Series, processes: int, runs: Sequence[Run]) -> Point:
    throughputs = [run.throughput for run in runs]
    memory = _median([run.memory_mib for run in runs])
    return Point(
        series=series,
        processes=processes,
        rounds=len(runs),
        throughput=median(throughputs),
        least=min(throughputs),
        most=max(throughputs),
        p50_ms=_median([run.p50_ms for run in runs]),
        p99_ms=_median([run.p99_ms for run in runs]),
        utilisation_percent=_median([run.utilisation_percent for run in runs]),
        memory_mib=None if memory is None else int(memory),
        fairness=median(run.fairness for run in runs),
    )


def _median(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return median(known) if known else None


@dataclass(frozen=True)
class Verdict:
    """``pays``: True, False, or None where it cannot be told. ``text`` is one sentence with its reason."""

    pays: Optional[bool]
    text: str


def judge(found: Sequence[Point]) -> Verdict:
    """Whether MPS pays, by the best of its series against time-slicing at the same numbers of processes."""
    sliced = {point.processes: point for point in found if not point.series.mps}
    shared = _best_of_each(found)
    if not sliced and not shared:
        return Verdict(None, "Nothing was measured, so nothing can be said.")
    if not sliced or not shared:
        only = "MPS" if shared else "time-slicing"
        return Verdict(None, f"Only {only} was measured, so it cannot be told what MPS gains{_scale(shared)}.")
    both = sorted(set(sliced) & set(shared))
    several = [count for count in both if count > 1]
    if not both:
        return Verdict(None, "MPS and time-slicing were measured at no common number of processes: no comparison.")
    once = any(point.rounds == 1 for count in both for point in (sliced[count], shared[count]))
    alone = f" {ONE_ROUND[0].upper()}{ONE_ROUND[1:]}." if once else ""
    if not several:
        return Verdict(None, f"Sharing needs more than one process; {_at_one(sliced, shared)}.{alone}")
    if not any(sliced[count].throughput for count in several):
        return Verdict(None, "Time-sliced not one request was done in its time, so it cannot be told what MPS gains.")
    gains = {count: shared[count].throughput / sliced[count].throughput for count in both if sliced[count].throughput}
    most = max((gains[count] for count in several if count in gains), default=1.0)
    best = next((count for count in several if gains.get(count, 0.0) >= _FULL * most), several[0])
    gain, needed = gains.get(best, 1.0), _needed(sliced[best], shared[best])
    if gain > 1 + needed:
        return Verdict(True, f"{_pays(best, gain, sliced, shared)}{alone}")
    worst = min(several, key=lambda count: gains.get(count, 1.0))
    loss = gains.get(worst, 1.0)
    if loss < 1 - _needed(sliced[worst], shared[worst]):
        say = f"MPS does not pay for this work: it gives only {loss:.2f} times the throughput at {worst} processes"
    else:
        say = (
            f"MPS does not pay for this work: at best {gain:.2f} times the throughput ({best} processes), which is"
            f" within what counts as noise here ({100 * needed:.0f} %)"
        )
    return Verdict(False, f"{say}{_scale(shared)}.{alone}")


def _best_of_each(found: Sequence[Point]) -> dict[int, Point]:
    best: dict[int, Point] = {}
    for point in found:
        if not point.series.mps or point.series.pipe_directory is not None:
            continue
        if point.processes not in best or point.throughput > best[point.processes].throughput:
            best[point.processes] = point
    return best


def _needed(one: Point, other: Point) -> float:
    """The part of a difference that these rounds do not explain by themselves."""
    return max(_NOISE, one.spread, other.spread)


def _pays(best: int, gain: float, sliced: dict[int, Point], shared: dict[int, Point]) -> str:
    how = "" if str(shared[best].series) == "MPS" else f" ({shared[best].series})"
    parts = [
        f"MPS gives {_times(gain)} times the throughput at {best} processes{how}:"
        f" {_number(shared[best].throughput)} against {_number(sliced[best].throughput)} requests/s time-sliced"
    ]
    highest = max(point.throughput for point in shared.values())
    knee = min(count for count, point in shared.items() if point.throughput >= _FULL * highest)
    if knee < max(shared):
        parts.append(f"past {knee} nothing more")
    if 1 in sliced and 1 in shared:
        parts.append(_at_one(sliced, shared))
    if 1 in shared and shared[1].throughput:
        scale = shared[best].throughput / shared[1].throughput
        if scale > _IDLE:
            parts.append(f"one alone leaves the GPU idle in part ({best} do {_times(scale)} times the work of one)")
        else:
            parts.append(
                f"one alone all but fills the GPU ({best} do {_times(scale)} times the work of one): what is gained"
                " is what time-slicing loses by changing from one to the other"
            )
    return "; ".join(parts) + "."


def _at_one(sliced: dict[int, Point], shared: dict[int, Point]) -> str:
    if not sliced[1].throughput:
        return "at 1 nothing can be told"
    change = shared[1].throughput / sliced[1].throughput - 1
    spread = max(shared[1].spread, sliced[1].spread)
    if abs(change) < 0.005:
        return "at 1 it costs nothing"
    if abs(change) <= spread:
        return f"at 1 it makes no difference beyond the rounds' spread ({100 * spread:.0f} %)"
    return f"at 1 it {'costs' if change < 0 else 'gains'} {100 * abs(change):.0f} %"


def _scale(shared: dict[int, Point]) -> str:
    """What more processes do under MPS, as the reason."""
    most = max(shared, default=1)
    if most == 1 or 1 not in shared or not shared[1].throughput:
        return ""
    scale = shared[most].throughput / shared[1].throughput
    if scale <= 1.1:
        return f"; one process fills the GPU already ({most} do {scale:.2f} times the work of one)"
    return f"; {most} processes do {_times(scale)} times the work of one"


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 100 else f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Against:
    """What the daemon in question gives of the throughput of another one: the median over the rounds of both."""

    pipe_directory: str
    processes: int
    rounds: int
    part: float

    def told(self, daemon: str) -> str:
        """``daemon`` is the name of the one in question."""
        return (
            f"{daemon}: {self.part:.3f} of the throughput of the daemon at {self.pipe_directory}"
            f" ({self.processes} processes, median of {self.rounds} rounds)"
        )


def against(runs: Iterable[Run]) -> list[Against]:
    """Each number of processes at which both daemons were measured. Runs of one round are compared with each other."""
    of_both: dict[tuple[str, int], list[float]] = {}
    good = [run for run in runs if not run.problem and run.throughput > 0]
    own = {(run.step.round, run.step.processes): run.throughput for run in good if run.step.series == Series(True)}
    for run in good:
        mine = own.get((run.step.round, run.step.processes))
        if run.step.series.pipe_directory is not None and mine is not None:
            key = (run.step.series.pipe_directory, run.step.processes)
            of_both.setdefault(key, []).append(mine / run.throughput)
    return [Against(*key, len(parts), median(parts)) for key, parts in of_both.items()]


def utilisation_note(found: Sequence[Point]) -> Optional[str]:
    """Where utilisation fell while work got faster: one line that says why, else None."""
    sliced = {point.processes: point for point in found if not point.series.mps}
    for point in sorted(_best_of_each(found).values(), key=lambda point: -point.processes):
        other = sliced.get(point.processes)
        if other is None or other.utilisation_percent is None or point.utilisation_percent is None:
            continue
        faster = point.throughput > other.throughput * (1 + _NOISE)
        if faster and point.utilisation_percent < other.utilisation_percent - 5:
            return (
                f"GPU utilisation fell from {other.utilisation_percent:.0f} % to {point.utilisation_percent:.0f} % at"
                f" {point.processes} processes while the work got faster: it is the share of time in which any kernel"
                " ran, however little of the GPU that filled, and kernels that run side by side take less of the time."
            )
    return None


def latency_note(found: Sequence[Point]) -> Optional[str]:
    """From where on more processes under MPS bring little but longer waits: one line, else None."""
    shared = sorted(_best_of_each(found).values(), key=lambda point: point.processes)
    for less, more in zip(shared, shared[1:]):
        if not less.p99_ms or not more.p99_ms or not less.throughput:
            continue
        gain, longer = more.throughput / less.throughput, more.p99_ms / less.p99_ms
        if gain < _LITTLE and longer > _LONGER:
            return (
                f"From {less.processes} to {more.processes} processes under MPS the throughput changes by"
                f" {100 * (gain - 1):+.0f} % and the p99 latency grows {_times(longer)} times, from"
                f" {_number(less.p99_ms)} to {_number(more.p99_ms)} ms."
            )
    return None


@dataclass
class Report:
    """All that a sweep found. ``stopped`` says by what it was cut short; ``notes`` are lines for people."""

    host: str
    gpu: str
    driver: str
    work: str
    request: str
    seconds: float
    rounds: int
    daemon: str
    steps: int = 0
    begun: str = ""
    simulated: bool = False
    stopped: Optional[str] = None
    notes: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def points(self) -> list[Point]:
        return points(self.runs)

    @property
    def verdict(self) -> Verdict:
        found = judge(self.points)
        if self.stopped is None:
            return found
        done = f"Stopped by {self.stopped} after {len(self.runs)} of {self.steps} runs. "
        return Verdict(found.pays, done + found.text)

    @property
    def all_notes(self) -> list[str]:
        points_ = self.points
        told = [note for note in (utilisation_note(points_), latency_note(points_)) if note is not None]
        problems = [
            f"{run.step.processes} processes, {run.step.series}: {run.problem}" for run in self.runs if run.problem
        ]
        compared = [one.told(self.daemon) for one in against(self.runs)]
        return [*self.notes, *told, *compared, *dict.fromkeys(problems)]

    def as_json(self) -> dict[str, Any]:
        about = {key: value for key, value in vars(self).items() if key not in ("runs", "notes")}
        found = self.verdict
        return {
            "format": 1,
            "verdict": {"pays": found.pays, "text": found.text},
            "notes": self.all_notes,
            **about,
            "against": [asdict(one) for one in against(self.runs)],
            "points": [{**asdict(one), "series": str(one.series), "spread": one.spread} for one in self.points],
            "runs": [_run_as_json(run) for run in self.runs],
        }


def _run_as_json(run: Run) -> dict[str, Any]:
    step = {"round": run.step.round, "series": str(run.step.series), "processes": run.step.processes}
    figures = {key: value for key, value in asdict(run).items() if key != "step"}
    return {**step, "throughput": run.throughput, "fairness": run.fairness, **figures}
