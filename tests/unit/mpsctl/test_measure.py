"""Measuring with bare CUDA clients: what is kept, when it refuses, and that CUDA stays out of this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

import pytest

import simulated_cuda
from fakes import Host, h200, uuid
from mpsctl.adapters import cuda
from mpsctl.adapters.cuda import CudaError, Seen, Trial
from mpsctl.measuring import measure as measuring
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.store import measured
from mpsctl.store.world import World

SERVER_PID, CLIENT_PID = 9001, 9100


@dataclass
class FakeCuda:
    """libcuda on an H200: a client's free memory is the lower of its own limit and the server's, less its context."""

    host: Host
    server_limit_mib: Optional[int] = 4096
    cost_mib: Mapping[str, int] = field(default_factory=lambda: {"100": 514, "50": 271})
    under_mps: Optional[bool] = True
    takes_own_limit: bool = True
    error: int = 2
    environments: list[dict[str, str]] = field(default_factory=list)

    @contextmanager
    def client(self, environment: Mapping[str, str], timeout_s: float, trial: Optional[Trial] = None) -> Iterator[Seen]:
        self.environments.append(dict(environment))
        self.host.clock.pass_by(0.2)
        limits = [self.server_limit_mib or 143_155]
        if self.takes_own_limit:
            ordinal, _, text = environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].partition("=")
            assert ordinal == "0"
            limits.append(int(text.removesuffix("M")))
        percentage = environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
        context_mib = self.cost_mib[percentage]
        if min(limits) <= context_mib:
            raise CudaError("cuCtxCreate_v2", self.error, "CUDA_ERROR_OUT_OF_MEMORY")
        nvml = self.host.nvml
        nvml.clients_mib, nvml.others_mib = {CLIENT_PID: context_mib}, {SERVER_PID: 66}
        try:
            sms = int(132 * float(percentage) / 100)
            yield Seen(CLIENT_PID, self.under_mps, min(limits) - context_mib, 143_155, sms, 0.2)
        finally:
            nvml.clients_mib = {}


@pytest.fixture
def gpu(host: Host) -> FakeCuda:
    """An instance with a limit of 4G whose GPU is idle; its server has been started."""
    host.desired(DeviceMemoryLimit="4G")
    host.start().start_server(SERVER_PID)
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", pid=SERVER_PID)
    return FakeCuda(host)


def world(gpu: FakeCuda) -> World:
    return replace(gpu.host.world, cuda=gpu.client)


def test_the_figures_of_an_h200(gpu: FakeCuda) -> None:
    whole, half = measuring.measure(world(gpu))
    assert whole.key == ("NVIDIA H200", "580.159", 100.0)
    assert (whole.context_mib, whole.server_mib, whole.least_limit_mib, whole.reserved_mib) == (514, 66, 515, 616)
    assert half.key == ("NVIDIA H200", "580.159", 50.0)
    assert (half.context_mib, half.server_mib, half.least_limit_mib, half.multiprocessors) == (271, 66, 272, 66)
    assert measured.read(gpu.host.world) == [half, whole]
    assert "driver 580.159.04" in whole.measured_on


def test_nothing_of_the_gpu_is_changed_through_an_instance(gpu: FakeCuda) -> None:
    gpu.host.nvml.modes_set.clear()
    before = list(gpu.host.running().setters)
    measuring.measure(world(gpu))
    assert gpu.host.nvml.modes_set == []
    assert gpu.host.running().setters == before
    for environment in gpu.environments:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"{gpu.host.pipe_root}/0"
        assert environment["CUDA_VISIBLE_DEVICES"] == uuid(0)


def test_memory_and_time_are_bounded(gpu: FakeCuda) -> None:
    measuring.measure(world(gpu))
    asked = [int(e["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"][2:-1]) for e in gpu.environments]
    assert max(asked) <= 2048
    assert len(asked) < 30

    gpu.host.clock.when(0.3, lambda: gpu.host.clock.pass_by(1000))
    with pytest.raises(NotReady, match="longer than 120 s"):
        measuring.measure(world(gpu))


def test_an_instance_with_a_percentage_is_measured_at_it_and_below(gpu: FakeCuda) -> None:
    gpu.host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=80)
    gpu.cost_mib = {"80": 400, "50": 271, "30": 200}
    assert [one.thread_percentage for one in measuring.measure(world(gpu), "0")] == [80, 50]
    assert [one.context_mib for one in measuring.measure(world(gpu), "0", percentages=[30.0])] == [200]
    with pytest.raises(BadValue, match="at most the instance's 80 %"):
        measuring.measure(world(gpu), "0", percentages=[81.0])


def test_a_busy_gpu_is_refused_unless_forced(gpu: FakeCuda) -> None:
    gpu.host.nvml.others_mib = {SERVER_PID: 66, gpu.host.process("python3", "python3 train.py", pid=777): 9000}
    with pytest.raises(NotReady, match=r"in use by 1 process \(pid 777\).*--force"):
        measuring.measure(world(gpu))
    gpu.host.running().servers[SERVER_PID].clients = [778]
    with pytest.raises(NotReady, match=r"2 processes \(pid 777, 778\)"):
        measuring.measure(world(gpu))
    assert gpu.environments == []
    assert measuring.measure(world(gpu), force=True)[0].context_mib == 514


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"under_mps": False}, "outside MPS"),
        ({"takes_own_limit": False, "server_limit_mib": None}, "no limit is in force"),
        ({"error": 805, "server_limit_mib": 100}, "returned 805"),
    ],
)
def test_no_figure_is_kept_that_was_not_seen_under_a_limit(gpu: FakeCuda, changes: dict[str, Any], says: str) -> None:
    with pytest.raises((NotReady, NotInForce), match=says):
        measuring.measure(world(replace(gpu, **changes)))
    assert measured.read(gpu.host.world) == []


def test_an_old_limit_of_the_server_is_no_dear_context(gpu: FakeCuda) -> None:
    gpu.host.running().servers[SERVER_PID].limits["0"] = 1024 << 20
    gpu.server_limit_mib = 1024
    with pytest.raises(NotInForce, match="has a limit of 1G, below the instance's"):
        measuring.measure(world(gpu))


def test_a_closed_door_is_not_measured_through(gpu: FakeCuda) -> None:
    gpu.host.stop()
    with pytest.raises(NotReady, match="lets no clients in"):
        measuring.measure(world(gpu), "0")


def test_what_is_measured_must_be_named_where_there_are_several(host: Host) -> None:
    with pytest.raises(BadValue, match="0 instances and 4 GPUs"):
        measuring.measure(host.world)


def test_a_gpu_without_an_instance_gets_a_daemon_for_the_time(host: Host) -> None:
    temporary: list[tuple[Path, Sequence[str]]] = []

    @contextmanager
    def daemon(pipe_directory: Path, devices: Sequence[str]) -> Iterator[None]:
        temporary.append((pipe_directory, devices))
        one = host.launch({"CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory), "CUDA_VISIBLE_DEVICES": devices[0]})
        yield
        host.kill(one.pid)

    gpu = FakeCuda(host, server_limit_mib=2048)
    found = measuring.measure(replace(world(gpu), temporary_daemon=daemon), reference="2")
    assert found[0].context_mib == 514
    [(directory, devices)] = temporary
    assert devices == (uuid(2),)
    assert host.daemons[directory].setters == ["set_default_device_pinned_mem_limit 0 2048M"]
    assert not directory.exists()
    assert host.nvml.modes_set == []


def test_a_gpu_with_an_instance_is_measured_through_it(gpu: FakeCuda) -> None:
    measuring.measure(world(gpu), reference=uuid(0))
    assert gpu.environments[0]["CUDA_MPS_PIPE_DIRECTORY"] == f"{gpu.host.pipe_root}/0"


def test_a_prohibited_gpu_is_left_alone(host: Host) -> None:
    host.nvml.all[2] = h200(2, compute_mode="prohibited")
    with pytest.raises(NotReady, match="prohibited"):
        measuring.measure(host.world, reference="2")


# -- the client itself, with a simulated libcuda


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_cuda.build(tmp_path_factory.mktemp("libcuda"))


def client(library: Path, timeout_s: float = 10, **environment: str) -> AbstractContextManager[Seen]:
    return cuda.client({"LD_LIBRARY_PATH": str(library), **environment}, timeout_s)


def test_a_client_says_what_it_sees_from_a_process_of_its_own(library: Path) -> None:
    with client(library) as seen:
        assert (seen.under_mps, seen.free_mib, seen.total_mib, seen.multiprocessors) == (True, 1534, 143_155, 132)
        assert seen.pid != os.getpid()
        assert os.path.isdir(f"/proc/{seen.pid}")
    assert not os.path.isdir(f"/proc/{seen.pid}")
    assert "libcuda" not in Path("/proc/self/maps").read_text()


def test_a_client_may_try_more(library: Path) -> None:
    with cuda.client(
        {"LD_LIBRARY_PATH": str(library), "LIMIT_MIB": "100"}, 10, Trial(allocate_mib=(101, 100), kernel=True)
    ) as seen:
        assert list(seen.allocated) == [2, 0]
        assert seen.kernel_right is True


@pytest.mark.parametrize(
    ("fault", "right", "problem"), [("WRONG", False, None), ("NO_COMPILER", None, "cuModuleLoadData returned 221")]
)
def test_a_wrong_result_is_told_from_none(library: Path, fault: str, right: Optional[bool], problem: str) -> None:
    with cuda.client({"LD_LIBRARY_PATH": str(library), fault: "1"}, 10, Trial(kernel=True)) as seen:
        assert seen.kernel_right is right
        assert problem in str(seen.kernel_problem) if problem else seen.kernel_problem is None


def test_a_client_becomes_another_user_though_that_cannot_read_this_program(library: Path, tmp_path: Path) -> None:
    assert os.geteuid() == 0, "needs root"
    program = tmp_path / "mpsctl.zip"
    build = Path(__file__).resolve().parents[3] / "scripts/build_mpsctl.py"
    subprocess.run([sys.executable, build, program], check=True, capture_output=True)
    program.chmod(0o700)
    tmp_path.chmod(0o700)
    readable = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        readable.chmod(0o755)
        simulated_cuda.build(readable)
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\nfrom mpsctl.adapters import cuda\n"
            "trial = cuda.Trial(uid=65534, gid=2000, kernel=True)\n"
            "with cuda.client({'LD_LIBRARY_PATH': sys.argv[2]}, 10, trial) as seen:\n"
            "  print(seen.kernel_right)\n"
            "  print([l for l in open(f'/proc/{seen.pid}/status') if l.startswith(('Uid', 'Gid', 'Groups'))])"
        )
        command = [sys.executable, "-IS", "-c", script, str(program), str(readable)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(readable)
    assert "True" in done.stdout, done.stderr
    assert "Uid:\\t65534\\t65534\\t65534\\t65534" in done.stdout
    assert "Gid:\\t65534\\t65534" in done.stdout
    assert "2000" in done.stdout.partition("Groups:")[2]


def test_errors_are_told_by_name(library: Path) -> None:
    with pytest.raises(CudaError, match=r"cuInit returned 805 \(CUDA_ERROR_MPS_CONNECTION_FAILED\)") as failed:
        client(library, FAIL="805").__enter__()
    assert failed.value.code == 805


def test_a_driver_that_does_not_know_the_attribute(library: Path) -> None:
    with client(library, OLD="1") as seen:
        assert seen.under_mps is None


def test_a_client_that_hangs_is_ended_in_time(library: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(NotReady, match=r"not up within 0\.5 s"):
        client(library, 0.5, HANG="1").__enter__()
    assert time.monotonic() - begin < 5


def test_a_host_without_libcuda_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"libcuda\.so\.1"), client(tmp_path):
        pass


def test_the_one_file_has_the_client_too(library: Path, tmp_path: Path) -> None:
    build = Path(__file__).resolve().parents[3] / "scripts/build_mpsctl.py"
    subprocess.run([sys.executable, build, tmp_path / "mpsctl"], check=True, capture_output=True)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom mpsctl.adapters import cuda\n"
        "with cuda.client({'LD_LIBRARY_PATH': sys.argv[2]}) as seen: print(seen.free_mib)"
    )
    done = subprocess.run(
        [sys.executable, "-IS", "-c", script, tmp_path / "mpsctl", library], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1534\n", done.stderr
