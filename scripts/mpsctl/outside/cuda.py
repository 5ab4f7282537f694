"""A bare CUDA client through libcuda: no toolkit, and never in this process.

CUDA, once initialised, stays in a process with its environment, its threads and its GPU memory. So every
client is a child of its own that holds one context, says what it sees in one line of JSON, and ends when
its standard input does, or after its time, whatever becomes of us.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

from mpsctl.values.errors import NotReady

_UNDER_MPS = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED: 1 under MPS and 0 without (driver 580, H200); unknown before CUDA 12.3."""
_MULTIPROCESSORS = 16
OUT_OF_MEMORY = 2


class CudaError(NotReady):
    """A CUDA call that failed in the client, with CUDA's own number and name for the error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"a CUDA client failed: {call} returned {code} ({name})")
        self.call, self.code, self.name = call, code, name


@dataclass(frozen=True)
class Seen:
    """What a client sees of its device. ``under_mps`` is None where the driver does not tell."""

    pid: int
    under_mps: Optional[bool]
    free_mib: int
    total_mib: int
    multiprocessors: int
    seconds: float


@contextmanager
def client(environment: Mapping[str, str], timeout_s: float = 20) -> Iterator[Seen]:
    """A client with one context on the first device it sees, held for the length of the block.

    ``environment`` is all that it gets: nothing of the caller's own CUDA variables.

    :raises CudaError: if CUDA refuses.
    :raises NotReady: if there is no libcuda, or the client is not up within ``timeout_s`` seconds.
    """
    program = str(Path(__file__).parents[2].absolute())  # a folder, the zip application, or its kept bytecode
    code = "import sys; sys.path.insert(0, sys.argv[1]); from mpsctl.outside import cuda; cuda.child()"
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", code, program, f"{timeout_s:g}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, **environment},
        start_new_session=True,  # a Ctrl-C at our terminal ends the block, and that ends the client in good order
    )
    try:
        yield _first_words(process, timeout_s)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_words(process: subprocess.Popen[bytes], timeout_s: float) -> Seen:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    if not ready:
        process.kill()
        raise NotReady(f"a CUDA client was not up within {timeout_s:g} s; a stopped daemon lets clients wait for ever")
    try:
        said: dict[str, Any] = json.loads(process.stdout.readline() or b"{}")
    except ValueError:
        said = {}
    if "code" in said:
        raise CudaError(str(said["call"]), int(said["code"]), str(said["name"]))
    if "free_mib" not in said:
        raise NotReady(f"a CUDA client ended early: {said.get('problem', 'it said nothing')}")
    return Seen(process.pid, **said)


def child() -> None:
    """The client itself, in a process of its own."""
    # The alarm ends it even where a CUDA call hangs: twice the time that its parent waits for its first words.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(2 * float(sys.argv[2]))))
    try:
        said = _look()
    except CudaError as error:
        said = {"call": error.call, "code": error.code, "name": error.name}
    except OSError as error:
        said = {"problem": f"libcuda.so.1: {error}"}
    print(json.dumps(said), flush=True)
    sys.stdin.buffer.read()


class _Library:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def attribute(self, which: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value


def _look() -> dict[str, object]:
    begin = time.monotonic()
    cuda = _Library()
    cuda.call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    try:
        under_mps: Optional[bool] = cuda.attribute(_UNDER_MPS, device) == 1
    except CudaError:
        under_mps = None
    return {
        "under_mps": under_mps,
        "free_mib": free.value >> 20,
        "total_mib": total.value >> 20,
        "multiprocessors": cuda.attribute(_MULTIPROCESSORS, device),
        "seconds": round(time.monotonic() - begin, 3),
    }
