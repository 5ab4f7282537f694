"""Ranks of a distributed training run among the clients of an instance: a job that MPS hurts.

Ranks wait for each other at every step, so a share of a GPU slows the whole run; one client's fault ends its
neighbours with it; and NCCL refuses two ranks on one GPU with MPS as without (2.28.9 on an H200), until 2.29
always, from 2.30 on unless NCCL_MULTI_RANK_GPU_ENABLE=1 is set (NVIDIA/nccl, docs/userguide env). MPI ranks
that use no NCCL are another matter: sharing GPUs among those is what MPS was made for, and they are not named.
"""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.checks import words
from mpsctl.checks.gpu_checks import untold
from mpsctl.checks.judgement import Finding, View, judgement, passed, unknown
from mpsctl.checks.unit_checks import as_root
from mpsctl.model.checked_values import FAIL, IGNORE
from mpsctl.model.finding import CRITICAL, PERSON, WARNING, Reason, worst
from mpsctl.model.fit import LARGE_SHARE
from mpsctl.model.nccl import MULTI_RANK
from mpsctl.observe import ranks
from mpsctl.observe.facts import ClientFacts, RankFacts

ADVICE = (
    "run it outside MPS with one GPU per rank (unset CUDA_MPS_PIPE_DIRECTORY on a GPU that no instance has), or let"
    " mps_distributed_jobs: ignore say that it is meant (`mpsctl loopback` measures what it costs)"
)
RANKS_ADVICE = (
    "give each rank a GPU of its own; up to NCCL 2.29 there is no other way, from 2.30 on"
    f" {MULTI_RANK}=1 (experimental) lets two ranks share one, and it may hang where resources run out"
)
_IGNORED = f"not looked for: mps_distributed_jobs is {IGNORE}"
Ranks = list[tuple[ClientFacts, RankFacts]]


@judgement()
def distributed_jobs(view: View) -> Finding:
    """No client is a rank of a distributed training run; mps_distributed_jobs says how loudly."""
    quiet = _not_judged(view)
    if quiet:
        return quiet
    found = _ranks(view)
    if not found:
        return _none(view, "no rank of a distributed training run among the clients")
    runs = len({rank.run for _, rank in found})
    memory_mib = [device.memory_mib for device in view.one.devices]
    line = f"{words.number(len(found), 'client')} of {words.number(runs, 'distributed training run')} under MPS"
    return Finding(
        _level(view),
        line,
        "no rank of a distributed training run among the clients",
        ADVICE,
        tuple(_line(client, rank, memory_mib) for client, rank in found),
        (Reason("distributed-job", line),),
        PERSON,
    )


@judgement()
def nccl_ranks_on_one_gpu(view: View) -> Finding:
    """No GPU has two ranks of one run, which NCCL refuses with MPS as without."""
    quiet = _not_judged(view)
    if quiet:
        return quiet
    together: dict[tuple[int, tuple[str, ...]], Ranks] = {}
    devices = len(view.one.devices)
    for client, rank in _ranks(view):
        for ordinal in _devices(client, devices):
            together.setdefault((ordinal, rank.run), []).append((client, rank))
    levels, found, evidence = [], [], []
    for (ordinal, _), members in together.items():
        numbers = sorted({rank.number for _, rank in members})
        if len(numbers) < 2:
            continue
        found.append(f"ranks {', '.join(map(str, numbers))} of one run on device {ordinal}")
        evidence += [f"{words.client(client)}: {_rank(rank)}" for client, rank in members]
        allowed = all(rank.multi_rank_allowed for _, rank in members)
        if allowed:
            evidence.append(f"{MULTI_RANK}=1 is set for all of them: NCCL takes them from 2.30 on")
        levels.append(WARNING if allowed else _level(view))
    if not found:
        return _none(view, "no GPU has two ranks of one run")
    return Finding(
        worst(levels),
        "; ".join(found),
        "at most one rank of a run on a GPU: NCCL ends with 'Duplicate GPU detected' (up to 2.29) or 'Multiple"
        " Ranks are using the same GPU/Partition' (from 2.30 on)",
        RANKS_ADVICE,
        tuple(evidence),
        (Reason("nccl-ranks-on-one-gpu", "; ".join(found)),),
        PERSON,
    )


def _not_judged(view: View) -> Optional[Finding]:
    why = untold(view)
    if why:
        return unknown(why)
    if view.one.desired is not None and view.one.desired.distributed_jobs == IGNORE:
        return passed(_IGNORED)
    return None


def _level(view: View) -> str:
    desired = view.one.desired
    return CRITICAL if desired is not None and desired.distributed_jobs == FAIL else WARNING


def _ranks(view: View) -> Ranks:
    return [(client, client.rank) for client in view.one.clients if client.rank and ranks.trains(client.rank)]


def _none(view: View, found: str) -> Finding:
    """Nothing was found; what that says where the environments of some clients could not be read."""
    closed = [client.pid for client in view.one.clients if not client.readable]
    if closed:
        return unknown(f"the environment of pid {closed[0]} cannot be read", remedy=as_root(view))
    return passed(found)


def _rank(rank: RankFacts) -> str:
    return f"rank {rank.number} of {rank.size} ({rank.launcher})"


def _line(client: ClientFacts, rank: RankFacts, memory_mib: Sequence[Optional[int]]) -> str:
    line = f"{words.client(client)}: {_rank(rank)}"
    if rank.nccl_mapped:
        line += ", NCCL mapped"
    for ordinal, (held, total) in enumerate(zip(client.memory_mib, memory_mib)):
        if held is not None and total is not None and held > LARGE_SHARE * total:
            line += f", holds {held} of {total} MiB of device {ordinal}: there is nothing left to share"
    return line


def _devices(client: ClientFacts, count: int) -> list[int]:
    """The ordinals of the devices that a client uses; with one device there is no question."""
    return [0] if count == 1 else [ordinal for ordinal, held in enumerate(client.memory_mib) if held is not None]


JUDGEMENTS = (distributed_jobs, nccl_ranks_on_one_gpu)
