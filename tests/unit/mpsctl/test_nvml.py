"""NVML through pynvml: what it tells, what it does not tell, and what does not answer."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Optional

import pytest

from mpsctl.adapters import nvml
from mpsctl.model.errors import NotInForce, NotReady
from mpsctl.model.gpu import Load


class NVMLError(Exception):
    def __init__(self, text: str, value: int = 3) -> None:
        super().__init__(text)
        self.value = value


class Pynvml:
    """pynvml with two GPUs; ``broken`` names calls that fail, for all GPUs or as ``call@index``."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.lost: set[str] = set()
        self.modes = [0, 3]
        self.mig = [0, 0]
        self.refuses_modes = self.ignores_modes = False
        self.open = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[[int], Any]] = {
            "nvmlDeviceGetUUID": lambda i: f"GPU-{i}" if i < 10 else f"MIG-{i}",
            "nvmlDeviceGetPciInfo": lambda i: SimpleNamespace(busId=f"00000000:{0x1B + i:02X}:00.0"),
            "nvmlDeviceGetName": lambda i: "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda i: SimpleNamespace(
                total=150_754_820_096, used=1 << 30, free=(3 << 30) + 5
            ),
            "nvmlDeviceGetUtilizationRates": lambda i: SimpleNamespace(gpu=97, memory=12),
            "nvmlDeviceGetComputeMode": lambda i: self.modes[i],
            "nvmlDeviceGetMigMode": lambda i: (self.mig[i], self.mig[i]),
            "nvmlDeviceGetPersistenceMode": lambda i: 1,
            "nvmlDeviceGetCudaComputeCapability": lambda i: (9, 0),
            "nvmlDeviceGetMaxMigDeviceCount": lambda i: 7,
            "nvmlDeviceGetComputeRunningProcesses": lambda i: [
                SimpleNamespace(pid=7, usedGpuMemory=605_028_352),
                SimpleNamespace(pid=8, usedGpuMemory=None),
            ],
            "nvmlDeviceGetMPSComputeRunningProcesses": lambda i: [
                SimpleNamespace(pid=7, usedGpuMemory=605_028_352),
                SimpleNamespace(pid=8, usedGpuMemory=None),
            ],
        }

        def call(handle: int = 0) -> Any:
            self._check(name, handle)
            return answers[name](handle)

        return call

    def _check(self, name: str, handle: int) -> None:
        if name in self.broken or f"{name}@{handle}" in self.broken:
            raise NVMLError("Not Supported")
        if f"{name}@{handle}" in self.lost:
            raise NVMLError("GPU is lost", 15)

    def nvmlInit(self) -> None:
        if "nvmlInit" in self.broken:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._check("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.rpartition("-")[2])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, slot: int) -> int:
        if slot not in (0, 2):
            raise NVMLError("Not Found")
        return 10 + 10 * handle + slot

    def nvmlDeviceSetComputeMode(self, handle: int, mode: int) -> None:
        if self.refuses_modes:
            raise NVMLError("Insufficient Permissions")
        if not self.ignores_modes:
            self.modes[handle] = mode


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Pynvml:
    made = Pynvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_gpus_are_read_with_memory_in_mib_and_short_addresses(library: Pynvml) -> None:
    with nvml.opened() as opened:
        first, second = opened.gpus()
        assert opened.driver_version() == "580.159.04"
        assert list(opened.compute_memory_mib("GPU-0") or ()) == [7, 8]
    assert (first.uuid, first.pci_address, first.memory_mib) == ("GPU-0", "0000:1b:00.0", 143_771)
    assert (first.compute_mode, second.compute_mode) == ("default", "exclusive_process")
    assert (first.persistence, first.mig_enabled, first.compute_capability) == (True, False, (9, 0))
    assert library.open == 0


def test_what_a_gpu_does_not_support_is_a_value(library: Pynvml) -> None:
    library.broken = {
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetCudaComputeCapability",
    }
    with nvml.opened() as opened:
        gpu = opened.gpus()[0]
    assert (gpu.compute_mode, gpu.mig_enabled, gpu.persistence, gpu.compute_capability) == (None,) * 4


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_is_lost_does_not_hide_the_others(library: Pynvml, call: str) -> None:
    library.broken = {f"{call}@0"}
    with nvml.opened() as opened:
        assert [gpu.index for gpu in opened.gpus()] == [1]


@pytest.fixture
def endless(library: Pynvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """Lets a call hang, of one handle or (-1) of all, until the test is over."""
    over = threading.Event()
    hanging: set[tuple[str, int]] = set()
    answer = library._check

    def check(name: str, handle: int) -> None:
        if (name, handle) in hanging or (name, -1) in hanging:
            over.wait()
        answer(name, handle)

    monkeypatch.setattr(library, "_check", check)
    monkeypatch.setattr(nvml, "BOUND_S", 0.1)
    monkeypatch.setattr(nvml, "_NEXT_BOUND_S", 0.1)
    yield lambda name, handle: hanging.add((name, handle))
    over.set()


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_that_hangs_does_not_hide_the_others_nor_hold_the_end(
    library: Pynvml, endless: Callable[[str, int], None], call: str, index: int
) -> None:
    endless(call, index)
    with nvml.opened() as opened:
        assert [gpu.index for gpu in opened.gpus()] == [1 - index]
    assert library.open == 1, "it is not closed: that would wait as well"


def test_nothing_waits_for_ever_where_all_hang(library: Pynvml, endless: Callable[[str, int], None]) -> None:
    for call in ("ComputeMode", "MPSComputeRunningProcesses", "ComputeRunningProcesses"):
        endless(f"nvmlDeviceGet{call}", -1)
    with nvml.opened() as opened:
        assert opened.gpus() == []
        assert opened.client_memory_mib("GPU-0") is None
        assert opened.compute_memory_mib("GPU-0") is None


def test_an_nvml_that_never_starts_is_not_ready(
    library: Pynvml, endless: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless("nvmlInit", 0)
    monkeypatch.setattr(library, "nvmlInit", lambda: library._check("nvmlInit", 0), raising=False)
    with pytest.raises(NotReady, match=r"NVML does not answer within 0\.1 s; look at dmesg"), nvml.opened():
        pytest.fail("it was opened")


@pytest.mark.parametrize(("number", "remedy"), [(18, "reboot the host"), (9, "load the NVIDIA driver")])
def test_why_nvml_does_not_start_has_its_own_remedy(
    library: Pynvml, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail() -> None:
        raise NVMLError("no", number)

    monkeypatch.setattr(library, "nvmlInit", fail, raising=False)
    with pytest.raises(NotReady, match=remedy), nvml.opened():
        pytest.fail("it was opened")


def test_mig_devices_are_those_of_the_slots_in_use(library: Pynvml) -> None:
    library.mig[1] = 1
    with nvml.opened() as opened:
        first, second = opened.gpus()
    assert first.mig_devices == ()
    assert [device.uuid for device in second.mig_devices] == ["MIG-20", "MIG-22"]


def test_a_compute_mode_is_set_and_read_back(library: Pynvml) -> None:
    with nvml.opened() as opened:
        opened.set_compute_mode(opened.gpus()[0], "exclusive_process")
    assert library.modes[0] == 3


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("refuses_modes", "compute mode exclusive_process was refused by NVML: Insufficient Permissions"),
        ("ignores_modes", "compute mode reads default after exclusive_process was set"),
    ],
)
def test_a_compute_mode_that_does_not_hold_is_an_error(library: Pynvml, attribute: str, says: str) -> None:
    setattr(library, attribute, True)
    with nvml.opened() as opened, pytest.raises(NotInForce, match=says):
        opened.set_compute_mode(opened.gpus()[0], "exclusive_process")


def test_a_driver_that_is_not_loaded_is_not_ready(library: Pynvml) -> None:
    library.broken = {"nvmlInit"}
    with pytest.raises(NotReady, match="NVML does not answer: Driver Not Loaded"), nvml.opened():
        pass


def test_what_clients_hold_is_told_in_mib_as_far_as_nvml_knows(library: Pynvml) -> None:
    with nvml.opened() as opened:
        uuid = opened.gpus()[0].uuid
        assert opened.client_memory_mib(uuid) == {7: 577, 8: None}
        library.broken = {"nvmlDeviceGetMPSComputeRunningProcesses"}
        assert opened.client_memory_mib(uuid) is None, "older than Volta, or an older driver"


def test_how_busy_a_gpu_is_as_far_as_nvml_tells(library: Pynvml) -> None:
    with nvml.opened() as opened:
        uuid = opened.gpus()[0].uuid
        assert opened.load(uuid) == Load(used_mib=1024, free_mib=3072, utilisation_percent=97)
        library.broken = {"nvmlDeviceGetUtilizationRates"}
        assert opened.load(uuid) == Load(used_mib=1024, free_mib=3072), "a MIG device"
        library.broken |= {"nvmlDeviceGetMemoryInfo"}
        assert opened.load(uuid) == Load()


def test_nvml_is_opened_once_for_all_clients_and_only_for_them(library: Pynvml) -> None:
    with ExitStack() as stack:
        memory = nvml.ClientMemory(nvml.opened, stack)
        assert library.open == 0
        assert [memory.held_mib("GPU-0", pid) for pid in (7, 8, 9)] == [577, None, None]
        assert memory.held_mib("GPU-1", 7) == 577
        assert library.open == 1
    assert library.open == 0


def test_without_nvml_no_client_is_known_to_hold_anything(library: Pynvml) -> None:
    library.broken = {"nvmlInit"}
    with ExitStack() as stack:
        memory = nvml.ClientMemory(nvml.opened, stack)
        assert [memory.held_mib(uuid, 7) for uuid in ("GPU-0", "GPU-1")] == [None, None]


def test_nvml_is_closed_whatever_happens_inside(library: Pynvml) -> None:
    with pytest.raises(ZeroDivisionError), nvml.opened():
        _ = 1 / 0
    assert library.open == 0


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("nvmlDeviceGetMemoryInfo", ("NVIDIA H200", "0000:1b:00.0", None)),
        ("nvmlDeviceGetName", ("not told", "0000:1b:00.0", 143_771)),
        ("nvmlDeviceGetPciInfo", ("NVIDIA H200", "not told", 143_771)),
    ],
)
def test_no_property_that_cannot_be_read_hides_a_gpu(
    library: Pynvml, call: str, shown: tuple[str, str, Optional[int]]
) -> None:
    library.broken = {f"{call}@0"}
    with nvml.opened() as opened:
        first, second = opened.gpus()
    assert (first.index, first.uuid) == (0, "GPU-0")
    assert (first.name, first.pci_address, first.memory_mib) == shown
    assert second.memory_mib == 143_771


def test_a_gpu_of_which_nothing_but_its_uuid_is_told_is_a_gpu(library: Pynvml) -> None:
    names = ("Name", "PciInfo", "MemoryInfo", "ComputeMode", "MigMode", "PersistenceMode", "CudaComputeCapability")
    library.broken = {f"nvmlDeviceGet{name}" for name in names}
    with nvml.opened() as opened:
        assert [(gpu.uuid, gpu.memory_mib) for gpu in opened.gpus()] == [("GPU-0", None), ("GPU-1", None)]


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo"])
def test_a_gpu_that_says_that_it_is_lost_is_none(library: Pynvml, call: str) -> None:
    """Some of its properties are still in NVML's memory, and are no sign of life."""
    library.lost = {f"{call}@0"}
    with nvml.opened() as opened:
        assert [gpu.index for gpu in opened.gpus()] == [1]


def test_a_mig_device_whose_memory_is_not_told_is_one(library: Pynvml) -> None:
    library.mig = [1, 0]
    with nvml.opened() as opened:
        known = opened.gpus()[0].mig_devices
    library.broken = {f"nvmlDeviceGet{name}@{handle}" for name in ("MemoryInfo", "Name") for handle in range(10, 20)}
    with nvml.opened() as opened:
        found = opened.gpus()[0].mig_devices
    assert known
    assert [one.uuid for one in found] == [one.uuid for one in known]
    assert {(one.name, one.memory_mib) for one in found} == {("not told", None)}
