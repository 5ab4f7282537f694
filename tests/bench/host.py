#!/usr/bin/env python3
"""What mpsctl costs on one host, measured on a lab host with simulated GPUs and NVIDIA's real control daemon.

`mpsctl status` against the least that any Python tool pays for NVML; what the unit adds to the bare daemon's start;
from kill -9 of the daemon until a limit reads back. Medians of several rounds; timings are for reading only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
LAB = PROJECT / "lab/lab"
HOST = "hostbench-01"

SCRIPT = r"""
import json, os, subprocess, sys, time

def seconds(command, rounds=15):
    found = []
    for _ in range(rounds):
        begin = time.monotonic()
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append(time.monotonic() - begin)
    return found

def until(command, expected):
    while subprocess.run(command, shell=True, capture_output=True, text=True).stdout.strip() != expected:
        time.sleep(0.002)

ASK = "echo get_default_device_pinned_mem_limit 0 | CUDA_MPS_PIPE_DIRECTORY=%s nvidia-cuda-mps-control 2>/dev/null"
DIRECTORY = "/run/mps-fleet/0/pipe"
BARE = "echo get_default_active_thread_percentage | CUDA_MPS_PIPE_DIRECTORY=/run/bare nvidia-cuda-mps-control"
found = {
    "python3 -c 'import pynvml; pynvml.nvmlInit()'": seconds(
        "PYTHONPATH=/opt/pynvml python3 -c 'import pynvml; pynvml.nvmlInit()'"
    ),
    "mpsctl status": seconds("mpsctl status"),
}
bare, unit, killed = [], [], []
for _ in range(7):
    os.makedirs("/run/bare", exist_ok=True)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/run/bare", "PATH": os.environ["PATH"]}
    begin = time.monotonic()
    daemon = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], env=environment, stdout=subprocess.DEVNULL)
    until(BARE, "100.0")
    bare.append(time.monotonic() - begin)
    daemon.kill()
    daemon.wait()
    subprocess.run(["systemctl", "stop", "mps-control@0"], check=True)
    begin = time.monotonic()
    subprocess.run(["systemctl", "start", "mps-control@0"], check=True)
    unit.append(time.monotonic() - begin)
    pid = subprocess.run(
        ["systemctl", "show", "-p", "MainPID", "--value", "mps-control@0"], capture_output=True, text=True
    ).stdout.strip()
    begin = time.monotonic()
    os.kill(int(pid), 9)
    until(ASK % DIRECTORY, "4G")
    killed.append(time.monotonic() - begin)
found["the bare daemon, until it answers"] = bare
found["systemctl start mps-control@0, limits in force"] = unit
found["kill -9 until the limit reads back"] = killed
print(json.dumps(found))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PROJECT / "build/bench-host.json")
    options = parser.parse_args()
    subprocess.run([LAB, "up", "--prefix", "hostbench", "--hosts", "1", "--gpus", "2"], check=True)
    try:
        environment = {
            "MPS_LAB_PREFIX": "hostbench",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/root",
        }
        play = ["ansible-playbook", "-i", "inventories/lab", "site.yml", "-l", "gpu-nodes"]
        subprocess.run(play, cwd=PROJECT, env=environment, check=True, stdout=subprocess.DEVNULL)
        pynvml = zipfile.ZipFile(PROJECT / "build/mpsctl").read("pynvml.py")
        ssh("mkdir -p /opt/pynvml && cat > /opt/pynvml/pynvml.py && python3 -m compileall -q /opt/pynvml", pynvml)
        seconds = json.loads(ssh("python3 -", SCRIPT.encode()))
    finally:
        subprocess.run([LAB, "down", "--prefix", "hostbench"], check=True)
    for what, raw in seconds.items():
        print(f"{statistics.median(raw):7.3f} s  {what}")
    medians = {what: statistics.median(raw) for what, raw in seconds.items()}
    values = list(medians.values())
    print(f"mpsctl status is {values[1] / values[0]:.2f} times the least (must reach: at most 2)")
    print(f"the unit adds {values[3] - values[2]:.3f} s to the daemon's start (must reach: under 0.3 s)")
    print(f"kill -9 to the limit: {values[4]:.2f} s (must reach: under 1 s)")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(seconds, indent=2) + "\n")
    return 0


def ssh(command: str, stdin: bytes) -> str:
    done = subprocess.run([LAB, "ssh", HOST, command], input=stdin, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


if __name__ == "__main__":
    sys.exit(main())
