#!/usr/bin/env python3
"""What a fleet-wide run costs, in units of one ping task on the same hosts in the same run.

Boots bare lab hosts of its own, and times: a ping task, the first converge by site.yml, site.yml when nothing
is to be done, a changed memory limit on every host by limits.yml (in its batches) and by site.yml, and beside
them a plain role of the usual kind doing the same work. Ping and the converged runs
are interleaved, so that drift of the machine cannot decide; of each the median counts. Prints a table with the
raw seconds and writes it as JSON. Timings are for reading, no test depends on them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BY_LIMITS, BY_SITE = "limits.yml, a change on every host", "site.yml, a change on every host"
TARGETS = {"site.yml, nothing to do": 1.5, "site.yml, first converge": 5.0, BY_LIMITS: 2.5, BY_SITE: 2.5}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefix", default="bench", help="of the hosts' names (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=PROJECT / "build/bench-fleet.json")
    options = parser.parse_args()
    lab = [str(PROJECT / "lab/lab")]
    environment = {**os.environ, "MPS_LAB_PREFIX": options.prefix, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    up = [*lab, "up", "--prefix", options.prefix, "--hosts", str(options.hosts), "--gpus", str(options.gpus)]
    subprocess.run(up, check=True)
    try:
        seconds = measure(environment, options.rounds, options.gpus)
    finally:
        subprocess.run([*lab, "down", "--prefix", options.prefix], check=True)
    report(seconds, options)
    return 0


def measure(environment: dict[str, str], rounds: int, gpus: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}

    def run(what: str, playbook: str, changed: bool | None = None, *arguments: str) -> None:
        begin = time.monotonic()
        command = ["ansible-playbook", "-i", "inventories/lab", "-l", "gpu-nodes", "-e", f"lab_gpus={gpus}", playbook]
        command += arguments
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - begin
        if done.returncode:
            sys.exit(f"{what} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
        if changed is not None and changed == ("changed=0" in done.stdout.split("PLAY RECAP")[-1]):
            sys.exit(f"{what}: expected {'changes' if changed else 'no change'}:\n{done.stdout[-4000:]}")
        seconds.setdefault(what, []).append(round(took_s, 2))
        print(f"{took_s:7.2f} s  {what}", flush=True)

    plain = str(HERE / "plain")
    run("(the first connections)", f"{plain}/ping.yml")
    for _ in range(2):
        run("ping", f"{plain}/ping.yml")
    run("site.yml, first converge", "site.yml", changed=True)
    for _ in range(rounds):
        run("ping", f"{plain}/ping.yml")
        run("site.yml, nothing to do", "site.yml", changed=False)
    for _ in range(rounds):
        run("ping", f"{plain}/ping.yml")
        run(BY_LIMITS, "playbooks/limits.yml", True, "-e", "mps_device_memory_limit=6G")
        run("ping", f"{plain}/ping.yml")
        run(BY_SITE, "site.yml", True, "-e", "mps_device_memory_limit=4G")
    run("plain role, first converge", f"{plain}/site.yml", changed=True)
    for _ in range(max(2, rounds // 2)):
        run("ping", f"{plain}/ping.yml")
        run("plain role, nothing to do", f"{plain}/site.yml", changed=False)
    run("(taking the plain role away)", f"{plain}/remove.yml")
    return seconds


def report(seconds: dict[str, list[float]], options: argparse.Namespace) -> None:
    ping_s = statistics.median(seconds["ping"])
    print(
        f"\n{options.hosts} lab hosts of {options.gpus} simulated GPUs, {os.cpu_count()} cores, {platform.platform()}"
    )
    print("| what | median s | times ping | must reach | raw s |\n| --- | --- | --- | --- | --- |")
    for what, raw in seconds.items():
        if what.startswith("("):
            continue
        median_s = statistics.median(raw)
        target = f"at most {TARGETS[what]:g}" if what in TARGETS else ""
        print(f"| {what} | {median_s:.2f} | {median_s / ping_s:.2f} | {target} | {', '.join(map(str, raw))} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = {"hosts": options.hosts, "gpus": options.gpus, "machine": platform.platform(), "cores": os.cpu_count()}
    options.output.write_text(json.dumps({**record, "seconds": seconds}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
