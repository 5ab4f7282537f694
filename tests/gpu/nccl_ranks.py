#!/usr/bin/env python3
"""Two ranks of a torch job on two GPUs, each through the pipe directory and on the device that is named for it.

    nccl_ranks.py DIRECTORY:DEVICE DIRECTORY:DEVICE

All-reduces of 512 MiB through NCCL; each rank prints one JSON line: whether it is under MPS (device attribute 133),
whether the sums are right, and the bus bandwidth as NCCL's own tests define it (size / time, for two ranks). For a
Python with torch. NVLink multicast stays off (NCCL_NVLS_ENABLE=0): it can hurt others who use the same host.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time

SIZE_MIB, ROUNDS, WARM_UP = 512, 20, 5


def rank(number: int) -> None:
    import torch
    import torch.distributed as group

    group.init_process_group("nccl", rank=number, world_size=2)
    values = torch.ones(SIZE_MIB << 18, device="cuda:0")
    group.all_reduce(values)
    right = bool((values == 2).all())
    for _ in range(WARM_UP):
        group.all_reduce(values)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(ROUNDS):
        group.all_reduce(values)
    torch.cuda.synchronize()
    took_s = (time.monotonic() - begin) / ROUNDS
    under_mps = ctypes.c_int(-1)
    ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(under_mps), 133, 0)
    group.barrier()
    group.destroy_process_group()
    print(
        json.dumps(
            {
                "rank": number,
                "device": os.environ["CUDA_VISIBLE_DEVICES"],
                "mps": under_mps.value,
                "sums_right": right,
                "gb_per_s": round((SIZE_MIB << 20) / took_s / 1e9, 1),
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            }
        ),
        flush=True,
    )


def main() -> int:
    if sys.argv[1] == "--rank":
        rank(int(sys.argv[2]))
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for number, place in enumerate(sys.argv[1:]):
        directory, _, device = place.rpartition(":")
        environment = {
            **os.environ,
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": device,  # torch counts the machine's GPUs, CUDA those of its daemon
        }
        environment.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        if directory:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = directory
        words = [sys.executable, __file__, "--rank", str(number)]
        ranks.append(subprocess.Popen(words, env=environment))
    return max(process.wait() for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
