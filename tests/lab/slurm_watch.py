"""What the daemons of a node list, by Slurm job, again and again until standard input is over; it runs on the node.

A client's job and GPU are what stands in its environment: the jobs of a storm change nothing there. Prints one line of
JSON at the end: how often was looked, the most clients of each job that were listed at once, those above the share that
is on record, and those at another instance than that of their GPU.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

DAEMON = "/usr/bin/nvidia-cuda-mps-control"
RUN = Path("/run/mps-fleet")


def ask(instance: str, *commands: str) -> list[str]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(RUN / instance / "pipe")}
    said = "".join(f"{command}\n" for command in commands)
    try:
        done = subprocess.run([DAEMON], input=said, env=environment, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return []
    return [word for word in done.stdout.split() if word.isdigit()]


def of(pid: str) -> tuple[str, str]:
    """The job and the GPUs of a process; empty where it has gone."""
    with suppress(OSError):
        pairs = (entry.partition("=") for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        found = {key: value for key, _, value in pairs}
        return found.get("SLURM_JOB_ID", ""), found.get("SLURM_JOB_GPUS", "")
    return "", ""


def share(job: str, instance: str) -> int:
    with suppress(OSError, ValueError):
        record = json.loads((RUN / f".job-{job}.json").read_text())
        return next((one["clients"] for one in record["shares"] if one["instance"] == instance), 0)
    return -1


def main() -> None:
    looks, most = 0, Counter[str]()
    above: list[list[object]] = []
    wrong: list[list[object]] = []
    instances = [name for name in os.listdir(RUN) if name.isdigit()]
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        for instance in instances:
            here: Counter[str] = Counter()
            for pid in {
                pid for server in ask(instance, "get_server_list") for pid in ask(instance, f"get_client_list {server}")
            }:
                job, gpus = of(pid)
                if job:
                    here[job] += 1
                    if gpus != instance:
                        wrong.append([job, pid, gpus, instance])
            for job, count in here.items():
                most[job] = max(most[job], count)
                allowed = share(job, instance)
                if 0 <= allowed < count:
                    above.append([job, count, allowed])
            looks += 1
    print(json.dumps({"looks": looks, "most": most, "above": above, "wrong": wrong}), flush=True)


main()
