"""Which clients are ranks of a distributed training run, and what is said of them under each policy."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

import pytest

from fakes import H200_MIB, Host
from mpsctl.adapters import procfs
from mpsctl.checks import training
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import Check
from mpsctl.model.instance_file import parse_conf
from mpsctl.observe.clients import Client

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


def client(
    host: Host, variables: Mapping[str, str], rank: int, memory_mib: Optional[list[Optional[int]]] = None
) -> Client:
    environment = {name: value.format(rank=rank) for name, value in variables.items()}
    pid = host.process("python3", "python3 train.py", environment)
    held: list[Optional[int]] = [1000] if memory_mib is None else memory_mib
    return Client(pid, 1000, "ann", "python3 train.py", None, [None] * len(held), held, 1)


def levels(checks: Sequence[Check]) -> tuple[str, ...]:
    """Of the runs, and of two ranks on one GPU."""
    assert [one.name for one in checks] == [training.JOBS, training.RANKS]
    return tuple(one.level for one in checks)


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM], ids=["open mpi", "mpich", "slurm"])
def test_ranks_of_mpi_are_named_only_with_nccl(host: Host, nccl: set[int], variables: dict[str, str]) -> None:
    ranks = [client(host, variables, rank) for rank in (0, 1)]
    assert levels(training.look("fail", ranks, [H200_MIB])) == ("pass", "pass")
    nccl.update(one.pid for one in ranks)
    assert levels(training.look("fail", ranks, [H200_MIB])) == ("fail", "fail")


@pytest.mark.parametrize(("policy", "level"), [("warn", "warn"), ("fail", "fail")])
def test_two_ranks_of_torchrun_on_one_gpu(host: Host, nccl: set[int], policy: str, level: str) -> None:
    jobs, sharing = training.look(policy, [client(host, TORCHRUN, rank) for rank in (0, 1)], [H200_MIB])
    assert (jobs.name, jobs.level, sharing.name, sharing.level) == (training.JOBS, level, training.RANKS, level)
    assert "2 clients of 1 distributed training run" in jobs.found
    assert "rank 1 of 2 (torch)" in jobs.evidence[1]
    assert sharing.found == "ranks 0, 1 of one run on device 0"
    assert "2.29" in sharing.remedy
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1" in sharing.remedy


def test_with_the_policy_ignore_nobody_is_looked_for(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, rank) for rank in (0, 1)]
    assert levels(training.look("ignore", ranks, [H200_MIB])) == ("pass", "pass")


def test_an_environment_that_may_not_be_read_is_no_pass(host: Host, nccl: set[int]) -> None:
    one = client(host, {}, 0)
    host.processes[one.pid].environment = None
    assert levels(training.look("fail", [one], [H200_MIB])) == ("cannot tell", "cannot tell")
    assert levels(training.look("fail", [one, client(host, TORCHRUN, 0)], [H200_MIB])) == ("fail", "cannot tell")


def test_ranks_on_two_gpus_are_one_finding(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, rank, [900, 900]) for rank in (0, 1)]
    _, sharing = training.look("fail", ranks, [H200_MIB, H200_MIB])
    assert sharing.found == "ranks 0, 1 of one run on device 0; ranks 0, 1 of one run on device 1"


def test_one_rank_on_each_of_two_gpus_shares_none(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, TORCHRUN, 0, [900, None]), client(host, TORCHRUN, 1, [None, 900])]
    assert levels(training.look("warn", ranks, [H200_MIB, H200_MIB])) == ("warn", "pass")


def test_ranks_of_two_runs_on_one_gpu_do_not_count_together(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, {**TORCHRUN, "MASTER_PORT": port}, rank) for rank, port in enumerate(("1", "2"))]
    jobs, _ = training.look("warn", ranks, [H200_MIB])
    assert "2 distributed training runs" in jobs.found


def test_where_nccl_was_told_to_take_them_it_is_no_failure(host: Host, nccl: set[int]) -> None:
    ranks = [client(host, {**TORCHRUN, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, rank) for rank in (0, 1)]
    assert levels(training.look("fail", ranks, [H200_MIB])) == ("fail", "warn")


@pytest.mark.parametrize(("held_mib", "told"), [(int(H200_MIB * 0.8), False), (int(H200_MIB * 0.8) + 1, True)])
def test_a_rank_above_four_fifths_of_the_card_is_told(host: Host, nccl: set[int], held_mib: int, told: bool) -> None:
    jobs, _ = training.look("warn", [client(host, TORCHRUN, 0, [held_mib])], [H200_MIB])
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
    one = Client(pid, 1000, "ann", "python3 serve.py", None, [None], [1000], 1)
    assert levels(training.look("fail", [one], [H200_MIB])) == ("pass", "pass")


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
