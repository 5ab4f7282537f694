"""Built-in work for a GPU through libcuda, without a toolkit: one process of a benchmark's worker pool.

Its result is checked. A request is a few launches and one wait, as an inference is. The work is of four kinds; kernels
of the first three do nothing but whole-number multiplications that depend on each other, as many as take the kind's
time on this GPU alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from queue import Queue
from typing import Any, Callable, Mapping, Optional

from mpsctl.adapters import child_process, kernels, worker_pool
from mpsctl.adapters.cuda import CudaError, Kernel, Library, NoLibrary

LAUNCH, HALF, COMPUTE, MEMORY = "launch", "half", "compute", "memory"
_A, _C = 1_664_525, 1_013_904_223
_ENDS = 4
"""How many numbers are checked at each end of a result."""
_TRIAD_MIB = 64
"""Of each of the three arrays: together more than any GPU's cache."""
_FIRST_LOOPS, _LEAST_US, _BATCH, _BATCHES = 2000, 20.0, 8, 5
_WARM_UP_REQUESTS = 5
_WARM_UP_S = 0.3


@dataclass(frozen=True)
class Kind:
    """One kind of work: ``launches`` a request, of ``blocks(multiprocessors)`` blocks x ``threads``.

    Each is about ``target_us`` long, on a GPU that does nothing else; None: as long as it takes. ``memory_mib`` is what
    a process allocates beside its context.
    """

    about: str
    blocks: Callable[[int], int]
    threads: int
    launches: int
    target_us: Optional[float]
    memory_mib: int = 4


KINDS: Mapping[str, Kind] = {
    LAUNCH: Kind("small kernels of 8 blocks x 128 threads, about 90 µs each, 4 a request", lambda _: 8, 128, 4, 90.0),
    HALF: Kind(
        "kernels on half of the multiprocessors, about 90 µs each, 4 a request",
        lambda multiprocessors: max(1, multiprocessors // 2),
        256,
        4,
        90.0,
    ),
    COMPUTE: Kind(
        "kernels that fill every multiprocessor, about 500 µs each, 2 a request",
        lambda multiprocessors: 8 * multiprocessors,
        256,
        2,
        500.0,
    ),
    MEMORY: Kind(
        f"a * x + y over arrays of {_TRIAD_MIB} MiB, 8 times a request",
        lambda multiprocessors: 8 * multiprocessors,
        256,
        8,
        None,
        3 * _TRIAD_MIB,
    ),
}


def child() -> None:
    """The process itself. It is told its work in JSON: ``kind``, ``uid``, ``gid``, ``parent``, ``life_s``, and after a
    calibration its ``loops`` and the ``multiprocessors`` of the whole GPU."""
    wanted: dict[str, Any] = json.loads(sys.argv[2])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(wanted["life_s"]))
    child_process.become(wanted["uid"], wanted["gid"])
    child_process.end_with(wanted["parent"])()
    let_go: Queue[tuple[float, float]] = Queue()
    threading.Thread(target=_listen, args=(let_go,), daemon=True).start()
    try:
        _work(wanted, let_go)
    except (CudaError, NoLibrary) as error:
        worker_pool.say(problem=str(error))
    os._exit(0)  # a thread of ours still listens


def _work(wanted: Mapping[str, Any], let_go: Queue[tuple[float, float]]) -> None:
    kind = KINDS[wanted["kind"]]
    cuda = Library()
    cuda.open(0)
    multiprocessors = int(wanted.get("multiprocessors") or cuda.multiprocessors)
    work = _Triad(cuda, kind, multiprocessors) if kind.target_us is None else _Chain(cuda, kind, multiprocessors)
    if isinstance(work, _Chain):
        work.set_loops(int(wanted["loops"]) if wanted.get("loops") else work.calibrate(kind.target_us or 0))
    for _ in range(_WARM_UP_REQUESTS):
        work.request()
    right = work.right()
    worker_pool.say(
        under_mps=cuda.under_mps,
        multiprocessors=multiprocessors,
        loops=work.loops if isinstance(work, _Chain) else None,
        right=right,
    )
    start, end = let_go.get()
    latencies = _serve(work.request, start, end)
    if not work.right():
        worker_pool.say(problem="a kernel's result is wrong")
        return
    worker_pool.say(results=[{"count": len(latencies), "seconds": end - start, "latencies_us": latencies}])


def _listen(let_go: Queue[tuple[float, float]]) -> None:
    """Pass on the word to begin, and end this process with its standard input, even out of a call that hangs."""
    go = worker_pool.await_go()
    if go is not None:
        let_go.put(go[:2])
        while os.read(0, 4096):
            pass
    os._exit(1)


def _serve(request: Callable[[], None], start: float, end: float) -> list[int]:
    """Requests one after the other until ``end``; how long each took in µs that lay between ``start`` and ``end``."""
    now, latencies = time.monotonic, []
    begin = now()
    while begin < end:
        request()
        finish = now()
        if begin >= start and finish <= end:
            latencies.append(int((finish - begin) * 1e6))
        begin = finish
    return latencies


class _Chain:
    """Dependent multiplications in every thread."""

    def __init__(self, cuda: Library, kind: Kind, multiprocessors: int) -> None:
        self._cuda, self._kind = cuda, kind
        self._blocks = kind.blocks(multiprocessors)
        self._count = self._blocks * kind.threads
        self._address = cuda.allocate(4 * self._count)
        self.loops = 0
        self.set_loops(_FIRST_LOOPS)

    def set_loops(self, loops: int) -> None:
        self.loops = loops
        self._kernel: Kernel = self._cuda.kernel(
            kernels.CHAIN,
            ctypes.c_uint64(self._address),
            ctypes.c_uint32(_A),
            ctypes.c_uint32(_C),
            ctypes.c_uint32(loops),
        )

    def calibrate(self, target_us: float) -> int:
        """The loops with which one launch takes about ``target_us`` on a GPU that does nothing else."""
        warm_s = time.monotonic() + _WARM_UP_S
        while time.monotonic() < warm_s:  # an idle GPU runs at a low clock
            self._batch_us()
        loops = _FIRST_LOOPS
        while True:
            self.set_loops(loops)
            each_us = min(self._batch_us() for _ in range(_BATCHES))
            if each_us >= _LEAST_US or loops >= 1 << 24:
                return max(1, round(loops * target_us / max(each_us, 0.01)))
            loops *= 4

    def _batch_us(self) -> float:
        begin = time.monotonic()
        for _ in range(_BATCH):
            self._kernel.launch(self._blocks, self._kind.threads)
        self._cuda.synchronize()
        return (time.monotonic() - begin) * 1e6 / _BATCH

    def request(self) -> None:
        for _ in range(self._kind.launches):
            self._kernel.launch(self._blocks, self._kind.threads)
        self._cuda.synchronize()

    def right(self) -> bool:
        for first in (0, self._count - _ENDS):
            found = self._cuda.read(self._address + 4 * first, _ENDS)
            if found != [kernels.chained(first + n, _A, _C, self.loops) for n in range(_ENDS)]:
                return False
        return True


class _Triad:
    """a * x + y over arrays that no cache holds."""

    def __init__(self, cuda: Library, kind: Kind, multiprocessors: int) -> None:
        self._cuda, self._kind = cuda, kind
        self._blocks = kind.blocks(multiprocessors)
        self._count = (_TRIAD_MIB << 20) // 4
        self._out, x, y = (cuda.allocate(4 * self._count) for _ in range(3))
        for address, (a, b) in ((x, (3, 1)), (y, (5, 2))):
            fill = cuda.kernel(
                kernels.FILL,
                ctypes.c_uint64(address),
                ctypes.c_uint32(a),
                ctypes.c_uint32(b),
                ctypes.c_uint32(self._count),
            )
            fill.launch(-(-self._count // kind.threads), kind.threads)
        cuda.synchronize()
        self._kernel = cuda.kernel(
            kernels.TRIAD,
            *(ctypes.c_uint64(address) for address in (self._out, x, y)),
            ctypes.c_uint32(_A),
            ctypes.c_uint32(self._count // 4),
        )

    def request(self) -> None:
        for _ in range(self._kind.launches):
            self._kernel.launch(self._blocks, self._kind.threads)
        self._cuda.synchronize()

    def right(self) -> bool:
        for first in (0, self._count - _ENDS):
            found = self._cuda.read(self._out + 4 * first, _ENDS)
            at = range(first, first + _ENDS)
            desired = [kernels.filled(kernels.filled(i, 3, 1), _A, kernels.filled(i, 5, 2)) for i in at]
            if found != desired:
                return False
        return True
