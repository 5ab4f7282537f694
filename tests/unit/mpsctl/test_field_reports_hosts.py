"""Field reports of GPUs, servers and clients: each row of docs/field-reports.md is a test of its kind."""

from __future__ import annotations

from typing import Optional

import pytest

from fakes import Host, h200
from mpsctl.causes import log
from mpsctl.model import fit
from mpsctl.model.fit import Card, Demand
from reporting import COSTS, begin, in_log, in_text, in_unit, join, named, on_host, report

pytestmark = pytest.mark.usefixtures("shown_processes")


# -- GPUs


@report("B46")
@pytest.mark.parametrize(("persistence", "found"), [(False, {"persistence-off"}), (True, set()), (None, set())])
def test_persistence(host: Host, persistence: Optional[bool], found: set[str]) -> None:
    begin(host)
    host.nvml.all[0] = h200(0, persistence=persistence)
    assert on_host(host) == found


@report("B47")
@pytest.mark.parametrize("mode", ["exclusive_process", "prohibited"])
@pytest.mark.parametrize("index", [1, 3])
def test_a_mode_that_was_left_behind(host: Host, mode: str, index: int) -> None:
    begin(host)
    host.nvml.all[index] = h200(index, compute_mode=mode)
    assert on_host(host) == {"exclusive-without-daemon"}


@report("B49")
@pytest.mark.parametrize(
    "text", ["all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable"]
)
def test_attached_and_busy_is_told_from_never_attached(text: str) -> None:
    attached = "[2026-01-01 10:00:00.100 Server    95] Device NVIDIA A16 (uuid GPU-1) is associated"
    assert named(log.diagnose_log([attached, text]))[0] == "attached-then-busy"
    assert named(log.diagnose_log([text]))[0] == "exclusive-and-no-client"
    assert "several-managers" in in_text(text)


@report("B50")
def test_default_mode_is_no_fault(host: Host) -> None:
    join(host, begin(host, ComputeMode="default"))
    assert on_host(host) == set()
    pid = host.process("python3", "python3 train.py", {}, 1000)
    host.nvml.others_mib[pid] = 600
    assert "client-outside-mps" in on_host(host)


# -- servers and clients


@report("B53")
@pytest.mark.parametrize("status", [1, 2, 139])
def test_servers_that_end_again_and_again(status: int) -> None:
    once = ["Starting new server {0} for user 0", "Server encountered a fatal exception. Shutting down"]
    lines = [line.format(pid) for pid in (95, 98) for line in [*once, f"Server {{0}} exited with status {status}"]]
    assert in_log(*lines) == ["server-crash-loop"]
    legacy = "[2026-01-01 10:00:00.100 Legacy Server   425] Failed to start : invalid argument"
    control = [f"[2026-01-01 10:00:00.100 Control    73] {line}" for line in lines]
    assert named(log.diagnose_log([*control, legacy]))[0] == "gpu-older-than-volta"


@report("B55")
@pytest.mark.parametrize("state", ["Z", "D"])
def test_a_client_that_is_dead_and_listed(host: Host, state: str) -> None:
    host.processes[join(host, begin(host))].state = state
    assert on_host(host) == {"zombie-client"}


@report("B57")
@pytest.mark.parametrize(
    ("driver", "refused"), [("470.182.03", True), ("494.1", True), ("495.29", False), ("580.1", False)]
)
def test_memory_limits_of_old_drivers_are_refused(driver: str, refused: bool) -> None:
    verdict = fit.judge(Card("Tesla V100", 32_768, driver), COSTS, Demand(limit_mib=4096))
    assert (verdict.word == fit.REFUSED) == refused


@report("B57")
def test_a_worker_thread_that_is_the_last_word() -> None:
    assert in_log("Worker created", "Creating worker thread", who="Server") == ["stuck-at-worker-thread"]


@report("B58")
def test_a_daemon_that_is_not_found() -> None:
    assert in_text("Cannot find MPS control daemon process")[0] == "daemon-not-found"


@report("B59")
@pytest.mark.parametrize("count", [1, 2])
def test_programs_that_run_outside_mps(host: Host, count: int) -> None:
    begin(host)
    for _ in range(count):
        host.nvml.others_mib[host.process("special", "special -mpi", {}, 1000)] = 500
    assert on_host(host) == {"client-outside-mps", "pipe-directory-missing"}


@report("B61")
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("nvidia-smi -c ${CUDA_VISIBLE_DEVICES}", "compute-mode-of-all-gpus"),
        ("nvidia-smi -c 0 ${ID}", "compute-mode-of-all-gpus"),
        ("if [[ ${CUDA_VISIBLE_DEVICES} == *${MPS_DEV_ID}* ]]; then", "substring-test"),
        ("nvidia-cuda-mps-control start_server -uid $SLURM_JOB_UID", "command-as-argument"),
    ],
)
def test_a_prolog(line: str, cause: str) -> None:
    assert in_unit("#!/bin/bash", line) == [cause]


@report("B62")
@pytest.mark.parametrize(("word", "found"), [("env ", []), ("", ["protocol-3"])])
def test_the_start_line_tells_the_protocol(word: str, found: list[str]) -> None:
    line = f"To connect CUDA applications to this daemon, set {word}CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
    assert in_log(line) == found
