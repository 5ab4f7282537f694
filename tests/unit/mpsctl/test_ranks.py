"""Which clients are ranks of a distributed training run, and what is said of them under each policy."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

import pytest

from fakes import H200_MIB, Host, uuid
from mpsctl.adapters import procfs
from mpsctl.checks import report
from mpsctl.checks.judgement import STATUS
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check
from mpsctl.model.instance_file import parse_conf
from mpsctl.observe import host as host_look

JOBS, RANKS = "distributed-jobs", "nccl-ranks-on-one-gpu"
TORCHRUN = {"RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "{rank}", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-7"}
MPICH = {"PMI_RANK": "{rank}", "PMI_SIZE": "2", "PMI_JOBID": "7"}
SLURM = {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The processes that have NCCL mapped."""
    pids: set[int] = set()
    monkeypatch.setattr(procfs, "maps", lambda pid, name: name in "libnccl.so.2" and pid in pids)
    return pids


Joined = tuple[int, list[Optional[int]]]
"""A client's pid, and what it holds on each device."""


def client(
    host: Host, variables: Mapping[str, str], rank: int, memory_mib: Optional[list[Optional[int]]] = None
) -> Joined:
    environment = {name: value.format(rank=rank) for name, value in variables.items()}
    return host.process("python3", "python3 train.py", environment), [1000] if memory_mib is None else memory_mib


def look(host: Host, policy: str, clients: Sequence[Joined], devices: int = 1) -> tuple[Check, Check]:
    """The two judgements of an instance with these clients: of the runs, and of two ranks on one GPU."""
    host.desired(GPUs=" ".join(map(str, range(devices))), DistributedJobs=policy)
    daemon = host.start()
    daemon.start_server(9001)
    assert host.nvml.held_mib is not None
    for pid, held in clients:
        daemon.connect(9001, pid)
        for number, mib in enumerate(held):
            if mib is not None:
                host.nvml.held_mib.setdefault(uuid(number), {})[pid] = mib
    found = report.report(host_look.look(host.world), STATUS)
    host.stop()
    return found.check("0", JOBS), found.check("0", RANKS)


def levels(checks: Sequence[Check]) -> tuple[str, ...]:
    return tuple(one.level for one in checks)


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM], ids=["open mpi", "mpich", "slurm"])
def test_ranks_of_mpi_are_named_only_with_nccl(host: Host, nccl: set[int], variables: dict[str, str]) -> None:
    ranks = [client(host, variables, rank) for rank in (0, 1)]
    assert levels(look(host, "fail", ranks)) == (OK, OK)
    nccl.update(pid for pid, _ in ranks)
    assert levels(look(host, "fail", ranks)) == (CRITICAL, CRITICAL)


@pytest.mark.parametrize(("policy", "level"), [("warn", WARNING), ("fail", CRITICAL)])
def test_two_ranks_of_torchrun_on_one_gpu(host: Host, nccl: set[int], policy: str, level: str) -> None:
    jobs, sharing = look(host, policy, [client(host, TORCHRUN, rank) for rank in (0, 1)])
    assert (jobs.name, jobs.level, sharing.name, sharing.level) == (JOBS, level, RANKS, level)
    assert "2 clients of 1 distributed training run" in jobs.found
    assert "rank 1 of 2 (torch)" in jobs.evidence[1]
    assert sharing.found == "ranks 0, 1 of one run on device 0"
    assert "2.29" in sharing.remedy
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1" in sharing.remedy


def test_with_the_policy_ignore_nobody_is_looked_for(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, rank) for rank in (0, 1)]
    assert levels(look(host, "ignore", ranks)) == (OK, OK)


def test_an_environment_that_may_not_be_read_is_no_pass(host: Host, nccl: set[int]) -> None:
    one = client(host, {}, 0)
    host.processes[one[0]].environment = None
    assert levels(look(host, "fail", [one])) == (UNKNOWN, UNKNOWN)
    assert levels(look(host, "fail", [one, client(host, TORCHRUN, 0)])) == (CRITICAL, UNKNOWN)


def test_ranks_on_two_gpus_are_one_finding(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, rank, [900, 900]) for rank in (0, 1)]
    _, sharing = look(host, "fail", ranks, 2)
    assert sharing.found == "ranks 0, 1 of one run on device 0; ranks 0, 1 of one run on device 1"


def test_one_rank_on_each_of_two_gpus_shares_none(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, 0, [900, None]), client(host, TORCHRUN, 1, [None, 900])]
    assert levels(look(host, "warn", ranks, 2)) == (WARNING, OK)


def test_ranks_of_two_runs_on_one_gpu_do_not_count_together(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, {**TORCHRUN, "MASTER_PORT": port}, rank) for rank, port in enumerate(("1", "2"))]
    jobs, _ = look(host, "warn", ranks)
    assert "2 distributed training runs" in jobs.found


def test_where_nccl_was_told_to_take_them_it_is_no_failure(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, {**TORCHRUN, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, rank) for rank in (0, 1)]
    assert levels(look(host, "fail", ranks)) == (CRITICAL, WARNING)


@pytest.mark.parametrize(("held_mib", "told"), [(int(H200_MIB * 0.8), False), (int(H200_MIB * 0.8) + 1, True)])
def test_a_rank_above_four_fifths_of_the_card_is_told(host: Host, nccl: set[int], held_mib: int, told: bool) -> None:
    jobs, _ = look(host, "warn", [client(host, TORCHRUN, 0, [held_mib])])
    assert ("nothing left to share" in jobs.evidence[0]) == told


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "zero", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    ],
)
def test_who_is_alone_is_no_rank(host: Host, nccl: set[int], environment: dict[str, str]) -> None:
    pid = host.process("python3", "python3 serve.py", environment)
    nccl.add(pid)
    assert levels(look(host, "fail", [(pid, [1000])])) == (OK, OK)


CONF = "[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n[Clients]\n"


@pytest.mark.parametrize(
    ("line", "policy"), [("", "warn")] + [(f"DistributedJobs={word}\n", word) for word in ("ignore", "warn", "fail")]
)
def test_the_policy_stands_in_the_instances_file(line: str, policy: str) -> None:
    assert parse_conf(CONF + line, "0").distributed_jobs == policy


@pytest.mark.parametrize("word", ["", "terminate", "Fail"])
def test_another_policy_is_refused_by_name(word: str) -> None:
    with pytest.raises(BadValue) as refused:
        parse_conf(f"{CONF}DistributedJobs={word}\n", "0")
    assert refused.value.variable == "mps_distributed_jobs"
