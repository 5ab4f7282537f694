"""Two ranks of a distributed job on one GPU: what they cost on each side, how they fail, and the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Iterable, Mapping, Optional, Sequence

from mpsctl.measuring.bench_results import ONE_ROUND, percentile
from mpsctl.model import nccl

GLOO, NCCL = "gloo", "nccl"
BACKENDS = (GLOO, NCCL)
CPU, SLICED, MPS = "CPU", "time-sliced", "MPS"
REFUSED, FAILED, ABSENT, MEASURED = "refused", "failed", "absent", "measured"


@dataclass(frozen=True)
class Run:
    """One backend on one side in one round, which counts from 1; latencies are those of one all-reduce in µs.

    ``may_take_mib`` is what each rank may allocate. ``problem`` says why there is no figure.
    """

    backend: str
    side: str
    round: int
    steps_per_s: float = 0.0
    mean_us: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    loss: tuple[float, ...] = ()
    may_take_mib: tuple[Optional[int], ...] = ()
    problem: Optional[str] = None


def run_of(
    backend: str, side: str, number: int, steps: int, training: Sequence[Mapping[str, Any]], storm: Sequence[Any]
) -> Run:
    """What the two ranks said; a wrong result is a problem, and no figure."""
    before, after = (sum(said[key] for said in training) / len(training) for key in ("loss_before", "loss_after"))
    if len({said["weights"] for said in training}) != 1:
        return Run(backend, side, number, problem="wrong result: the ranks have different weights after the training")
    if not after < before:
        return Run(backend, side, number, problem=f"wrong result: the loss went from {before:.4g} to {after:.4g}")
    if not all(said["right"] for said in storm):
        return Run(backend, side, number, problem="wrong result: an all-reduce gave a wrong sum")
    taken_us = sorted(value for said in storm for value in said["latencies_us"])
    return Run(
        backend,
        side,
        number,
        steps_per_s=steps / max(said["seconds"] for said in training),
        mean_us=sum(taken_us) / len(taken_us),
        p50_us=percentile(taken_us, 50) or 0.0,
        p99_us=percentile(taken_us, 99) or 0.0,
        loss=(round(before, 6), round(after, 6)),
    )


@dataclass(frozen=True)
class Point:
    """The good rounds of one backend on one side: medians, and the least and most of the rounds.

    ``least_us`` and ``most_us`` are of a round's mean.
    """

    backend: str
    side: str
    rounds: int
    steps_per_s: float
    least: float
    most: float
    mean_us: float
    p50_us: float
    p99_us: float
    least_us: float
    most_us: float


def points(runs: Iterable[Run]) -> list[Point]:
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.problem is None:
            found.setdefault((run.backend, run.side), []).append(run)
    return [
        Point(
            *key,
            rounds=len(good),
            steps_per_s=median(run.steps_per_s for run in good),
            least=min(run.steps_per_s for run in good),
            most=max(run.steps_per_s for run in good),
            mean_us=median(run.mean_us for run in good),
            p50_us=median(run.p50_us for run in good),
            p99_us=median(run.p99_us for run in good),
            least_us=min(run.mean_us for run in good),
            most_us=max(run.mean_us for run in good),
        )
        for key, good in sorted(found.items(), key=lambda item: (BACKENDS.index(item[0][0]), item[0][1] == MPS))
    ]


@dataclass(frozen=True)
class FailureCase:
    """One way to fail: whether what must hold did, what was seen, and after how many seconds."""

    name: str
    backend: str
    side: str
    held: bool
    seen: str
    seconds: Optional[float] = None


@dataclass(frozen=True)
class Nccl:
    """What NCCL did with two ranks on one GPU on one side, in its ``words`` where it would not."""

    side: str
    outcome: str
    words: str = ""


@dataclass
class Report:
    """All that was found. ``stopped`` says by what it was cut short, ``half_mib`` is the memory of each rank in MiB."""

    host: str
    gpu: str
    driver: str
    steps: int
    all_reduces: int
    rounds: int
    timeout_s: float
    served_by: str = ""
    begun: str = ""
    simulated: bool = False
    cpu: bool = False
    half_mib: Optional[int] = None
    versions: dict[str, str] = field(default_factory=dict)
    nccl_version: tuple[int, ...] = ()
    stopped: Optional[str] = None
    notes: list[str] = field(default_factory=list)
    nccl: list[Nccl] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failure_cases: list[FailureCase] = field(default_factory=list)

    @property
    def points(self) -> list[Point]:
        return points(self.runs)

    @property
    def all_notes(self) -> list[str]:
        problems = [f"{run.backend}, {run.side}: {run.problem}" for run in self.runs if run.problem]
        return [*self.notes, *dict.fromkeys(problems)]

    @property
    def right(self) -> bool:
        """Whether everything that was tried gave a figure or a refusal, and every failure case held."""
        broken = any(run.problem for run in self.runs) or any(one.outcome == FAILED for one in self.nccl)
        return not broken and all(path.held for path in self.failure_cases)

    @property
    def verdict(self) -> str:
        parts = [_figures(self.points, backend, self.cpu) for backend in BACKENDS]
        parts = [part for part in parts if part] or ["nothing was measured, so nothing can be said of what it costs"]
        if any(one.outcome == REFUSED for one in self.nccl):
            parts.append(nccl.explain(self.nccl_version))
        if self.failure_cases:
            parts.append(_held(self.failure_cases))
        if self.cpu:
            parts.append("nothing is said of MPS or of a GPU")
        text = f"two ranks {'without a GPU' if self.cpu else 'on one GPU'}: {'; '.join(parts)}."
        return text if self.stopped is None else f"Stopped by {self.stopped}, so this is a part only: {text}"

    def as_json(self) -> dict[str, Any]:
        about = {key: value for key, value in vars(self).items() if key not in _LISTS}
        return {
            "format": 1,
            "verdict": self.verdict,
            "right": self.right,
            **about,
            "notes": self.all_notes,
            "nccl": [asdict(one) for one in self.nccl],
            "points": [asdict(one) for one in self.points],
            "failure_cases": [asdict(one) for one in self.failure_cases],
            "runs": [asdict(one) for one in self.runs],
        }


_LISTS = ("notes", "nccl", "failure_cases", "runs")


def _figures(found: Sequence[Point], backend: str, cpu: bool) -> str:
    by_side = {point.side: point for point in found if point.backend == backend}
    shared, sliced = by_side.get(MPS), by_side.get(SLICED)
    if shared is not None and sliced is not None:
        steps = f"{_number(shared.steps_per_s)} against {_number(sliced.steps_per_s)} steps/s"
        if _apart(shared.least, shared.most, sliced.least, sliced.most):
            steps = (
                f"under MPS {_times(shared.steps_per_s / sliced.steps_per_s)} times the steps of time-slicing ({steps})"
            )
        else:
            steps = f"no difference in steps between MPS and time-slicing beyond the spread of the rounds ({steps})"
        apart = _apart(shared.least_us, shared.most_us, sliced.least_us, sliced.most_us)
        return (
            f"over {backend}, {steps}, and an all-reduce of 4 bytes takes {_number(shared.mean_us)} µs (p99"
            f" {_number(shared.p99_us)}) against {_number(sliced.mean_us)} µs (p99 {_number(sliced.p99_us)})"
            f"{'' if apart else ', which is within the spread of the rounds'}"
            f"{f' ({ONE_ROUND})' if min(shared.rounds, sliced.rounds) == 1 else ''}"
        )
    for point in by_side.values():
        text = (
            f"over {backend}, {_number(point.steps_per_s)} steps/s {'on the CPU' if cpu else point.side}, and an"
            f" all-reduce of 4 bytes takes {_number(point.mean_us)} µs (p99 {_number(point.p99_us)})"
        )
        return text if cpu else f"{text}; the other side was not measured, so it cannot be told what MPS gains"
    return ""


def _apart(least: float, most: float, other_least: float, other_most: float) -> bool:
    """Whether no round of one side lies among those of the other."""
    return least > other_most or most < other_least


def _held(paths: Sequence[FailureCase]) -> str:
    broken = [path for path in paths if not path.held]
    if not broken:
        return f"all {len(paths)} failure cases held"
    names = ", ".join(f"{path.name} ({path.backend}, {path.side})" for path in broken)
    return f"{len(broken)} of {len(paths)} failure cases did not hold: {names}"


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
