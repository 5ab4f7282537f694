"""NVML, through nvidia-ml-py's pynvml. The one module that imports it."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterator, Optional, Protocol, TypeVar

from mpsctl.values.errors import NotInForce, NotReady
from mpsctl.values.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED, Gpu, Load, MigDevice, pci_address

T = TypeVar("T")
_MODES = {0: DEFAULT, 2: PROHIBITED, 3: EXCLUSIVE_PROCESS}


class Nvml(Protocol):
    """What this program asks of NVML while it is initialised."""

    def driver_version(self) -> str:
        """For example ``580.159.04``."""

    def gpus(self) -> list[Gpu]:
        """The host's GPUs that answer; one that is lost is left out, and its neighbours are not."""

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


class _Pynvml:
    def __init__(self, library: Any) -> None:
        self._library = library

    def _optional(self, call: Callable[[], T]) -> Optional[T]:
        """NotSupported is a value here: older and virtual GPUs lack much."""
        try:
            return call()
        except self._library.NVMLError:
            return None

    def driver_version(self) -> str:
        return str(self._library.nvmlSystemGetDriverVersion())

    def gpus(self) -> list[Gpu]:
        found = []
        for index in range(self._library.nvmlDeviceGetCount()):
            gpu = self._optional(partial(self._gpu, index))
            if gpu is not None:
                found.append(gpu)
        return found

    def _gpu(self, index: int) -> Gpu:
        library = self._library
        handle = library.nvmlDeviceGetHandleByIndex(index)
        mode = self._optional(lambda: library.nvmlDeviceGetComputeMode(handle))
        mig = self._optional(lambda: library.nvmlDeviceGetMigMode(handle)[0])
        persistence = self._optional(lambda: library.nvmlDeviceGetPersistenceMode(handle))
        capability = self._optional(lambda: library.nvmlDeviceGetCudaComputeCapability(handle))
        return Gpu(
            index=index,
            uuid=str(library.nvmlDeviceGetUUID(handle)),
            pci_address=pci_address(str(library.nvmlDeviceGetPciInfo(handle).busId)),
            name=str(library.nvmlDeviceGetName(handle)),
            memory_mib=int(library.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
            compute_mode=None if mode is None else _MODES.get(mode),
            persistence=None if persistence is None else bool(persistence),
            mig_enabled=None if mig is None else bool(mig),
            compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
            mig_devices=tuple(self._mig_devices(handle)) if mig else (),
        )

    def _mig_devices(self, handle: Any) -> Iterator[MigDevice]:
        library = self._library
        for slot in range(self._optional(lambda: library.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            mig = self._optional(partial(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot))
            if mig is not None:
                yield MigDevice(
                    uuid=str(library.nvmlDeviceGetUUID(mig)),
                    name=str(library.nvmlDeviceGetName(mig)),
                    memory_mib=int(library.nvmlDeviceGetMemoryInfo(mig).total) >> 20,
                )

    def set_compute_mode(self, gpu: Gpu, mode: str) -> None:
        library = self._library
        number = next(number for number, name in _MODES.items() if name == mode)
        try:
            handle = library.nvmlDeviceGetHandleByUUID(gpu.uuid)
            library.nvmlDeviceSetComputeMode(handle, number)
            now = library.nvmlDeviceGetComputeMode(handle)
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
        rows = self._optional(lambda: rows_of(self._library.nvmlDeviceGetHandleByUUID(uuid)))
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
        library.nvmlInit()
    except library.NVMLError as error:
        raise NotReady(f"NVML does not answer: {error}; load the NVIDIA driver and look at `nvidia-smi`") from None
    try:
        yield _Pynvml(library)
    finally:
        with suppress(library.NVMLError):
            library.nvmlShutdown()


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
