"""Distributed jobs, and the other MPS."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "distributed-job": Cause(
        "a distributed training run is among the clients. Its ranks wait for each other at every step, so a shared GPU"
        " slows all of them, and one client's fault ends the run",
        "run it outside MPS with one GPU per rank, or set mps_distributed_jobs: ignore where it is meant (`mpsctl"
        " loopback` measures what it costs)",
    ),
    "nccl-ranks-on-one-gpu": Cause(
        "NCCL found two ranks on one GPU, which it refuses with MPS as without",
        "give each rank a GPU of its own; up to NCCL 2.29 there is no other way, from 2.30 on"
        " NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental) lets two share one; `mpsctl loopback` tries it",
    ),
    "metal-performance-shaders": Cause(
        "PyTorch's device `mps` is Apple's Metal Performance Shaders, for the GPUs of Macs. NVIDIA's Multi-Process"
        " Service, which this project serves, needs Linux and an NVIDIA GPU, and shares only the initials with it",
        "on NVIDIA GPUs use the device `cuda`, whether or not MPS is there; on a Mac this project has nothing to do",
    ),
}
