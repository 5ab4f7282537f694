"""Ranks of a distributed training run among the clients of an instance: a job that MPS hurts.

Ranks wait for each other at every step, so a share of a GPU slows the whole run; one client's fault ends its
neighbours with it; and NCCL refuses two ranks on one GPU with MPS as without (2.28.9 on an H200), until 2.29
always, from 2.30 on unless NCCL_MULTI_RANK_GPU_ENABLE=1 is set (NVIDIA/nccl, docs/userguide env). MPI ranks
that use no NCCL are another matter: sharing GPUs among those is what MPS was made for, and they are not named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.model import finding
from mpsctl.model.finding import Check
from mpsctl.model.fit import LARGE_SHARE
from mpsctl.model.instance import FAIL, IGNORE
from mpsctl.model.nccl import MULTI_RANK
from mpsctl.observe.clients import Client

JOBS, RANKS = "distributed-jobs", "nccl-ranks-on-one-gpu"
"""The names of the checks."""
_UNSHARED = "no GPU has two ranks of one run"

_NCCL = "libnccl"
_TORCH, _MPI, _SLURM = "torch", "MPI", "Slurm"
_LAUNCHERS = (
    (_TORCH, "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    (_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    (_MPI, "PMI_RANK", "PMI_SIZE", ("PMI_JOBID",)),
    (_SLURM, "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
"""Who starts ranks, with the variables that it gives them: the rank, how many there are, and which run it is."""

ADVICE = (
    "run it outside MPS with one GPU per rank (unset CUDA_MPS_PIPE_DIRECTORY on a GPU that no instance has), or let"
    " mps_distributed_jobs: ignore say that it is meant (`mpsctl loopback` measures what it costs)"
)
RANKS_ADVICE = (
    "give each rank a GPU of its own; up to NCCL 2.29 there is no other way, from 2.30 on"
    f" {MULTI_RANK}=1 (experimental) lets two ranks share one, and it may hang where resources run out"
)


@dataclass(frozen=True)
class Rank:
    """One rank of a run of ``size``, as its launcher told it. ``run`` names the run as far as that is told."""

    number: int
    size: int
    launcher: str
    run: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.number} of {self.size} ({self.launcher})"


def rank_of(environment: Optional[Mapping[str, str]]) -> Optional[Rank]:
    """The rank that a process is, by the environment with which it was started; None where it is alone."""
    for launcher, number, size, run in _LAUNCHERS:
        texts = [(environment or {}).get(name, "") for name in (number, size)]
        if all(text.isascii() and text.isdigit() for text in texts) and int(texts[1]) > 1:
            names = tuple((environment or {}).get(name, "") for name in run)
            return Rank(int(texts[0]), int(texts[1]), launcher, (launcher, *names))
    return None


def trains(pid: int, rank: Rank) -> bool:
    """Whether a rank is one of a training run: torch's launcher started it, or it has NCCL in its memory.

    NCCL alone says nothing: whoever imports torch has it.
    """
    return rank.launcher == _TORCH or procfs.maps(pid, _NCCL)


def look(policy: str, clients: Sequence[Client], memory_mib: Sequence[int]) -> tuple[Check, Check]:
    """The two checks of one instance: that no client is a rank, and that no GPU has two of one run.

    ``policy`` is the instance's ``distributed_jobs``: nobody is looked for with ``ignore``, and what is found is a
    warning or a failure with the others. ``memory_mib`` is the memory of the instance's devices in MiB.
    """
    if policy == IGNORE:
        ignored = f"not looked for: mps_distributed_jobs is {IGNORE}"
        return Check(JOBS, finding.PASS, ignored), Check(RANKS, finding.PASS, ignored)
    level = finding.FAIL if policy == FAIL else finding.WARN
    ranks = [(client, rank) for client in clients for rank in _training(client)]
    closed = [client.pid for client in clients if procfs.environment(client.pid) is None]
    if not ranks:
        none = "no rank of a distributed training run among the clients"
        return _none(JOBS, none, closed), _none(RANKS, _UNSHARED, closed)
    runs = len({rank.run for _, rank in ranks})
    jobs = Check(
        JOBS,
        level,
        f"{_number(len(ranks), 'client')} of {_number(runs, 'distributed training run')} under MPS",
        "no rank of a distributed training run among the clients",
        ADVICE,
        tuple(_line(client, rank, memory_mib) for client, rank in ranks),
    )
    return jobs, _sharing(ranks, len(memory_mib), level) or _none(RANKS, _UNSHARED, closed)


def _none(name: str, found: str, closed: Sequence[int]) -> Check:
    """Nothing was found; what that says where the environments of some clients could not be read."""
    if closed:
        why = f"the environment of pid {closed[0]} cannot be read"
        return Check(name, finding.CANNOT_TELL, why, remedy="ask as root")
    return Check(name, finding.PASS, found)


def _training(client: Client) -> list[Rank]:
    rank = rank_of(procfs.environment(client.pid))
    return [rank] if rank is not None and trains(client.pid, rank) else []


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _line(client: Client, rank: Rank, memory_mib: Sequence[int]) -> str:
    line = f"{client}: {rank}"
    if procfs.maps(client.pid, _NCCL):
        line += ", NCCL mapped"
    for ordinal, (held, total) in enumerate(zip(client.memory_mib, memory_mib)):
        if held is not None and held > LARGE_SHARE * total:
            line += f", holds {held} of {total} MiB of device {ordinal}: there is nothing left to share"
    return line


def _devices(client: Client, count: int) -> list[int]:
    """The ordinals of the devices that a client uses; with one device there is no question."""
    return [0] if count == 1 else [ordinal for ordinal, held in enumerate(client.memory_mib) if held is not None]


def _sharing(ranks: Sequence[tuple[Client, Rank]], devices: int, level: str) -> Optional[Check]:
    together: dict[tuple[int, tuple[str, ...]], list[tuple[Client, Rank]]] = {}
    for client, rank in ranks:
        for ordinal in _devices(client, devices):
            together.setdefault((ordinal, rank.run), []).append((client, rank))
    levels, found, evidence = [], [], []
    for (ordinal, _), members in together.items():
        numbers = sorted({rank.number for _, rank in members})
        if len(numbers) < 2:
            continue
        found.append(f"ranks {', '.join(map(str, numbers))} of one run on device {ordinal}")
        evidence += [f"{client}: {rank}" for client, rank in members]
        allowed = all((procfs.environment(client.pid) or {}).get(MULTI_RANK) == "1" for client, _ in members)
        if allowed:
            evidence.append(f"{MULTI_RANK}=1 is set for all of them: NCCL takes them from 2.30 on")
        levels.append(finding.WARN if allowed else level)
    if not found:
        return None
    return Check(
        RANKS,
        finding.worst(levels),
        "; ".join(found),
        "at most one rank of a run on a GPU: NCCL ends with 'Duplicate GPU detected' (up to 2.29) or 'Multiple"
        " Ranks are using the same GPU/Partition' (from 2.30 on)",
        RANKS_ADVICE,
        tuple(evidence),
    )
