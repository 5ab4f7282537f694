"""The simulated libnvidia-ml.so.1, compiled and asked through nvidia-ml-py as it comes.

Given a host with these GPUs, each question is put by a process of its own, as on a real host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from mpslab import gpus, layer, models

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root change a mode")

PRELUDE = """
import json, os
from pynvml import *
def gpu(index=0): return nvmlDeviceGetHandleByIndex(index)
def fails(call, *arguments):
    try: call(*arguments)
    except NVMLError as error: return error.value
    return 0
"""
DRIVER_NOT_LOADED, GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, NOT_FOUND, IN_USE = 9, 15, 4, 3, 6, 19
VERSION_MISMATCH = 18


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    layer.compile_nvml(folder / "libnvidia-ml.so.1", "-Werror")
    return folder


class Host:
    """A host as the library sees it: two folders."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.etc, self.run = folder / "etc", folder / "run"
        self.etc.mkdir()
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "MPS_LAB_NVML_ETC": str(self.etc),
            "MPS_LAB_NVML_RUN": str(self.run),
        }

    def has(self, count: int, model: str, *mig: str) -> Host:
        (self.etc / "gpus").write_text(models.gpus_file("lab-01", count, model, "550.163.01", mig))
        self.boot()
        return self

    def boot(self, driver: bool = True) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir()
        if driver:
            self.load_driver()

    def load_driver(self) -> None:
        (self.run / "driver-loaded").touch()

    def state(self, index: int, text: str, suffix: str = "state") -> None:
        (self.run / "nvml").mkdir(exist_ok=True)
        (self.run / f"nvml/{models.gpu_uuid('lab-01', index)}.{suffix}").write_text(text)

    def ask(self, expression: str, *before: str) -> Any:
        script = [PRELUDE, "nvmlInit()", *before, f"print(json.dumps({expression}))"]
        return json.loads(self.python("\n".join(script)))

    def python(self, script: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", script], env=self._environment, capture_output=True, text=True, timeout=30
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def host(tmp_path: Path, library: Path) -> Host:
    return Host(tmp_path, library).has(2, "h200")


@pytest.fixture
def process() -> Iterator[int]:
    """A process that lives as long as the test."""
    child = subprocess.Popen(["sleep", "60"])
    yield child.pid
    child.kill()
    child.wait()


def test_it_says_simulated_wherever_a_user_could_take_it_for_real(host: Host) -> None:
    assert host.ask("[nvmlDeviceGetName(gpu(i)) for i in range(nvmlDeviceGetCount())]") == [
        "NVIDIA H200 (simulated)",
        "NVIDIA H200 (simulated)",
    ]


def test_what_the_host_has(host: Host) -> None:
    assert host.ask("nvmlSystemGetDriverVersion()") == "550.163.01"
    assert host.ask("nvmlSystemGetCudaDriverVersion_v2()") == 12040
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu()).total >> 20") == 143771
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu(), nvmlMemory_v2).total >> 20") == 143771
    assert host.ask("nvmlDeviceGetCudaComputeCapability(gpu())") == [9, 0]
    assert host.ask("nvmlDeviceGetArchitecture(gpu()) == NVML_DEVICE_ARCH_HOPPER") is True
    assert host.ask("nvmlDeviceGetAttributes(gpu()).multiprocessorCount") == 132
    assert host.ask("[nvmlDeviceGetIndex(gpu(1)), nvmlDeviceGetMinorNumber(gpu(1))]") == [1, 1]


def test_a_gpu_is_found_by_each_of_its_names(host: Host) -> None:
    uuid = models.gpu_uuid("lab-01", 1)
    assert host.ask("nvmlDeviceGetUUID(gpu(1))") == uuid
    assert host.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{uuid}'))") == 1
    for address in ("0000:1a:00.0", "00000000:1A:00.0", "1a:00.0"):
        assert host.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{address}'))") == 1
    assert host.ask("[nvmlDeviceGetPciInfo(gpu(1)).busId, nvmlDeviceGetPciInfo(gpu(1)).busIdLegacy]") == [
        "00000000:1A:00.0",
        "0000:1A:00.0",
    ]
    assert host.ask("hex(nvmlDeviceGetPciInfo(gpu(1)).pciDeviceId)") == "0x233510de"
    assert host.ask("fails(nvmlDeviceGetHandleByUUID, 'GPU-none')") == NOT_FOUND
    assert host.ask("fails(nvmlDeviceGetHandleByIndex, 2)") != 0


def test_a_p4_is_older_than_volta_and_knows_no_mig(host: Host) -> None:
    host.has(1, "p4")
    assert host.ask("nvmlDeviceGetCudaComputeCapability(gpu())") == [6, 1]
    assert host.ask("fails(nvmlDeviceGetMigMode, gpu())") == NOT_SUPPORTED
    assert host.ask("nvmlDeviceGetMaxMigDeviceCount(gpu())") == 0


def test_before_init_and_after_shutdown_nothing_answers(host: Host) -> None:
    assert host.ask("fails(nvmlDeviceGetCount)", "nvmlShutdown()") == 1
    assert host.ask("nvmlDeviceGetCount()", "nvmlInit()", "nvmlShutdown()") == 2


def test_a_function_that_is_not_simulated_is_missed_not_made_up(host: Host) -> None:
    assert host.ask("fails(nvmlDeviceGetPowerUsage, gpu())") == 13


@needs_root
def test_a_compute_mode_outlives_the_process_that_set_it_and_all_others_see_it(host: Host) -> None:
    host.ask("nvmlDeviceSetComputeMode(gpu(1), NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)")
    assert host.ask("[nvmlDeviceGetComputeMode(gpu(0)), nvmlDeviceGetComputeMode(gpu(1))]") == [0, 3]


@needs_root
def test_a_process_sees_what_another_sets_meanwhile(host: Host) -> None:
    script = (
        PRELUDE + "nvmlInit(); handle = gpu(); print(nvmlDeviceGetComputeMode(handle), flush=True); input();"
        "print(nvmlDeviceGetComputeMode(handle))"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-c", script],
        env=host._environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "0\n"
    host.ask("nvmlDeviceSetComputeMode(gpu(), NVML_COMPUTEMODE_PROHIBITED)")
    assert watcher.communicate("\n", timeout=30)[0] == "2\n"


@needs_root
def test_a_reboot_puts_every_mode_back(host: Host) -> None:
    host.ask("[nvmlDeviceSetComputeMode(gpu(), 3), nvmlDeviceSetPersistenceMode(gpu(), 1)]")
    assert host.ask("[nvmlDeviceGetComputeMode(gpu()), nvmlDeviceGetPersistenceMode(gpu())]") == [3, 1]
    host.boot()
    assert host.ask("[nvmlDeviceGetComputeMode(gpu()), nvmlDeviceGetPersistenceMode(gpu())]") == [0, 0]


@needs_root
def test_changes_of_many_processes_at_once_are_all_kept(host: Host) -> None:
    """The mode of one kind must not be lost to a change of the other."""
    script = PRELUDE + "nvmlInit()\nfor _ in range(200): {}\n"
    acts = ("nvmlDeviceSetComputeMode(gpu(), 3)", "nvmlDeviceSetPersistenceMode(gpu(), 1)")
    running = [
        subprocess.Popen([sys.executable, "-c", script.format(act)], env=host._environment)
        for act in acts
        for _ in "ab"
    ]
    assert [each.wait(timeout=60) for each in running] == [0, 0, 0, 0]
    assert host.ask("[nvmlDeviceGetComputeMode(gpu()), nvmlDeviceGetPersistenceMode(gpu())]") == [3, 1]


@needs_root
def test_only_root_changes_a_mode_and_everybody_reads_it(host: Host) -> None:
    # the test's own folders are root's alone
    for folder in (host.run, *host.run.parents[:3], host.etc):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    host.ask("nvmlDeviceSetComputeMode(gpu(), 3)", "os.umask(0o077)")
    assert host.ask(
        "[fails(nvmlDeviceSetComputeMode, gpu(), 0), fails(nvmlDeviceSetPersistenceMode, gpu(), 1), "
        "nvmlDeviceGetComputeMode(gpu())]",
        "os.setuid(65534)",
    ) == [NO_PERMISSION, NO_PERMISSION, 3]


def test_until_the_driver_is_loaded_init_says_so(host: Host) -> None:
    host.boot(driver=False)
    assert json.loads(host.python(PRELUDE + "print(json.dumps(fails(nvmlInit)))")) == DRIVER_NOT_LOADED
    host.load_driver()
    assert host.ask("nvmlDeviceGetCount()") == 2


def test_a_lost_gpu_says_so_and_its_neighbours_keep_their_numbers(host: Host) -> None:
    host.state(0, "lost=1\n")
    assert host.ask("fails(nvmlDeviceGetHandleByIndex, 0)") == GPU_IS_LOST
    assert host.ask("nvmlDeviceGetCount()") == 2
    assert host.ask("nvmlDeviceGetUUID(gpu(1))") == models.gpu_uuid("lab-01", 1)


def test_a_gpu_that_is_lost_later_fails_through_a_handle_held_before(host: Host) -> None:
    path = host.run / f"nvml/{models.gpu_uuid('lab-01', 0)}.state"
    lose = f"os.makedirs({str(path.parent)!r}); open({str(path)!r}, 'w').write('lost=1\\n')"
    assert host.ask("fails(nvmlDeviceGetComputeMode, handle)", "handle = gpu()", lose) == GPU_IS_LOST


def test_clients_of_mps_are_told_from_the_rest(host: Host, process: int) -> None:
    host.state(0, f"client {process} 1024\ncompute {os.getpid()} 30\n", "processes")
    listed = "[[row.pid, row.usedGpuMemory >> 20] for row in {}(gpu())]"
    for version in ("", "_v2", "_v3"):
        assert host.ask(listed.format(f"nvmlDeviceGetMPSComputeRunningProcesses{version}")) == [[process, 1024]]
    assert host.ask(listed.format("nvmlDeviceGetComputeRunningProcesses")) == [[process, 1024], [os.getpid(), 30]]
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu()).used >> 20") == 1054
    assert host.ask("nvmlDeviceGetComputeRunningProcesses(gpu(1))") == []


def test_a_process_that_has_ended_holds_nothing(host: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    host.state(0, f"client {ended.pid} 1024\n", "processes")
    assert host.ask("nvmlDeviceGetComputeRunningProcesses(gpu())") == []
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0


def test_mig_devices_hang_on_their_gpu(host: Host) -> None:
    host.has(2, "a100", "1g.10gb", "2g.20gb")
    assert host.ask("nvmlDeviceGetMigMode(gpu())") == [1, 1]
    mig = "nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 1)"
    assert host.ask(f"nvmlDeviceGetName({mig})") == "NVIDIA A100-SXM4-80GB MIG 2g.20gb (simulated)"
    assert host.ask(f"nvmlDeviceGetUUID({mig})").startswith("MIG-")
    assert host.ask(f"nvmlDeviceGetMemoryInfo({mig}).total >> 20") == 19968
    assert host.ask(f"nvmlDeviceIsMigDeviceHandle({mig}).value") == 1
    assert host.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({mig}))") == 1
    assert host.ask(f"nvmlDeviceGetName(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID({mig})))").endswith(
        "2g.20gb (simulated)"
    )
    assert host.ask("fails(nvmlDeviceGetMigDeviceHandleByIndex, gpu(), 2)") == NOT_FOUND


@needs_root
def test_compute_modes_are_not_for_gpus_with_mig(host: Host) -> None:
    host.has(1, "a100", "1g.10gb")
    mig = "nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 0)"
    assert host.ask("fails(nvmlDeviceSetComputeMode, gpu(), 3)") == NOT_SUPPORTED
    assert host.ask(f"fails(nvmlDeviceSetComputeMode, {mig}, 3)") == NOT_SUPPORTED
    assert host.ask("nvmlDeviceGetComputeMode(gpu())") == 0


@needs_root
def test_mig_is_switched_and_waits_for_a_busy_gpu(host: Host, process: int) -> None:
    host.has(1, "a100", "1g.10gb")
    assert host.ask("nvmlDeviceSetMigMode(gpu(), 0)") == 0
    assert host.ask("nvmlDeviceGetMigMode(gpu())") == [0, 0]
    assert host.ask("fails(nvmlDeviceGetMigDeviceHandleByIndex, gpu(), 0)") == NOT_FOUND
    host.state(0, f"compute {process} 10\n", "processes")
    assert host.ask("nvmlDeviceSetMigMode(gpu(), 1)") == IN_USE
    assert host.ask("nvmlDeviceGetMigMode(gpu())") == [0, 1]


@needs_root
def test_a_gpu_that_lacks_what_virtual_ones_lack_is_there_all_the_same(host: Host) -> None:
    host.state(0, "unsupported=1\n")
    for call in ("ComputeMode", "PersistenceMode", "MigMode", "ComputeRunningProcesses", "MPSComputeRunningProcesses"):
        assert host.ask(f"fails(nvmlDeviceGet{call}, gpu())") == NOT_SUPPORTED, call
        assert host.ask(f"fails(nvmlDeviceGet{call}, gpu(1))") == 0, call
    assert host.ask("fails(nvmlDeviceSetComputeMode, gpu(), 3)") == NOT_SUPPORTED
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu()).total >> 20") == 143771


def test_a_gpu_that_does_not_tell_its_memory_tells_the_rest(host: Host) -> None:
    host.state(0, "no_memory=1\n")
    assert host.ask("fails(nvmlDeviceGetMemoryInfo, gpu())") == NOT_SUPPORTED
    assert host.ask("nvmlDeviceGetUUID(gpu())") == models.gpu_uuid("lab-01", 0)
    assert host.ask("nvmlDeviceGetMemoryInfo(gpu(1)).total >> 20") == 143771


@needs_root
def test_what_was_planted_outlasts_a_change_of_mode(host: Host) -> None:
    host.state(0, "unsupported=1\n")
    host.state(1, "lost=0\nno_memory=1\n")
    assert host.ask("fails(nvmlDeviceSetComputeMode, gpu(1), 3)") == 0
    assert host.ask("fails(nvmlDeviceGetMemoryInfo, gpu(1))") == NOT_SUPPORTED
    assert host.ask("[nvmlDeviceGetComputeMode(gpu(1)), fails(nvmlDeviceGetComputeMode, gpu())]") == [3, NOT_SUPPORTED]


def test_a_hanging_gpu_keeps_its_callers_waiting_and_its_neighbours_answer(host: Host) -> None:
    host.state(0, "hanging=1\n")
    assert host.ask("nvmlDeviceGetUUID(gpu(1))") == models.gpu_uuid("lab-01", 1)
    answer = (
        "import threading",
        "got = []",
        "asker = threading.Thread(target=lambda: got.append(nvmlDeviceGetUUID(gpu())), daemon=True)",
        "asker.start()",
        "asker.join(0.3)",
        "early = list(got)",
        f"os.remove({str(host.run / 'nvml' / (models.gpu_uuid('lab-01', 0) + '.state'))!r})",
        "asker.join(20)",
    )
    assert host.ask("[early, got]", *answer) == [[], [models.gpu_uuid("lab-01", 0)]]


def test_a_driver_whose_libraries_were_upgraded_underneath(host: Host) -> None:
    (host.run / "driver-upgraded").touch()
    assert int(host.python(PRELUDE + "print(fails(nvmlInit))")) == VERSION_MISMATCH


def test_cards_that_change_places_keep_what_they_are_and_the_slots_their_addresses(host: Host) -> None:
    head, cards = gpus._cards(_root_of(host))
    gpus._write_cards(_root_of(host), head, gpus.reordered(cards))
    assert host.ask("[nvmlDeviceGetUUID(gpu(i)) for i in (0, 1)]") == [models.gpu_uuid("lab-01", i) for i in (1, 0)]
    assert host.ask("nvmlDeviceGetPciInfo(gpu()).bus") == 0x0B
    gpus._write_cards(_root_of(host), head, gpus.reordered(gpus.reordered(cards)))
    assert host.ask("nvmlDeviceGetUUID(gpu())") == models.gpu_uuid("lab-01", 0)


def test_a_swapped_card_has_another_uuid_and_its_own_when_it_is_swapped_back(host: Host) -> None:
    head, cards = gpus._cards(_root_of(host))
    other = gpus.swapped("lab-01", 1, cards[1])
    gpus._write_cards(_root_of(host), head, [cards[0], other])
    uuids = host.ask("[nvmlDeviceGetUUID(gpu(i)) for i in (0, 1)]")
    assert uuids[0] == models.gpu_uuid("lab-01", 0)
    assert uuids[1].startswith("GPU-")
    assert uuids[1] != models.gpu_uuid("lab-01", 1)
    assert gpus.swapped("lab-01", 1, other) == cards[1]


def _root_of(host: Host) -> Path:
    """A root in which the table of GPUs lies where the lab keeps it."""
    root = host.etc.parent
    if not (root / "etc/mps-lab").exists():
        (root / "etc/mps-lab").symlink_to(".")
    return root
