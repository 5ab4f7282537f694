#!/usr/bin/env python3
"""What the metrics say on a real GPU, beside what NVML and the clients themselves say: `make gpu-test PARTS=metrics`.

See gpu_host.py for the host. Among it is what the lab cannot plant: a server in FAULT, and a real process outside MPS.
"""

from __future__ import annotations

import re
import sys
import time
from statistics import median
from typing import Callable

from gpu_host import CLIENT, Host, converge, expect, not_so, on_a_host, soft
from limits_trial import PLACE, Client

FOLDER, LIMIT_MIB, TAKE_MIB = "/var/lib/metrics", 4096, 2048
_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LONG_S = 60.0


def metrics(host: Host) -> dict[str, float]:
    """By the name with its labels, without those of the GPU's UUID."""
    found = {}
    for line in host.run("mpsctl metrics", quiet=True).splitlines():
        match = _SAMPLE.fullmatch(line)
        if match:
            labels = [label for label in (match[2] or "").split(",") if label and not label.startswith("gpu_uuid")]
            found[" ".join([match[1], *labels])] = float(match[3])
    return found


def until(host: Host, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    end_s = time.monotonic() + _LONG_S
    while True:
        found = metrics(host)
        if holds(found) or time.monotonic() > end_s:
            return found
        time.sleep(0.5)


def _seconds(host: Host, command: str) -> float:
    """How long it took, its own end included."""
    said = host.run(f'a=$(date +%s%N); {command} >/dev/null 2>&1; b=$(date +%s%N); echo "took $((b - a))"', quiet=True)
    return int(said.split()[-1]) / 1e9


def part(host: Host) -> None:
    of_0 = 'mps_instance="0"'
    print("-- metrics of two clients")
    host.run(f"mkdir -p {FOLDER}", quiet=True)
    converge(host, f"{LIMIT_MIB}M", f"-e mps_metrics_directory={FOLDER} -e mps_on_clients=terminate", quiet=True)
    one, two = Client(host, "one"), Client(host, "two")
    found = metrics(host)
    for name in (
        "mps_clients",
        "mps_clients_memory_bytes",
        "mps_client_memory_largest_bytes",
        "mps_limit_desired_bytes",
        "mps_limit_in_force_bytes",
        "mps_clients_cap",
        "mps_daemon_up",
        "mps_daemon_answers",
        "mps_front_door_up",
        "mps_clients_without_limit",
        "mps_clients_let_in_total",
        "mps_level",
    ):
        print(f"   {name}: {found.get(f'{name} {of_0}', 'absent')}")
    soft("two clients", found.get(f"mps_clients {of_0}") == 2, found.get(f"mps_clients {of_0}"))
    soft("both were let in", found.get(f"mps_clients_let_in_total {of_0}", 0) >= 2, "let-in counter")
    soft("the limit is in force", found.get(f"mps_limit_in_force_bytes {of_0}") == LIMIT_MIB << 20, "to the byte")
    soft("one server is active", found.get(f'mps_servers {of_0} state="active"') == 1, "by its state")
    soft("GPUs are real", found.get("mps_simulated") == 0, found.get("mps_simulated"))
    used = host.run("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits", quiet=True).split()[-1]
    print(f"   used by nvidia-smi {used} MiB, by metrics {found.get('mps_gpu_memory_used_bytes', 0) / (1 << 20)} MiB")
    print("-- by unit")
    host.run("mpsctl metrics --by unit | grep ^mps_unit", check=False)
    print("-- a process outside MPS")
    host.run(f"touch {PLACE}/out.hold; setsid {CLIENT} --hold-while {PLACE}/out.hold </dev/null >{PLACE}/out 2>&1 &")
    key = f'mps_processes_outside {of_0} reason="pipe-directory-unset"'
    found = until(host, lambda seen: seen.get(key) == 1)
    soft("it is counted by what keeps it out", found.get(key) == 1, found.get(key))
    host.run(f"rm {PLACE}/out.hold", quiet=True)
    print("-- a fault; a client of before it is stopped, and so does not end at once")
    host.run(f"kill -STOP {one.pid}", quiet=True)
    host.run(
        f"eval $(mpsctl env 0); touch {PLACE}/fault.hold; setsid {CLIENT} --label fault --fault-on {PLACE}/fault.hold"
        f" --hold-while {PLACE}/fault.hold </dev/null >{PLACE}/fault 2>&1 &"
    )
    fault = f'mps_servers {of_0} state="fault"'
    found = until(host, lambda seen: seen.get(fault) == 1)
    soft("a server in FAULT is counted while a client of before the fault lives", found.get(fault) == 1, found)
    host.run(f"mpsctl status; kill -CONT {one.pid}", check=False)
    found = until(host, lambda seen: seen.get(fault) == 0)
    soft("and no longer once it has ended", found.get(fault) == 0, found.get(fault))
    host.run(f"rm -f {PLACE}/*.hold; cat {PLACE}/one.out {PLACE}/two.out {PLACE}/fault", check=False)
    del two
    print("-- what it costs (median of 15, in turn)")
    plain, written, ask = [], [], []
    for _ in range(15):
        plain.append(_seconds(host, "mpsctl health"))
        written.append(_seconds(host, f"mpsctl health --metrics-directory {FOLDER}"))
        ask.append(_seconds(host, "mpsctl metrics"))
    ratio = median(written) / median(plain)
    print(f"   health {median(plain):.3f} s, with metrics {median(written):.3f} s, mpsctl metrics {median(ask):.3f} s")
    soft("a look with metrics takes at most a tenth more", ratio <= 1.1, round(ratio, 3))
    print("-- one frame of top, and the file")
    host.run("mpsctl top --once", check=False)
    host.run(f"head -n 3 {FOLDER}/mps.prom; grep -c ^mps_ {FOLDER}/mps.prom", check=False)


def trial(host: Host) -> None:
    part(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
