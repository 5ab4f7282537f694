#!/usr/bin/env python3
"""The front door on two real GPUs of one host: an instance for each, then one for both.

A storm over two instances, an instance whose door is killed beside one that is left alone, and NCCL with a rank on each
GPU. See gpu_host.py for the host; compute mode, persistence and MIG stay as they are, NVLink multicast stays off.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from front_door_trial import RESTART, clients, judge_storm
from gpu_host import PROJECT, Host, converge, expect, not_so, on_a_host, soft

SEED = int(os.environ.get("GPU_SEED", "5802"))
KILLS = int(os.environ.get("GPU_KILLS", "50"))
RANKS = f"/usr/local/bin/machine-python3 {PROJECT}/tests/gpu/nccl_ranks.py"
FULL = '-e \'{"mps_device_memory_limit": null, "mps_active_thread_percentage": null}\''
PUBLIC = "/run/nvidia-mps"


def nccl(host: Host, how: str, *places: str) -> None:
    said = host.run(f"{RANKS} {' '.join(places)} 2>&1", check=False, timeout_s=120)
    ranks: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    under = [one["mps"] for one in ranks]
    right = [one["sums_right"] for one in ranks]
    expected = [0, 0] if places[0].startswith(":") else [1, 1]
    held = under == expected and right == [True, True]
    soft(f"NCCL, {how}: both ranks as they are to be", held, ranks or said[-300:])


def storms(host: Host) -> None:
    converge(host, "4G", f"-e mps_multi_user=true {RESTART}")
    kills = " ".join(f"--kill daemon@{name}={KILLS} --kill service@{name}={KILLS // 3}" for name in ("0", "1"))
    judge_storm(clients(host, f"storm --instances 0,1 --within-s 270 --seed {SEED} {kills}"))
    print("-- the service and the daemon of instance 0 are killed, clients of instance 1 are not to notice")
    found = clients(host, f"storm --instances 0,1 --loops 4 --seed {SEED} --kill service@0=15 --kill daemon@0=5")
    other = {what: count for what, count in found.get("met", {}).get("1", {}).items() if not what.startswith("of ")}
    soft("instance 1: all came in", set(other) == {"limited"}, other)
    host.run("mpsctl status", check=False)


def ranks(host: Host) -> None:
    nccl(host, "without MPS", ":0", ":1")
    converge(host, "4G", f"-e mps_multi_user=false {FULL} {RESTART}", quiet=True)
    host.run("systemctl restart mps-control@0 mps-control@1")
    nccl(host, "an instance for each GPU", f"{PUBLIC}/0:0", f"{PUBLIC}/1:0")
    both = json.dumps({"mps_instances": [{"name": "both", "gpus": ["0", "1"]}]})
    converge(host, "4G", f"-e '{both}' {FULL} {RESTART}")
    nccl(host, "one instance of both GPUs", f"{PUBLIC}/both:0", f"{PUBLIC}/both:1")
    host.run("mpsctl status", check=False)


def trial(host: Host) -> None:
    storms(host)
    ranks(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
