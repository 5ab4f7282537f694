"""Ranks of distributed runs among processes, by the environment with which their launcher started them."""

from __future__ import annotations

from typing import Mapping, Optional

from mpsctl.adapters import procfs
from mpsctl.model.nccl import MULTI_RANK
from mpsctl.observe.facts import RankFacts

TORCH = "torch"
_NCCL = "libnccl"
_MPI, _SLURM = "MPI", "Slurm"
_LAUNCHERS = (
    (TORCH, "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    (_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    (_MPI, "PMI_RANK", "PMI_SIZE", ("PMI_JOBID",)),
    (_SLURM, "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
"""Who starts ranks, with the variables that it gives them: the rank, how many there are, and which run it is."""


def of_client(pid: int, environment: Optional[Mapping[str, str]]) -> Optional[RankFacts]:
    """The rank that a process is; None where it is alone, or its environment may not be read."""
    for launcher, number, size, run in _LAUNCHERS:
        texts = [(environment or {}).get(name, "") for name in (number, size)]
        if all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts) and int(texts[1]) > 1:
            names = tuple((environment or {}).get(name, "") for name in run)
            return RankFacts(
                int(texts[0]),
                int(texts[1]),
                launcher,
                (launcher, *names),
                procfs.maps(pid, _NCCL),
                (environment or {}).get(MULTI_RANK) == "1",
            )
    return None


def trains(rank: RankFacts) -> bool:
    """Whether a rank is one of a training run: torch's launcher started it, or it has NCCL in its memory.

    NCCL alone says nothing: whoever imports torch has it.
    """
    return rank.launcher == TORCH or rank.nccl_mapped
