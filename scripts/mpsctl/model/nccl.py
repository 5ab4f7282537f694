"""Two ranks on one GPU, as NCCL has it.

Refused with MPS as without: always up to 2.29 (2.28.9 on an H200), from 2.30 on unless a variable allows it
(NVIDIA/nccl, src/init.cc and docs/userguide env).
"""

from __future__ import annotations

from typing import Optional, Sequence

MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
ALLOWS_FROM = (2, 30)
_REFUSALS = ("Duplicate GPU detected", "Multiple Ranks are using the same GPU/Partition")
_INVALID = "ncclInvalidUsage"
"""What a version that never allows it returns for it; its own words may be in its log only."""


def name(version: Sequence[int]) -> str:
    return f"NCCL {'.'.join(map(str, version))}"


def may_allow(version: Sequence[int]) -> bool:
    return tuple(version[:2]) >= ALLOWS_FROM


def explain(version: Sequence[int]) -> str:
    """What a version does with two ranks on one GPU, in one line."""
    if may_allow(version):
        return f"{name(version)} refuses two ranks on one GPU unless {MULTI_RANK}=1 (experimental) is set"
    return f"{name(version)} refuses two ranks on one GPU (from 2.30 on {MULTI_RANK}=1 allows it, experimental)"


def refusal(text: str, version: Sequence[int]) -> Optional[str]:
    """The line of NCCL's own words that refuses two ranks on one GPU, or None where the text says something else."""
    lines = [line.strip() for line in text.splitlines()]
    known = _REFUSALS if may_allow(version) else (*_REFUSALS, _INVALID)
    return next((line for wanted in known for line in lines if wanted in line), None)
