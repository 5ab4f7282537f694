#!/usr/bin/env python3
"""One CUDA process through its life, on the GPU host itself: when its server lists it, and when it comes to the door.

After each step of its own, one JSON line: ``step``; ``listed`` (by get_client_list); ``came`` (how often the process
was passed on by the front door so far, by the door's file of those whom it let in); ``memory_mib`` (by NVML's client
list, None where it has none); ``log`` (what the server's log says of the process since the last step).
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

from cuda_client import Cuda, CudaError

NOTES = (Path("/run/mps-fleet/0/front-door.let-in"), Path("/run/mps-fleet/0/front-door.let-in-before"))
NOTED = Path("/run/mps-fleet/0/front-door.json")


def _ask(command: str) -> list[str]:
    words = ["mpsctl", "control", "--force", "0"]
    said = subprocess.run(words, input=f"{command}\n", capture_output=True, text=True, check=False).stdout
    return [word for word in said.split() if word.isdigit()]


def _listed(pid: int) -> bool:
    return any(str(pid) in _ask(f"get_client_list {server}") for server in _ask("get_server_list"))


def _memory_mib(pid: int) -> object:
    words = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    rows = [line.split(",") for line in said.splitlines()]
    return next((row[1].strip() for row in rows if row[0].strip() == str(pid)), None)


class Life:
    """``seen`` are the moments at which the door noted the process; ``_lines`` is how much of the log was read."""

    def __init__(self) -> None:
        self.seen: set[float] = set()
        self._lines = 0

    def look_at_notes(self) -> None:
        for path in (*NOTES, NOTED):
            try:
                text = path.read_text()
            except OSError:
                continue
            rows = json.loads(text)["let_in"] if path == NOTED else map(json.loads, filter(None, text.splitlines()))
            self.seen |= {row["at_s"] for row in rows if row["pid"] == os.getpid()}

    def tell(self, step: str, pid: int) -> None:
        time.sleep(0.3)
        self.look_at_notes()
        words = ["journalctl", "-u", "mps-control@0", "-o", "cat", "--no-pager", "-n", "400"]
        lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
        mine = [line for line in lines if f"PID: {pid}" in line or f"pid {pid}" in line]
        said = {
            "step": step,
            "listed": _listed(pid),
            "came": len(self.seen),
            "memory_mib": _memory_mib(pid),
            "log": [line[-100:] for line in mine[self._lines :]],
        }
        self._lines = len(mine)
        print(json.dumps(said), flush=True)


def main() -> int:
    life, pid = Life(), os.getpid()
    life.tell("begun", pid)
    cuda = Cuda()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    steps: dict[str, Callable[[], object]] = {
        "cuInit": lambda: cuda.call("cuInit", 0),
        "cuDeviceGet": lambda: cuda.call("cuDeviceGet", ctypes.byref(device), 0),
        "5 s later": lambda: time.sleep(5),
        "cuCtxCreate": lambda: cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device),
        "cuCtxDestroy": lambda: cuda.call("cuCtxDestroy_v2", context),
        "6 s after the destroy": lambda: time.sleep(6),
        "cuCtxCreate again": lambda: cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device),
        "a second context": lambda: cuda.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, device),
        "the primary context": lambda: cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), device),
        "reset of the primary": lambda: cuda.call("cuDevicePrimaryCtxReset_v2", device),
    }
    for name, step in steps.items():
        try:
            step()
        except CudaError as error:
            print(json.dumps({"step": name, "failed": str(error)}), flush=True)
        life.tell(name, pid)
    child = os.fork()
    if not child:
        time.sleep(3)
        os._exit(0)
    life.tell("a child was forked (it does nothing)", child)
    os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
