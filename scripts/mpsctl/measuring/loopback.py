"""Two ranks of a distributed job on one GPU, under MPS and time-sliced: what they cost, and how they fail.

The ranks (adapters/rank.py) are run by the user's Python that has torch; the sides are those of comparison.py, each
rank with half of the memory. Each run is two new processes: a few steps of training, then a storm of small
all-reduces. On each side and with each backend a rank is then killed in its storm, and one never comes: the other must
end by itself, and nothing may be left.

It is long, and stays one module: one trial from its request to its report, in the order in which it is taken.
"""

from __future__ import annotations

import json
import os
import pkgutil
import select
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any, Callable, Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import child_process, hardware, rank
from mpsctl.adapters.stop_request import Stop
from mpsctl.adapters.worker_pool import Ended, Failed, Stopped, WorkerPool, last_words
from mpsctl.measuring import bench_results, comparison, idle_gpu
from mpsctl.measuring import loopback_results as values
from mpsctl.measuring.bench_results import Series
from mpsctl.measuring.comparison import Comparison
from mpsctl.measuring.loopback_results import GLOO, NCCL, FailureCase, Report
from mpsctl.model import nccl
from mpsctl.model.daemon_environment import VISIBLE_DEVICES
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.store.world import World

_READY_S = 120
_LEFT_S = 10
"""What the driver may take to let go of what has ended."""
_NEAR_MIB = 64
"""Free memory counts as before within this: less than any context."""
_SLOWEST_STEP_S, _SLOWEST_ALL_REDUCE_S = 5.0, 0.05
_LONGEST_FAILURE_S = 10.0
_LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_BLOCKING = {"TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_BLOCKING_WAIT": "1"}
"""A collective that is over its time raises an error then; by default torch ends the process. Figures would suffer."""
_TORCH_JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
_JOB_VARIABLES = (*_TORCH_JOB, "NCCL_COMM_ID")
"""Of a job in which we may run ourselves; by the last, NCCL's ranks would all meet at that job's address."""
_READY = frozenset({"torch", "python", "gloo", "nccl", "under_mps", "may_take_mib"})


@dataclass(frozen=True)
class Request:
    """What is to be tried. ``timeout_s`` bounds joining, each collective, and the end of a rank that was left alone."""

    python: str = "python3"
    backends: Sequence[str] = values.BACKENDS
    steps: int = 100
    all_reduces: int = 10_000
    rounds: int = 3
    timeout_s: float = 30.0
    instance: Optional[str] = None
    gpu: Optional[str] = None
    force: bool = False
    cpu: bool = False
    inherited: Mapping[str, str] = field(default_factory=dict)

    @property
    def failure_timeout_s(self) -> float:
        """The group's own time-out where a rank fails; the other must have ended within ``timeout_s``.

        torch 1.13 waits it out twice for a rank that never comes: for its connection, then for its address.
        """
        return min(self.timeout_s / 3, _LONGEST_FAILURE_S)


@dataclass
class _Loopback:
    request: Request
    stop: Stop
    report: Report
    place: Comparison
    python: str
    source: str
    tell: Callable[[str], None]
    fraction: Optional[float] = None
    together: set[tuple[str, str]] = field(default_factory=set)
    """Backend and side of two ranks that have come through their storm: what ends one sooner is no failure case."""

    def name(self, series: Series) -> str:
        if self.request.cpu:
            return values.CPU
        return values.MPS if series.mps else values.SLICED


def loopback(world: World, request: Request, stop: Stop, progress: Callable[[str, Report], None]) -> Report:
    """Try it; what was found, also where a signal cut it short. ``progress`` is called with a line after each part.

    :raises BadValue: before anything is started, for what cannot work.
    :raises NotReady: if the GPU is busy (``force`` overrides), or the Python has no torch that works there.
    """
    report = Report(
        host=socket.gethostname(),
        gpu="none",
        driver="none",
        steps=request.steps,
        all_reduces=request.all_reduces,
        rounds=request.rounds,
        timeout_s=request.timeout_s,
        begun=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        simulated=hardware.simulated(),
        cpu=request.cpu,
    )
    python = shutil.which(request.python, path=request.inherited.get("PATH"))
    if python is None:
        raise NotReady(f"found no {request.python}, expected a Python that has torch; name one with --python")
    source = pkgutil.get_data("mpsctl.adapters", "rank.py")
    assert source is not None
    place = Comparison(world, request.force, report.notes)
    one = _Loopback(request, stop, report, place, python, source.decode(), lambda text: progress(text, report))
    with ExitStack() as stack:
        both = _prepare(one, stack)
        try:
            backends = _look(one, both)
            for backend in backends:
                _measure_all(one, backend, both)
            for backend in backends:
                for series in both:
                    _fail(one, backend, series)
        except Stopped:
            report.stopped = stop.name
    return report


def refuse(request: Request) -> None:
    """What can be told without looking.

    :raises BadValue: for what nobody can mean.
    """
    if request.cpu and (request.instance is not None or request.gpu is not None):
        raise BadValue("--cpu with a GPU", "one of the two", "leave one out")
    if request.cpu and NCCL in request.backends:
        raise BadValue("--cpu with nccl", "gloo alone: NCCL needs a GPU", "leave nccl out")


_RANKS = 2


def _prepare(one: _Loopback, stack: ExitStack) -> list[Series]:
    request, report, place = one.request, one.report, one.place
    if request.cpu:
        report.notes.append(
            "no GPU was used: this tries the rendezvous, the storm and the failure cases, and nothing of MPS"
        )
        return [Series(mps=False)]
    comparison.find(place, request.instance, request.gpu, "loopback", stack, clients=_RANKS)
    device = place.device
    assert device is not None
    report.gpu, report.driver, report.served_by = place.gpu, place.driver, place.served_by
    if device.memory_mib is None:
        raise BadValue(
            f"{device}, whose memory NVML does not tell", "a GPU whose memory is known", "name another, or write --cpu"
        )
    limit = place.instance.limit if place.instance is not None else None
    half_mib = (device.memory_mib if limit is None else limit.on(device.memory_mib)) // 2
    report.half_mib, one.fraction = half_mib, half_mib / device.memory_mib
    comparison.allow(place, half_mib)
    return comparison.both(place, [Series(mps=True, limit_mib=half_mib)])


def _environment(one: _Loopback, backend: str, series: Series, failing: bool) -> dict[str, str]:
    base = {key: value for key, value in one.request.inherited.items() if key not in _JOB_VARIABLES}
    base = {"NCCL_DEBUG": "WARN", **base, **_LOCAL}
    if backend == NCCL:
        base[nccl.MULTI_RANK] = "1"
        base.update(_BLOCKING if failing else {})
    found = comparison.environment(one.place, base, series)
    if one.request.cpu:
        found[VISIBLE_DEVICES] = ""
    return found


class _Ranks:
    """Ranks that are ready on the right side, and what they say; ``ready`` is what each told of itself."""

    def __init__(self, pool: WorkerPool, errors: IO[bytes]) -> None:
        self._pool, self._errors = pool, errors
        self.pids = pool.pids
        self.ready = self.hear(_READY_S)
        if not all(said.keys() >= _READY for said in self.ready):
            raise Failed(f"a process said {str(self.ready)[:80]}")

    def hear(self, timeout_s: float, only: Optional[Sequence[int]] = None) -> list[dict[str, Any]]:
        """The next line of each, or of ``only`` some.

        :raises Failed: as of a worker pool; with the last words of one that said nothing.
        """
        try:
            return self._pool.hear(timeout_s, only=only)
        except Ended as error:
            words = last_words(self._errors)
            raise Ended(f"{error}: {words}" if words else str(error)) from None

    def written(self) -> str:
        """The end of what they wrote to standard error."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 16_384))
        return self._errors.read().decode(errors="replace")

    def go(self) -> None:
        self._pool.go(0, 0, 0)

    def kill(self, number: int) -> None:
        self._pool.kill(number)


def _temporary() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise NotReady(f"{error.strerror}, expected room for what ranks write; name a folder in TMPDIR") from None


@contextmanager
def _held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the kernel gives to nobody meanwhile, but on which a rank may listen.

    A store asks for SO_REUSEADDR, and then Linux lets it listen beside a socket that has done the same and does not.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def _ranks(one: _Loopback, backend: str, series: Series, job: str, numbers: Sequence[int] = (0, 1)) -> Iterator[_Ranks]:
    """Ranks for the length of the block, ready and not yet let go.

    :raises Failed: if one could not come up, or is on the wrong side.
    """
    request, failing = one.request, job != "measure"
    wanted = {
        "size": 2,
        "backend": backend,
        "device": "cpu" if request.cpu else "cuda",
        "timeout_s": request.failure_timeout_s if failing else request.timeout_s,
        "memory_fraction": None if series.mps else one.fraction,
        "job": job,
        "steps": request.steps,
        "all_reduces": request.all_reduces,
    }
    environment, end_with_us = _environment(one, backend, series, failing), child_process.end_with(os.getpid())

    def first() -> None:
        child_process.become(one.place.uid, one.place.gid)
        end_with_us()

    with _held_port() as port, _temporary() as errors:
        each = [json.dumps({**wanted, "port": port, "rank": number}) for number in numbers]
        try:
            pool = WorkerPool(
                [[one.python, "-c", one.source, words] for words in each], environment, one.stop, errors, first
            )
        except (OSError, subprocess.SubprocessError) as error:  # the latter where it may not become the clients' user
            why = error.strerror if isinstance(error, OSError) else error
            raise NotReady(
                f"{one.python} cannot be started ({why}); name another with --python, or run as root"
            ) from None
        with pool:
            ranks = _Ranks(pool, errors)
            wrong = [said for said in ranks.ready if said["under_mps"] not in (None, series.mps)]
            if wrong and not request.cpu:
                raise Failed(f"{len(wrong)} ranks ran {'outside' if series.mps else 'under'} MPS")
            yield ranks


def _look(one: _Loopback, both: Sequence[Series]) -> list[str]:
    """Whether torch works there, and with which backends two ranks can be measured.

    :raises NotReady: if it does not, in the words of that Python.
    """
    try:
        with _ranks(one, GLOO, both[0], "look", (0,)) as ranks:
            [found] = ranks.ready
    except Failed as error:
        raise NotReady(f"{error}; expected a Python whose torch works here; name one with --python") from None
    report = one.report
    report.versions = {"torch": found["torch"], "python": found["python"]}
    backends = [backend for backend in one.request.backends if backend != NCCL]
    if not found["gloo"] and GLOO in backends:
        report.notes.append("gloo: this torch is built without it")
        backends.remove(GLOO)
    if NCCL in one.request.backends:
        report.nccl_version = tuple(found["nccl"] or ())
        backends += _nccl(one, both)
    if not backends and not report.nccl:
        raise NotReady(f"torch {found['torch']} of {one.python} has none of {', '.join(one.request.backends)}")
    return backends


def _nccl(one: _Loopback, both: Sequence[Series]) -> list[str]:
    """NCCL, if two of its ranks can be measured on one GPU; what it said becomes a row where they cannot."""
    report = one.report
    if not report.nccl_version:
        report.nccl += [values.Nccl(one.name(series), values.ABSENT, "this torch has no NCCL") for series in both]
        return []
    report.versions["NCCL"] = ".".join(map(str, report.nccl_version))
    tried = [_try_nccl(one, series) for series in both]
    report.nccl += tried
    for row in tried:
        one.tell(f"{nccl.name(report.nccl_version)}, {row.side}: {row.outcome}")
    return [NCCL] if all(row.outcome == values.MEASURED for row in tried) else []


def _try_nccl(one: _Loopback, series: Series) -> values.Nccl:
    """One all-reduce, within the time-out of a failure case."""
    version, side = one.report.nccl_version, one.name(series)
    try:
        with _ranks(one, NCCL, series, "try") as ranks:
            ranks.go()
            try:
                said = ranks.hear(one.request.timeout_s)
            except Failed as error:
                said = [{"error": str(error)}]
            text = "\n".join([*(str(words.get("words", words.get("error", ""))) for words in said), ranks.written()])
    except Failed as error:
        return values.Nccl(side, values.FAILED, str(error))
    if not any("error" in words for words in said):
        return values.Nccl(side, values.MEASURED)
    words = nccl.refusal(text, version)
    if words is not None:
        return values.Nccl(side, values.REFUSED, words[:300])
    return values.Nccl(side, values.FAILED, next(str(words["error"]) for words in said if "error" in words))


def _measure_all(one: _Loopback, backend: str, both: Sequence[Series]) -> None:
    report, failed = one.report, set()
    for step in bench_results.order([2], both, one.request.rounds):
        side = one.name(step.series)
        try:
            if side in failed:
                raise Failed("left out, as it failed in an earlier round")
            run = _measure(one, backend, step)
        except Failed as error:
            failed.add(side)
            run = values.Run(backend, side, step.round, problem=str(error))
        report.runs.append(run)
        figures = run.problem or f"{run.steps_per_s:,.1f} steps/s, all-reduce {run.mean_us:,.1f} µs"
        one.tell(f"{_where(backend, side, step.round)}: {figures}")


def _where(backend: str, side: str, number: int) -> str:
    return f"{backend}, {side}, round {number}"


def _measure(one: _Loopback, backend: str, step: bench_results.Step) -> values.Run:
    request, side = one.request, one.name(step.series)
    comparison.settle(one.place, one.stop)
    with _ranks(one, backend, step.series, "measure") as ranks:
        ranks.go()
        training = ranks.hear(2 * request.timeout_s + _SLOWEST_STEP_S * (rank.FIRST_STEPS + request.steps))
        one.tell(f"{_where(backend, side, step.round)}: {request.steps} steps done, {request.all_reduces} all-reduces")
        storm = ranks.hear(request.timeout_s + _SLOWEST_ALL_REDUCE_S * request.all_reduces)
        one.together.add((backend, side))
        may_take_mib = tuple(said["may_take_mib"] for said in ranks.ready)
    run = values.run_of(backend, side, step.round, request.steps, training, storm)
    return replace(run, may_take_mib=may_take_mib)


# -- failure cases


@dataclass(frozen=True)
class _Gpu:
    """What NVML tells of the GPU: who is on it, and how much memory in MiB is free, or held by servers of MPS.

    A server comes with its first client, and may go with one that is killed. None: NVML does not tell.
    """

    pids: frozenset[int] = frozenset()
    free_mib: Optional[int] = None


def _gpu(one: _Loopback) -> _Gpu:
    nvml, device = one.place.nvml, one.place.device
    if nvml is None or device is None:
        return _Gpu()
    held_mib = nvml.compute_memory_mib(device.uuid) or {}
    pids = {*held_mib, *(nvml.client_memory_mib(device.uuid) or ())}
    free_mib = nvml.load(device.uuid).free_mib
    if free_mib is not None:
        free_mib += sum(mib or 0 for pid, mib in held_mib.items() if hardware.is_server(pid))
    return _Gpu(frozenset(pid for pid in pids if not idle_gpu.may_be_server(pid)), free_mib)


def _fail(one: _Loopback, backend: str, series: Series) -> None:
    """Both failure cases on one side, with a look at what is left after each."""
    for path in (_kill_one, _never_come):
        comparison.settle(one.place, one.stop)
        if path is _kill_one and series.mps and _others(one):
            one.report.notes.append(
                "no rank was killed under MPS: others are connected, and NVIDIA leaves undefined what becomes of them"
                " when a client is killed at work"
            )
            continue
        before, pids = _gpu(one), []  # type: tuple[_Gpu, list[int]]
        _keep(one, path(one, backend, series, pids))
        _keep(one, _nothing_left(one, backend, series, pids, before))


def _others(one: _Loopback) -> set[int]:
    """Clients of the daemon that are not ours."""
    with suppress(NotReady):  # a daemon that does not answer becomes a row, by the ranks that fail
        if one.place.daemon is not None:
            return idle_gpu.clients_of(one.place.daemon)
    return set()


def _keep(one: _Loopback, row: FailureCase) -> None:
    one.report.failure_cases.append(row)
    one.tell(f"{row.name}, {row.backend}, {row.side}: {'held' if row.held else 'did not hold'}: {row.seen}")


def _kill_one(one: _Loopback, backend: str, series: Series, pids: list[int]) -> FailureCase:
    side, name = one.name(series), "a rank is killed in the storm"
    try:
        with _ranks(one, backend, series, "storm") as ranks:
            pids += ranks.pids
            ranks.go()
            if any("midst" not in said for said in ranks.hear(2 * one.request.timeout_s)):
                raise Failed("a rank ended before the storm")
            begin = time.monotonic()
            ranks.kill(1)
            return _end_of_first(one, ranks, begin, name, backend, side)
    except Failed as error:
        return FailureCase(name, backend, side, False, f"it did not come so far: {error}")


def _never_come(one: _Loopback, backend: str, series: Series, pids: list[int]) -> FailureCase:
    side, name = one.name(series), "a rank never comes"
    try:
        if (backend, side) not in one.together:
            raise Failed("two ranks that come cannot work here either")
        with _ranks(one, backend, series, "try", (0,)) as ranks:
            pids += ranks.pids
            begin = time.monotonic()
            ranks.go()
            return _end_of_first(one, ranks, begin, name, backend, side)
    except Failed as error:
        return FailureCase(name, backend, side, False, f"it did not come so far: {error}")


def _end_of_first(one: _Loopback, ranks: _Ranks, begin: float, name: str, backend: str, side: str) -> FailureCase:
    """Rank 0 must end with an error of its own within the time-out."""
    try:
        [said] = ranks.hear(one.request.timeout_s, (0,))
        held, words = "error" in said, str(said.get("error", "it went on without an error"))
    except Ended as error:
        held, words = True, str(error)
    except Failed:
        held, words = False, f"rank 0 was still there after {one.request.timeout_s:g} s"
    return FailureCase(name, backend, side, held, words, round(time.monotonic() - begin, 2))


def _nothing_left(one: _Loopback, backend: str, series: Series, pids: Sequence[int], before: _Gpu) -> FailureCase:
    begin, side = time.monotonic(), one.name(series)
    while True:
        left = _left(one, pids, before)
        seconds = time.monotonic() - begin
        if not left or seconds > _LEFT_S:
            break
        if select.select([one.stop], [], [], 0.1)[0]:
            raise Stopped
    seen = (
        "; ".join(left) or f"no process{'' if one.request.cpu else ', no entry in the lists of NVML, memory as before'}"
    )
    return FailureCase("and nothing is left", backend, side, not left, seen, round(seconds, 2))


def _left(one: _Loopback, pids: Sequence[int], before: _Gpu) -> list[str]:
    """What is left of some ranks and of what they started."""
    found = [f"pid {pid} or a child of it" for pid in pids if _group_lives(pid)]
    now = _gpu(one)
    new = now.pids - before.pids
    if one.request.force:
        new &= set(pids)  # others may come and go
    found += [f"pid {pid} in the lists of NVML" for pid in sorted(new)]
    if one.request.force or before.free_mib is None or now.free_mib is None:
        return found
    missing_mib = before.free_mib - now.free_mib
    return [*found, f"{missing_mib} MiB less are free than before"] if missing_mib > _NEAR_MIB else found


def _group_lives(pid: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):  # by now the number may be somebody else's
        os.killpg(pid, 0)
        return True
    return False
