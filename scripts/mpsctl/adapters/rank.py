"""One rank of a distributed job, for a Python that has torch (1.13 and newer): the source is handed over with ``-c``.

That Python may live in another root and expect another encoding: nothing of this program is imported here, and all of
it is ASCII. It is a process of a worker pool (worker_pool.py): it writes a line of JSON on standard output when it is
ready and for each result, a line on standard input lets it go, and it ends with its standard input, even out of a
collective that hangs.
Standard output is ours alone: what torch and NCCL print goes to standard error.

It is told in JSON: ``rank``, ``size``, ``backend`` (gloo or nccl), ``device`` (cuda or cpu), ``port`` of the store on
127.0.0.1, ``timeout_s`` of the group, ``memory_fraction`` (None: all), and its ``job``:

look     say what is there: versions, and on which side of MPS
try      join, and one all-reduce
measure  a few ``steps`` of training, then ``all_reduces`` of 4 bytes
storm    all-reduces without end; says ``midst`` once it is in the middle of them
"""

from __future__ import annotations

import sys

if sys.path[:1] == [""]:
    del sys.path[0]  # with -c the folder in which the user stands; what lies there is not to be run

import ctypes
import datetime
import hashlib
import json
import os
import threading
import time
from typing import Any, Dict, List, Optional

_UNDER_MPS = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED: 1 under MPS and 0 without (driver 580, H200); unknown before CUDA 12.3."""
FIRST_STEPS = 20
_WARM_UP, _MIDST = 20, 50
_BATCH, _WIDTH, _RATE = 64, 256, 0.05


class Rank:
    """The rank, with torch imported; ``out`` is the descriptor on which it speaks."""

    def __init__(self, wanted: Dict[str, Any], out: int) -> None:
        self.wanted, self.out = wanted, out
        import torch
        import torch.distributed

        self.torch, self.group = torch, torch.distributed
        torch.set_num_threads(1)
        self.cuda = wanted["device"] == "cuda"
        self.device = "cuda:0" if self.cuda else "cpu"
        if self.cuda and not torch.cuda.is_available():
            built = "sees no GPU" if torch.version.cuda else "is built without CUDA"
            raise ImportError(f"torch {torch.__version__} of {sys.executable} {built}")

    def look(self) -> Dict[str, Any]:
        """What is there, with the context that the rank works in; memory in MiB."""
        torch, fraction = self.torch, self.wanted.get("memory_fraction")
        found: Dict[str, Any] = {
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
            "gloo": getattr(self.group, "is_gloo_available", lambda: True)(),
            "nccl": None,
            "under_mps": None,
            "may_take_mib": None,
        }
        if self.cuda:
            torch.cuda.set_device(0)
            torch.ones(1, device=self.device)
            free, total = torch.cuda.mem_get_info()
            if fraction is not None:
                torch.cuda.set_per_process_memory_fraction(fraction)
                free = min(free, int(fraction * total))
            found["may_take_mib"] = free >> 20
            found["under_mps"] = _under_mps()
            if self.group.is_nccl_available():
                version = torch.cuda.nccl.version()
                found["nccl"] = list(version)[:3] if isinstance(version, (tuple, list)) else None
        return found

    def join(self) -> None:
        wanted = self.wanted
        timeout = datetime.timedelta(seconds=wanted["timeout_s"])
        first = wanted["rank"] == 0
        store = self.group.TCPStore("127.0.0.1", wanted["port"], wanted["size"], first, timeout)
        self.group.init_process_group(
            wanted["backend"], store=store, rank=wanted["rank"], world_size=wanted["size"], timeout=timeout
        )

    def synchronize(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def all_reduce(self, tensor: Any) -> None:
        self.group.all_reduce(tensor)
        self.synchronize()

    def warm_up(self) -> None:
        """The first collectives make connections; both ranks leave the last of them together."""
        for _ in range(_WARM_UP):
            self.all_reduce(self.torch.ones(1, device=self.device))

    def train(self, steps: int) -> Dict[str, Any]:
        """Steps of SGD on a small model, each rank with data of its own and gradients averaged by hand."""
        torch, size = self.torch, self.wanted["size"]
        torch.manual_seed(0)
        layers = torch.nn
        model = layers.Sequential(
            layers.Linear(_WIDTH, _WIDTH), layers.ReLU(), layers.Linear(_WIDTH, _WIDTH), layers.ReLU(),
            layers.Linear(_WIDTH, 1),
        ).to(self.device)  # fmt: skip
        torch.manual_seed(1 + self.wanted["rank"])
        x = torch.randn(_BATCH, _WIDTH).to(self.device)
        y = x[:, :1]
        optimiser = torch.optim.SGD(model.parameters(), lr=_RATE)

        def loss() -> Any:
            return ((model(x) - y) ** 2).mean()

        def step() -> None:
            optimiser.zero_grad()
            loss().backward()
            for parameter in model.parameters():
                self.group.all_reduce(parameter.grad)
                parameter.grad /= size
            optimiser.step()

        before = float(loss())
        for _ in range(FIRST_STEPS):  # the first makes the libraries' handles, and clocks rise
            step()
        self.all_reduce(torch.ones(1, device=self.device))
        begin = time.monotonic()
        for _ in range(steps):
            step()
        self.synchronize()
        seconds = time.monotonic() - begin
        numbers = [parameter.detach().cpu().flatten().tolist() for parameter in model.parameters()]
        return {
            "seconds": seconds,
            "loss_before": before,
            "loss_after": float(loss()),
            "weights": hashlib.sha256(repr(numbers).encode()).hexdigest()[:16],
        }

    def storm(self, count: int) -> Dict[str, Any]:
        """All-reduces of 4 bytes, one after the other: microseconds of each, and whether all sums are right."""
        rank, size, now = self.wanted["rank"], self.wanted["size"], time.perf_counter
        numbers = self.torch.full((count,), float(rank + 1), device=self.device)
        self.all_reduce(self.torch.ones(1, device=self.device))
        taken: List[float] = []
        for place in range(count):
            one = numbers[place : place + 1]
            begin = now()
            self.all_reduce(one)
            taken.append(round((now() - begin) * 1e6, 1))
        right = bool((numbers == size * (size + 1) / 2).all())
        return {"right": right, "latencies_us": taken}

    def endless(self) -> None:
        number = self.torch.ones(1, device=self.device)
        for _ in range(_MIDST):
            self.all_reduce(number)
        self.say(midst=True)
        while True:
            self.all_reduce(number)

    def work(self) -> None:
        job = self.wanted["job"]
        self.join()
        if job == "storm":
            self.endless()
        elif job == "try":
            self.all_reduce(self.torch.ones(1, device=self.device))
            self.say(done=True)
        else:
            self.warm_up()
            self.say(**self.train(self.wanted["steps"]))
            self.say(**self.storm(self.wanted["all_reduces"]))

    def say(self, **words: Any) -> None:
        _say(self.out, words)


def _say(out: int, words: Dict[str, Any]) -> None:
    data = json.dumps(words).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


def _under_mps() -> Optional[bool]:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value = ctypes.c_int(), ctypes.c_int()
    if library.cuDeviceGet(ctypes.byref(device), 0):
        return None
    if library.cuDeviceGetAttribute(ctypes.byref(value), _UNDER_MPS, device):
        return None
    return value.value == 1


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no words'}"[:300]


def _listen(let_go: threading.Event) -> None:
    """Pass on the word to begin, and end this process with its standard input."""
    while os.read(0, 4096):
        let_go.set()
    os._exit(1)


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)
    wanted: Dict[str, Any] = json.loads(sys.argv[1])
    let_go = threading.Event()
    threading.Thread(target=_listen, args=(let_go,), daemon=True).start()
    try:
        rank = Rank(wanted, out)
        found = rank.look()
    except ImportError as error:
        known = "torch" in sys.modules
        _say(out, {"problem": str(error) if known else f"{sys.executable} has no torch ({error})"})
        os._exit(1)
    except Exception as error:
        _say(out, {"problem": _last_line(error)})
        os._exit(1)
    rank.say(**found)
    let_go.wait()
    try:
        if wanted["job"] != "look":
            rank.work()
    except Exception as error:
        words = {"problem" if wanted["job"] == "measure" else "error": _last_line(error), "words": str(error)[-2000:]}
        rank.say(**words)
        os._exit(1)
    os._exit(0)  # a thread of ours still listens, and a group may hang at its end


if __name__ == "__main__":
    main()
