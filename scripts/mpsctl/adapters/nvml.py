"""NVML, through nvidia-ml-py's pynvml. The one module that imports it."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence, TypeVar

from mpsctl.adapters.background import Background
from mpsctl.model import foreign
from mpsctl.model.errors import NotInForce, NotReady
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, NOT_TOLD, PROHIBITED, Gpu, Load, MigDevice, pci_address

T = TypeVar("T")
BOUND_S = 10
"""What NVML may take for one call, or for a look at all GPUs. A GPU that fails can keep a call for ever (NVIDIA's own
tools hang then as well), and a driver without persistence takes seconds to wake its GPUs."""
_NEXT_BOUND_S = 1
"""And for the GPUs behind one that did not answer."""
_VERSION_MISMATCH, _GPU_IS_LOST = 18, 15
_MODES = {0: DEFAULT, 2: PROHIBITED, 3: EXCLUSIVE_PROCESS}


class Nvml(Protocol):
    """What this program asks of NVML while it is initialised."""

    def driver_version(self) -> str:
        """For example ``580.159.04``."""

    def cuda_version(self) -> Optional[int]:
        """The CUDA version that the driver serves, as 13000 for 13.0; None where NVML does not tell."""

    def gpus(self) -> list[Gpu]:
        """The host's GPUs that answer; one that is lost or hangs is left out, and its neighbours are not.

        No property that NVML does not tell hides a GPU but its UUID, by which everything else of ours names it.
        """

    def set_compute_mode(self, gpu: Gpu, mode: str) -> None:
        """Set the mode and read it back. Lasts until the driver is unloaded or the host reboots.

        :raises NotInForce: if NVML refuses or something else reads back.
        """

    def compute_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        """What each process with a compute context on a GPU holds, in MiB rounded down; None where NVML does not tell.

        MPS clients and servers are among them.
        """

    def client_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        """What each MPS client on a GPU or MIG device holds, in MiB rounded down, its contexts included.

        Servers are not among them (driver 580, H200). None where NVML does not tell at all, or for a process whose
        memory it does not tell.
        """

    def load(self, uuid: str) -> Load:
        """How busy a GPU or MIG device is at this moment, as far as NVML tells."""


class Hanging(NotReady):
    """NVML did not answer within its bound."""


class VersionMismatch(NotReady):
    """NVML's library is of another release than the loaded driver: the driver was upgraded underneath."""


def _within(call: Callable[[], T], bound_s: float) -> T:
    """What the call returns or raises.

    :raises Hanging: if it does neither within ``bound_s`` seconds; it is left alone then, and ends nobody's wait.
    """
    try:  # NVML lets go of Python's lock while it works
        return Background(call).result(bound_s)
    except TimeoutError:
        raise Hanging(f"NVML does not answer within {bound_s:g} s; look at dmesg for a GPU that failed (Xid)") from None


class _Pynvml:
    def __init__(self, library: Any) -> None:
        self._library = library
        self.hangs = False

    def _bounded(self, call: Callable[[], T], bound_s: Optional[float] = None) -> T:
        try:
            return _within(call, BOUND_S if bound_s is None else bound_s)
        except Hanging:
            self.hangs = True
            raise

    def _optional(self, call: Callable[[], T]) -> Optional[T]:
        """NotSupported is a value here: older and virtual GPUs lack much."""
        try:
            return call()
        except self._library.NVMLError:
            return None

    def driver_version(self) -> str:
        return str(self._bounded(self._library.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> Optional[int]:
        version = self._optional(self._library.nvmlSystemGetCudaDriverVersion_v2)
        return None if version is None else int(version)

    def gpus(self) -> list[Gpu]:
        count = int(self._bounded(self._library.nvmlDeviceGetCount))
        found: list[Gpu] = []
        begin, bound_s = 0, float(BOUND_S)
        while begin < count:
            answered: list[Optional[Gpu]] = []
            with suppress(Hanging):
                self._bounded(partial(self._read, range(begin, count), answered), bound_s)
            known = list(answered)
            found += [gpu for gpu in known if gpu is not None]
            begin, bound_s = begin + len(known) + 1, _NEXT_BOUND_S
        return found

    def _read(self, indices: Iterable[int], answered: list[Optional[Gpu]]) -> None:
        for index in indices:
            answered.append(self._optional(partial(self._gpu, index)))

    def _gpu(self, index: int) -> Gpu:
        library = self._library
        handle = library.nvmlDeviceGetHandleByIndex(index)
        mode = self._optional(lambda: library.nvmlDeviceGetComputeMode(handle))
        mig = self._optional(lambda: library.nvmlDeviceGetMigMode(handle)[0])
        persistence = self._optional(lambda: library.nvmlDeviceGetPersistenceMode(handle))
        capability = self._optional(lambda: library.nvmlDeviceGetCudaComputeCapability(handle))
        place = self._told(lambda: library.nvmlDeviceGetPciInfo(handle))
        return Gpu(
            index=index,
            uuid=str(library.nvmlDeviceGetUUID(handle)),
            pci_address=NOT_TOLD if place is None else pci_address(foreign.shown(str(place.busId))),
            name=self._name(handle),
            memory_mib=self._memory_mib(handle),
            compute_mode=None if mode is None else _MODES.get(mode),
            persistence=None if persistence is None else bool(persistence),
            mig_enabled=None if mig is None else bool(mig),
            compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
            mig_devices=tuple(self._mig_devices(handle)) if mig else (),
        )

    def _told(self, call: Callable[[], T]) -> Optional[T]:
        """As ``_optional``, but a GPU that is lost is told by its first error: it has no properties any more."""
        try:
            return call()
        except self._library.NVMLError as error:
            if getattr(error, "value", None) == _GPU_IS_LOST:
                raise
            return None

    def _name(self, handle: Any) -> str:
        name = self._told(lambda: self._library.nvmlDeviceGetName(handle))
        return NOT_TOLD if name is None else foreign.shown(str(name))

    def _memory_mib(self, handle: Any) -> Optional[int]:
        """None as well where NVML tells 0: a GPU that computes has some."""
        memory = self._told(lambda: self._library.nvmlDeviceGetMemoryInfo(handle))
        return None if memory is None else int(memory.total) >> 20 or None

    def _mig_devices(self, handle: Any) -> Iterator[MigDevice]:
        library = self._library
        for slot in range(self._optional(lambda: library.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            mig = self._optional(partial(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot))
            uuid = None if mig is None else self._optional(partial(library.nvmlDeviceGetUUID, mig))
            if uuid is not None:
                yield MigDevice(uuid=str(uuid), name=self._name(mig), memory_mib=self._memory_mib(mig))

    def set_compute_mode(self, gpu: Gpu, mode: str) -> None:
        library = self._library
        number = next(number for number, name in _MODES.items() if name == mode)

        def set_and_read() -> Any:
            handle = library.nvmlDeviceGetHandleByUUID(gpu.uuid)
            library.nvmlDeviceSetComputeMode(handle, number)
            return library.nvmlDeviceGetComputeMode(handle)

        try:
            now = self._bounded(set_and_read)
        except library.NVMLError as error:
            raise NotInForce(f"{gpu}: compute mode {mode} was refused by NVML: {error}") from None
        if now != number:
            raise NotInForce(f"{gpu}: compute mode reads {_MODES.get(now, now)} after {mode} was set")

    def compute_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        return self._held_mib(self._library.nvmlDeviceGetComputeRunningProcesses, uuid)

    def client_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        return self._held_mib(self._library.nvmlDeviceGetMPSComputeRunningProcesses, uuid)

    def load(self, uuid: str) -> Load:
        library = self._library
        memory = self._optional(lambda: library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByUUID(uuid)))
        rates = self._optional(lambda: library.nvmlDeviceGetUtilizationRates(library.nvmlDeviceGetHandleByUUID(uuid)))
        return Load(
            used_mib=None if memory is None else int(memory.used) >> 20,
            free_mib=None if memory is None else int(memory.free) >> 20,
            utilisation_percent=None if rates is None else int(rates.gpu),
        )

    def _held_mib(self, rows_of: Callable[[Any], Any], uuid: str) -> Optional[dict[int, Optional[int]]]:
        def read() -> Any:
            return self._optional(lambda: rows_of(self._library.nvmlDeviceGetHandleByUUID(uuid)))

        try:
            rows = self._bounded(read)
        except Hanging:
            return None
        if rows is None:
            return None
        return {int(row.pid): None if row.usedGpuMemory is None else int(row.usedGpuMemory) >> 20 for row in rows}


@contextmanager
def opened() -> Iterator[Nvml]:
    """NVML, initialised for the length of the block.

    :raises NotReady: if the library or the driver is not there (yet), with NVML's own words.
    """
    library = importlib.import_module("pynvml")
    try:
        _within(library.nvmlInit, BOUND_S)
    except library.NVMLError as error:
        said = f"NVML does not answer: {error}"
        if getattr(error, "value", None) == _VERSION_MISMATCH:
            remedy = "the driver was upgraded underneath: reboot the host, or load its new modules"
            raise VersionMismatch(f"{said}; {remedy}") from None
        raise NotReady(f"{said}; load the NVIDIA driver and look at `nvidia-smi`") from None
    inside = _Pynvml(library)
    try:
        yield inside
    finally:
        if not inside.hangs:  # else it would wait for the call that hangs
            with suppress(library.NVMLError):
                library.nvmlShutdown()


class Snapshot(NamedTuple):
    """What NVML shows of all GPUs at one moment; the last three by the UUID of each GPU and MIG device.

    ``unread`` are NVML's words where it shows nothing, ``mismatch`` whether its library and the loaded driver are of
    different releases.
    """

    gpus: Sequence[Gpu] = ()
    driver: Optional[str] = None
    cuda: Optional[int] = None
    compute: Mapping[str, Optional[Mapping[int, Optional[int]]]] = {}
    clients: Mapping[str, Optional[Mapping[int, Optional[int]]]] = {}
    loads: Mapping[str, Load] = {}
    unread: Optional[str] = None
    mismatch: bool = False


def snapshot(open_: Callable[[], AbstractContextManager[Nvml]]) -> Snapshot:
    """All of it, in this process; raises nothing that NVML says."""
    try:
        with open_() as nvml:
            gpus = nvml.gpus()
            uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
            return Snapshot(
                gpus,
                nvml.driver_version(),
                nvml.cuda_version(),
                {uuid: nvml.compute_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.client_memory_mib(uuid) for uuid in uuids},
                {uuid: nvml.load(uuid) for uuid in uuids},
            )
    except NotReady as error:
        return Snapshot(unread=str(error), mismatch=isinstance(error, VersionMismatch))


class Kept:
    """NVML for one who asks again and again: it stays open from one look to the next, as long as it answers.

    While it is open the driver cannot be unloaded, as under every program that watches GPUs.
    """

    def __init__(self, open_: Callable[[], AbstractContextManager[Nvml]]) -> None:
        self._open = open_
        self._stack = ExitStack()
        self._nvml: Optional[Nvml] = None

    def snapshot(self) -> Snapshot:
        """As the function of that name. Once NVML shows nothing, the next look opens it anew."""
        seen = Snapshot()
        try:
            seen = snapshot(self._kept)
        finally:
            if seen.unread is not None or not seen.gpus:
                self.close()
        return seen

    @contextmanager
    def _kept(self) -> Iterator[Nvml]:
        if self._nvml is None:
            self._nvml = self._stack.enter_context(self._open())
        yield self._nvml

    def close(self) -> None:
        self._nvml = None
        self._stack.close()


class ClientMemory:
    """What MPS clients hold. NVML is opened when the first is asked for, and closed with ``stack``."""

    def __init__(self, open_: Callable[[], AbstractContextManager[Nvml]], stack: ExitStack) -> None:
        self._open, self._stack = open_, stack
        self._nvml: Optional[Nvml] = None
        self._absent = False
        self._known: dict[str, dict[int, Optional[int]]] = {}

    def held_mib(self, uuid: str, pid: int) -> Optional[int]:
        """What a client holds on a device, or None where NVML does not tell."""
        if uuid not in self._known:
            self._known[uuid] = self._look(uuid)
        return self._known[uuid].get(pid)

    def _look(self, uuid: str) -> dict[int, Optional[int]]:
        if self._nvml is None and not self._absent:
            try:
                self._nvml = self._stack.enter_context(self._open())
            except NotReady:
                self._absent = True
        return (self._nvml.client_memory_mib(uuid) if self._nvml else None) or {}
