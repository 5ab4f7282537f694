"""Does sharing pay, for this GPU and this work: the same processes under MPS and time-sliced, in many short runs.

The two sides are those of comparison.py; on which one it ran, the built-in work proves from inside.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Callable, Mapping, Optional, Sequence

from mpsctl.adapters import cuda, cuda_work, hardware, pipe
from mpsctl.adapters.stop_request import Stop
from mpsctl.adapters.worker_pool import Failed, Stopped, WorkerPool
from mpsctl.measuring import bench_results as values
from mpsctl.measuring import comparison
from mpsctl.measuring.bench_results import Report, Run, Series, Step
from mpsctl.measuring.comparison import Comparison
from mpsctl.model import fit
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.quantity import Quantity
from mpsctl.store import fitting, measured
from mpsctl.store.world import World

USUAL_PROCESSES = (1, 2, 4, 8, 16)
_READY_S = 120
_WARM_UP_S = 0.5
_GO_S = 0.1
"""From the word to begin until the warm-up: even the last of the processes has heard it then."""
_REPORT_S = 30
_LONGEST_COMMAND = 20
"""A command that takes longer than this many times the seconds is given up."""
_SAMPLE_S = 0.1


@dataclass(frozen=True)
class Request:
    """What is to be measured. ``processes`` empty: the usual numbers. ``command`` instead of built-in ``work``.

    ``seconds`` is how long one run counts, after a warm-up. ``threads`` are thread percentages and ``memory`` limits
    with which the MPS side is run, each with each; empty: what the daemon gives. ``against`` is the pipe directory of
    another daemon of the GPU, whose throughput is compared.
    """

    work: str = cuda_work.LAUNCH
    command: Sequence[str] = ()
    count_lines: bool = False
    processes: Sequence[int] = ()
    seconds: float = 2.0
    rounds: int = 3
    threads: Sequence[float] = ()
    memory: Sequence[Quantity] = ()
    against: Optional[str] = None
    instance: Optional[str] = None
    gpu: Optional[str] = None
    force: bool = False
    inherited: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Bench:
    """A sweep: where its processes run, and how much work one does."""

    request: Request
    stop: Stop
    report: Report
    comparison: Comparison
    loops: Optional[int] = None
    multiprocessors: Optional[int] = None


def bench(world: World, request: Request, stop: Stop, progress: Callable[[int, Report], None]) -> Report:
    """Run the sweep; what was measured, also where a signal cut it short.

    ``progress`` is called after each run, with its number.

    :raises BadValue: before anything is started, for what cannot work.
    :raises NotReady: if the GPU is busy (``force`` overrides), or NVML does not answer (the same).
    """
    report = Report(
        host=socket.gethostname(),
        gpu="cannot tell",
        driver="cannot tell",
        work=" ".join(request.command) if request.command else request.work,
        request=_what_a_request_is(request),
        seconds=request.seconds,
        rounds=request.rounds,
        daemon="",
        begun=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        simulated=hardware.simulated(),
    )
    one = _Bench(request, stop, report, Comparison(world, request.force, report.notes))
    with ExitStack() as stack:
        series = _prepare(one, stack)
        if not series:
            raise NotReady(f"there is nothing to compare: {'; '.join(report.notes)}")
        processes = _processes(one)
        steps = values.order(processes, series, request.rounds)
        report.steps = len(steps)
        try:
            if not request.command:
                _calibrate(one, series[0])
            _run_all(one, steps, progress)
        except Stopped:
            report.stopped = stop.name
    return report


def _what_a_request_is(request: Request) -> str:
    if not request.command:
        return cuda_work.KINDS[request.work].about
    return "a line that the command prints" if request.count_lines else "one run of the command"


def _prepare(one: _Bench, stack: ExitStack) -> list[Series]:
    """Find the GPU and the daemon; the ways in which the processes are run."""
    request, report, found = one.request, one.report, one.comparison
    comparison.find(found, request.instance, request.gpu, "bench", stack, blind=bool(request.command))
    report.gpu, report.driver, report.daemon = found.gpu, found.driver, found.served_by
    return comparison.both(found, _series_of_mps(one))


def _series_of_mps(one: _Bench) -> list[Series]:
    request, place = one.request, one.comparison
    if place.device is None and request.memory:
        raise BadValue("--memory without NVML", "a GPU whose memory is known", "leave it out")
    memory_mib = place.device.memory_mib if place.device else None
    percentages: Sequence[Optional[float]] = request.threads or [None]
    limits_mib: Sequence[Optional[int]] = [limit.on(memory_mib) for limit in request.memory] or [None]
    found = [Series(True, percentage, limit_mib) for percentage in percentages for limit_mib in limits_mib]
    for series in found:
        _environment(one, series)  # refuses what is above the instance's
    if request.memory:
        comparison.allow(place, max(series.limit_mib or 0 for series in found))
    if request.against is not None:
        found.append(Series(True, pipe_directory=request.against))
    return list(dict.fromkeys(found))


def _processes(one: _Bench) -> list[int]:
    """The numbers of processes, in rising order: those given, or the usual ones that GPU and front door take.

    :raises BadValue: for more than the driver's cap, than fit into what memory is free, or than the front door lets in.
    """
    given, nvml, device = sorted(set(one.request.processes)), one.comparison.nvml, one.comparison.device
    free = one.comparison.free_places
    if free is not None and given and given[-1] > free:
        raise BadValue(
            f"{given[-1]} processes through {one.comparison.served_by}",
            f"at most {free}, as many as its front door has places free",
            "lower --processes, or raise mps_expected_clients or the share in mps_shares",
        )
    usual = [count for count in USUAL_PROCESSES if free is None or count <= free]
    if device is None or nvml is None:
        return given or usual
    driver = nvml.driver_version()
    card = fitting.kind_of(device, driver)
    costs = measured.costs_of(one.comparison.world, card.name, driver, max(one.request.threads, default=None))
    own_mib = 0 if one.request.command else cuda_work.KINDS[one.request.work].memory_mib
    free_mib = nvml.load(device.uuid).free_mib
    each_mib = costs.context_mib + own_mib
    by_memory = fit.CAP_FROM_590 if free_mib is None else max(0, free_mib - costs.server_mib) // each_mib
    most = min(fit.cap_of(card), by_memory)
    if given and given[-1] > most:
        raise BadValue(
            f"{given[-1]} processes of {each_mib} MiB on {card.name}",
            f"at most {most} (the driver's cap is {fit.cap_of(card)} clients, and {free_mib} MiB are free)",
            "lower --processes",
        )
    found = given or [count for count in usual if count <= most]
    if not found:
        raise NotReady(f"{free_mib} MiB are free, and one process needs {each_mib} MiB: wait until more is free")
    return found


def _environment(one: _Bench, series: Series) -> dict[str, str]:
    base = one.request.inherited if one.request.command else cuda.BARE_ENVIRONMENT
    return comparison.environment(one.comparison, base, series)


def _commands(one: _Bench, processes: int) -> list[list[str]]:
    request = one.request
    life_s = _READY_S + _WARM_UP_S + request.seconds + _REPORT_S
    if request.command:
        wanted: dict[str, Any] = {
            "command": list(request.command),
            "copies": processes,
            "count_lines": request.count_lines,
            "uid": one.comparison.uid,
            "gid": one.comparison.gid,
            "ready_s": _READY_S - 10,
        }
        return [cuda.program("copies", _json(wanted))]
    wanted = {
        "kind": request.work,
        "uid": one.comparison.uid,
        "gid": one.comparison.gid,
        "parent": os.getpid(),
        "life_s": life_s,
        "loops": one.loops,
        "multiprocessors": one.multiprocessors,
    }
    return [cuda.program("cuda_work", _json(wanted))] * processes


def _json(data: Mapping[str, Any]) -> str:
    import json

    return json.dumps(data)


def _calibrate(one: _Bench, series: Series) -> None:
    """How much work takes the kind's time on this GPU: found once, and the same for every process after it."""
    plain = replace(series, thread_percentage=None, limit_mib=None)
    began_s = one.comparison.world.now_s()
    with WorkerPool(_commands(one, 1), _environment(one, plain), one.stop) as pool:
        try:
            ready = pool.hear(_READY_S)[0]
        except Failed as error:
            raise Failed(f"{error}{comparison.refusal(one.comparison, began_s) if series.mps else ''}") from None
    if not ready["right"]:
        raise NotReady("a kernel's result is wrong on this GPU: no figure would mean anything")
    one.loops, one.multiprocessors = ready["loops"], ready["multiprocessors"]


def _run_all(one: _Bench, steps: Sequence[Step], progress: Callable[[int, Report], None]) -> None:
    failed: set[tuple[Series, int]] = set()
    for number, step in enumerate(steps, 1):
        began_s = one.comparison.world.now_s()
        if (step.series, step.processes) in failed:
            one.report.runs.append(Run(step, problem="left out, as it failed in an earlier round"))
        else:
            try:
                one.report.runs.append(_run(one, step))
            except Failed as error:
                failed.add((step.series, step.processes))
                refused = comparison.refusal(one.comparison, began_s) if step.series.mps else ""
                one.report.runs.append(Run(step, problem=f"{error}{refused}"))
        progress(number, one.report)


class _Samples:
    """NVML's view of the GPU while a run counts."""

    def __init__(self, one: _Bench) -> None:
        self._one = one
        self.begin, self.end = float("inf"), float("inf")
        self._due = 0.0
        self._utilisation: list[int] = []
        self._used_mib: list[int] = []
        self.clients: Optional[int] = None

    def take(self) -> None:
        now = time.monotonic()
        nvml, device = self._one.comparison.nvml, self._one.comparison.device
        if nvml is None or device is None or not self.begin <= now <= self.end or now < self._due:
            return
        self._due = now + _SAMPLE_S
        load = nvml.load(device.uuid)
        self._utilisation += [] if load.utilisation_percent is None else [load.utilisation_percent]
        self._used_mib += [] if load.used_mib is None else [load.used_mib]
        clients = nvml.client_memory_mib(device.uuid)
        if clients is not None:
            self.clients = max(self.clients or 0, len(clients))

    @property
    def utilisation_percent(self) -> Optional[float]:
        return median(self._utilisation) if self._utilisation else None

    @property
    def memory_mib(self) -> Optional[int]:
        return max(self._used_mib, default=None)


def _run(one: _Bench, step: Step) -> Run:
    """One step.

    :raises Failed: if a process could not work, or ran on the wrong side.
    :raises Stopped: at a signal.
    """
    request, samples = one.request, _Samples(one)
    comparison.settle(one.comparison, one.stop)
    with WorkerPool(_commands(one, step.processes), _environment(one, step.series), one.stop) as pool:
        ready = pool.hear(_READY_S)
        wrong = [said for said in ready if said["under_mps"] not in (None, step.series.mps)]
        if wrong:
            raise Failed(f"{len(wrong)} processes ran {'outside' if step.series.mps else 'under'} MPS")
        warm_up_s = 0.0 if request.command and not request.count_lines else _WARM_UP_S
        samples.begin = time.monotonic() + _GO_S + warm_up_s
        samples.end = samples.begin + request.seconds
        last = samples.begin + _LONGEST_COMMAND * request.seconds
        pool.go(samples.begin, samples.end, last)
        longest_s = last if request.command else samples.end
        said = pool.hear(longest_s - time.monotonic() + _REPORT_S, samples.take)
    if step.series.mps and request.command and samples.clients == 0:
        raise Failed("no copy was seen as an MPS client; does the command use the GPU, and keep its environment?")
    results = [result for one_said in said for result in one_said["results"]]
    latencies_ms = sorted(value / 1000 for result in results for value in result["latencies_us"])
    return Run(
        step,
        rates=tuple(result["count"] / result["seconds"] for result in results),
        p50_ms=values.percentile(latencies_ms, 50),
        p99_ms=values.percentile(latencies_ms, 99),
        utilisation_percent=samples.utilisation_percent,
        memory_mib=samples.memory_mib,
    )


def refuse(request: Request) -> None:
    """What can be told without looking.

    :raises BadValue: for values that no sweep has.
    """
    if request.command and request.work != cuda_work.LAUNCH:
        raise BadValue("--work with a command", "one of the two", "leave one out")
    if request.count_lines and not request.command:
        raise BadValue(
            "--count-lines without a command", "a command that prints a line per request", "write it behind --"
        )
    if request.against is not None and (request.threads or request.memory):
        raise BadValue("--against with --threads or --memory", "one of the two", "compare the daemons as they are")
    if request.against is not None and not (Path(request.against) / pipe.PUBLIC_NAME).exists():
        raise BadValue(
            f"--against {request.against}", "the pipe directory of a daemon that runs", "start it, or correct it"
        )
    if any(not 1 <= count <= fit.CAP_FROM_590 for count in request.processes):
        raise BadValue(
            f"--processes {','.join(map(str, request.processes))}",
            f"numbers from 1 to {fit.CAP_FROM_590}, the highest cap of any driver",
            "correct them",
        )
