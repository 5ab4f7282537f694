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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import child_process, kernels
from mpsctl.model.errors import NotReady

_UNDER_MPS = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED: 1 under MPS and 0 without (driver 580, H200); unknown before CUDA 12.3."""
_MULTIPROCESSORS = 16
OUT_OF_MEMORY, REFUSED, TOO_MANY_CLIENTS = 2, 805, 808
_NO_COMPILER = (221, 222)
"""CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION: nothing is said of the GPU."""


class CudaError(NotReady):
    """A CUDA call that failed in the client, with CUDA's own number and name for the error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"a CUDA client failed: {call} returned {code} ({name})")
        self.call, self.code, self.name = call, code, name


class NoLibrary(NotReady):
    """The host has no libcuda, or this user may not read it."""


class TooLate(NotReady):
    """A client was not up within its time."""


@dataclass(frozen=True)
class Trial:
    """What a client is to do besides looking, and as whom.

    ``ordinal`` is the device among those it sees, ``uid`` the user that it becomes before libcuda is opened (root's
    privilege), as a member of the group ``gid`` as well. Each of ``allocate_mib`` is allocated in one piece and freed
    again; ``kernel`` runs a small one.
    """

    ordinal: int = 0
    uid: Optional[int] = None
    allocate_mib: tuple[int, ...] = ()
    kernel: bool = False
    gid: Optional[int] = None


@dataclass(frozen=True)
class Seen:
    """What a client sees of its device. ``under_mps`` is None where the driver does not tell.

    ``allocated`` has CUDA's error for each size of the trial, 0 where it worked. ``kernel_right`` is whether the
    kernel's result was right; None: not tried, or not possible for the reason in ``kernel_problem``.
    """

    pid: int
    under_mps: Optional[bool]
    free_mib: int
    total_mib: int
    multiprocessors: int
    seconds: float
    allocated: Sequence[int] = field(default=())
    kernel_right: Optional[bool] = None
    kernel_problem: Optional[str] = None


@contextmanager
def client(environment: Mapping[str, str], timeout_s: float = 20, trial: Optional[Trial] = None) -> Iterator[Seen]:
    """A client with one context on the first device it sees, held for the length of the block.

    ``environment`` is all that it gets: nothing of the caller's own CUDA variables.

    :raises CudaError: if CUDA refuses.
    :raises NoLibrary: if there is no libcuda.
    :raises TooLate: if the client is not up within ``timeout_s`` seconds.
    :raises NotReady: if it ends without a word.
    """
    process = subprocess.Popen(
        program("cuda", f"{timeout_s:g}", json.dumps(asdict(trial or Trial()))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**BARE_ENVIRONMENT, **environment},
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


BARE_ENVIRONMENT = {"PATH": os.defpath, "CUDA_CACHE_DISABLE": "1"}
"""The driver would keep compiled kernels in the user's home."""


def program(module: str, *arguments: str) -> list[str]:
    """The command that runs ``child()`` of a module of this package, with nothing of the caller's Python.

    All of ours is imported before that begins, so that a child may become a user who cannot read this program.
    """
    # A folder, the zip application, or its kept bytecode, which this process holds open and a child finds by its name.
    place = os.path.realpath(Path(__file__).parents[2])
    if not os.path.exists(place):  # of a program that travels: memory of this process, which a child finds by its name
        place = str(Path(__file__).parents[2]).replace("/proc/self/", f"/proc/{os.getpid()}/", 1)
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from mpsctl.adapters import {module}; {module}.child()"
    return [sys.executable, "-IS", "-c", code, place, *arguments]


def _first_words(process: subprocess.Popen[bytes], timeout_s: float) -> Seen:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    if not ready:
        process.kill()
        raise TooLate(f"a CUDA client was not up within {timeout_s:g} s; a stopped daemon lets clients wait for ever")
    try:
        said: dict[str, Any] = json.loads(process.stdout.readline() or b"{}")
    except ValueError:
        said = {}
    if "code" in said:
        raise CudaError(str(said["call"]), int(said["code"]), str(said["name"]))
    if "missing" in said:
        raise NoLibrary(f"a CUDA client ended early: {said['missing']}")
    if "free_mib" not in said:
        raise NotReady(f"a CUDA client ended early: {said.get('problem', 'it said nothing')}")
    return Seen(process.pid, **said)


def child() -> None:
    """The client itself, in a process of its own."""
    # The alarm ends it even where a CUDA call hangs: twice the time that its parent waits for its first words.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(2 * float(sys.argv[2]))))
    try:
        wanted: dict[str, Any] = json.loads(sys.argv[3])
        said = _look(Trial(**wanted))
    except CudaError as error:
        said = {"call": error.call, "code": error.code, "name": error.name}
    except NoLibrary as error:
        said = {"missing": str(error)}
    except OSError as error:
        said = {"problem": str(error)}
    print(json.dumps(said), flush=True)
    sys.stdin.buffer.read()


_POINTER, _SIZE, _OUT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES: Mapping[str, Sequence[Any]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (_OUT, ctypes.c_int),
    "cuDeviceGetAttribute": (_OUT, ctypes.c_int, ctypes.c_int),
    "cuCtxCreate_v2": (_OUT, ctypes.c_uint, ctypes.c_int),
    "cuCtxSynchronize": (),
    "cuGetErrorName": (ctypes.c_int, _OUT),
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_POINTER,),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, _POINTER, _SIZE),
    "cuModuleLoadData": (_OUT, ctypes.c_char_p),
    "cuModuleGetFunction": (_OUT, ctypes.c_void_p, ctypes.c_char_p),
    "cuLaunchKernel": (ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}
"""The arguments of each call, by cuda.h: device pointers are numbers of 64 bits, handles are pointers."""


class Library:
    """libcuda, and what this process has made with it.

    :raises NoLibrary: if it cannot be opened.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoLibrary(f"libcuda.so.1: {error}") from None
        self.device = ctypes.c_int()
        self._context, self._module = ctypes.c_void_p(), ctypes.c_void_p()

    def call(self, name: str, *arguments: object) -> None:
        self._check(name, self._function(name)(*arguments))

    def _function(self, name: str) -> Any:
        found = getattr(self._library, name)
        found.argtypes, found.restype = _SIGNATURES[name], ctypes.c_int
        return found

    def _check(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._function("cuGetErrorName")(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def open(self, ordinal: int) -> None:
        """Make a context on a device."""
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.call("cuCtxCreate_v2", ctypes.byref(self._context), 0, self.device)

    def attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, self.device)
        return value.value

    @property
    def multiprocessors(self) -> int:
        return self.attribute(_MULTIPROCESSORS)

    @property
    def under_mps(self) -> Optional[bool]:
        try:
            return self.attribute(_UNDER_MPS) == 1
        except CudaError:
            return None

    def allocate(self, size: int) -> int:
        """``size`` bytes of the device's memory, by their address."""
        address = _POINTER()
        self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def read(self, address: int, count: int) -> list[int]:
        """``count`` whole numbers of 32 bits from the device's memory, once all work before is done."""
        numbers = (ctypes.c_uint32 * count)()
        self.call("cuMemcpyDtoH_v2", numbers, address, ctypes.sizeof(numbers))
        return list(numbers)

    def kernel(self, name: str, *arguments: Any) -> Kernel:
        """One of our kernels with its arguments: c_uint64 for addresses, c_uint32 for numbers."""
        if not self._module:
            self.call("cuModuleLoadData", ctypes.byref(self._module), kernels.PTX.encode())
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return Kernel(self._function("cuLaunchKernel"), self._check, function, arguments)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


class Kernel:
    """A kernel with its arguments, ready to be launched again and again."""

    def __init__(self, launch: Any, check: Any, function: ctypes.c_void_p, arguments: Sequence[Any]) -> None:
        self._launch, self._check, self._function = launch, check, function
        self._arguments = arguments  # kept alive: only their addresses go to the driver
        self._addresses = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(one) for one in arguments])

    def launch(self, blocks: int, threads: int) -> None:
        """Queue it; the driver copies the arguments at once."""
        code = self._launch(self._function, blocks, 1, 1, threads, 1, 1, 0, None, self._addresses, None)
        self._check("cuLaunchKernel", code)


def _look(trial: Trial) -> dict[str, object]:
    child_process.become(trial.uid, trial.gid)
    begin = time.monotonic()
    cuda = Library()
    cuda.open(trial.ordinal)
    free, total = _SIZE(), _SIZE()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    said: dict[str, object] = {
        "under_mps": cuda.under_mps,
        "free_mib": free.value >> 20,
        "total_mib": total.value >> 20,
        "multiprocessors": cuda.multiprocessors,
        "seconds": round(time.monotonic() - begin, 3),
        "allocated": [_try_to_allocate(cuda, size_mib) for size_mib in trial.allocate_mib],
    }
    if trial.kernel:
        try:
            said["kernel_right"] = _run_kernel(cuda)
        except CudaError as error:
            said["kernel_right"] = None if error.code in _NO_COMPILER else False
            said["kernel_problem"] = str(error)
    return said


def _try_to_allocate(cuda: Library, size_mib: int) -> int:
    try:
        cuda.free(cuda.allocate(size_mib << 20))
        return 0
    except CudaError as error:
        return error.code


def _run_kernel(cuda: Library) -> bool:
    blocks, threads, a, b = 8, 128, 2_654_435_761, 12_345
    count = blocks * threads
    address = cuda.allocate(4 * count)
    arguments = (_POINTER(address), ctypes.c_uint32(a), ctypes.c_uint32(b), ctypes.c_uint32(count))
    cuda.kernel(kernels.FILL, *arguments).launch(blocks, threads)
    cuda.synchronize()
    found = cuda.read(address, count)
    cuda.free(address)
    return found == [kernels.filled(index, a, b) for index in range(count)]
