#!/usr/bin/env python3
"""Ends that spare the neighbours, on a real GPU: `make gpu-test PARTS=ends`.

Two services on one GPU, both always in kernels. One is restarted and stopped again and again, by systemd and in a
namespace of its own; the other must lose nothing. Without the drop-in the same ends it with error 700. Then a torch job
and a service that are wired by what the documents say and by nothing else, each under its limit, and what vLLM's share
comes to beside what is free.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from typing import Any

from gpu_host import CLIENT, Host, converge, not_tried, on_a_host, soft

ENDS, BARE_ENDS, NAMESPACE_ENDS = 50, 8, 10
SPIN_MS = 300
_LONG_S = 60.0

UNITS = {
    # restarted, wired
    "ended.service": f"ExecStart={CLIENT} --spin-ms {SPIN_MS}\nTimeoutStopSec=20",
    # as above, but SIGTERM does nothing to it: systemd's SIGKILL comes when its time is over
    "stubborn.service": f"ExecStart={CLIENT} --spin-ms {SPIN_MS} --stubborn\nTimeoutStopSec=8",
    # the neighbour: it comes back when it fails, so that it can be counted
    "neighbour.service": f"ExecStart={CLIENT} --spin-ms {SPIN_MS}\nRestart=always\nRestartSec=0.2",
    # as everybody wires it: the environment alone
    "bare.service": f"EnvironmentFile=/etc/mps/0.env\nExecStart={CLIENT} --spin-ms {SPIN_MS}",
}
WIRED = ("ended.service", "stubborn.service", "neighbour.service")


def clients(host: Host) -> dict[int, str]:
    """The clients of instance 0 by pid, each with the unit that it belongs to."""
    found = json.loads(host.run("mpsctl clients 0 --json", quiet=True, check=False) or "{}")
    rows = found.get("instances", {}).get("0", {}).get("clients", [])
    return {row["pid"]: host.run(f"cat /proc/{row['pid']}/cgroup", quiet=True, check=False) for row in rows}


def until_clients(host: Host, *units: str) -> bool:
    """Wait until each of these units has a client."""
    end_s = time.monotonic() + _LONG_S
    while time.monotonic() < end_s:
        groups = clients(host).values()
        if all(any(f"/{unit}" in group for group in groups) for unit in units):
            return True
        time.sleep(0.2)
    soft(f"clients of {', '.join(units)}", False, host.run("mpsctl clients", quiet=True, check=False))
    return False


def failures(host: Host) -> int:
    """How often the neighbour has failed so far, by systemd's own count of its restarts."""
    return int(host.run("systemctl show --value -p NRestarts neighbour", quiet=True).split()[-1] or 0)


def codes(host: Host, unit: str) -> list[str]:
    """With which errors of CUDA a unit's clients ended, by their own lines."""
    said = host.run(f"journalctl -b -o cat -u {unit} --no-pager", quiet=True)
    return re.findall(r'"code": (\d+)', said)


def moment() -> None:
    """Somewhere within a kernel."""
    time.sleep(random.uniform(0.1, 0.6))


def wired(host: Host) -> None:
    print(f"-- {ENDS} ends of a wired service beside another, both always in kernels")
    for name in WIRED[1:]:
        host.run(f"systemctl start {name}", quiet=True)
    host.run("systemctl start ended", quiet=True)
    if not until_clients(host, "ended.service", "neighbour.service"):
        return
    before, begin = failures(host), time.monotonic()
    host.run("systemctl stop stubborn", quiet=True)  # the first of its five
    done = 1
    while done < ENDS:
        moment()
        if done % 10 == 0:
            host.run("systemctl start stubborn", quiet=True)
            until_clients(host, "stubborn.service")
            moment()
            host.run("systemctl stop stubborn", quiet=True)
        elif done % 2:
            host.run("systemctl restart ended", quiet=True)
        else:
            host.run("systemctl stop ended", quiet=True)
            host.run("systemctl start ended", quiet=True)
        until_clients(host, "ended.service")
        done += 1
        if done % 10 == 0:
            print(f"   {done} ends, {time.monotonic() - begin:.0f} s, neighbour failed {failures(host) - before}")
    lost = failures(host) - before
    soft(f"{done} ends cost the neighbour nothing", lost == 0, lost)
    print(f"   errors of the ended: {sorted(set(codes(host, 'ended') + codes(host, 'stubborn')))} (810: taken off)")
    print(f"   errors of the neighbour: {codes(host, 'neighbour')}")
    host.run("journalctl -b -o cat -t mps --no-pager | grep 'by the daemon' | tail -3", check=False)
    host.run("systemctl stop ended", quiet=True)


def bare(host: Host) -> None:
    print(f"-- {BARE_ENDS} ends of a service with the environment alone: what the drop-in is for")
    before, hit = failures(host), 0
    for _ in range(BARE_ENDS):
        host.run("systemctl start bare", quiet=True)
        if not until_clients(host, "bare.service", "neighbour.service"):
            return
        moment()
        at = failures(host)
        host.run("systemctl stop bare", quiet=True)
        time.sleep(1)
        hit += failures(host) > at
    print(f"   the neighbour failed after {hit} of {BARE_ENDS}, {failures(host) - before} times in all")
    soft("without the drop-in the neighbour fails", hit > 0, hit)
    soft("with error 700", "700" in codes(host, "neighbour"), codes(host, "neighbour"))


def namespaces(host: Host) -> None:
    print(f"-- {NAMESPACE_ENDS} ends of a process tree in namespaces like a container's, by `mpsctl evict --pid`")
    until_clients(host, "neighbour.service")
    before = failures(host)
    for _ in range(NAMESPACE_ENDS):
        inside = f"unshare --pid --fork --mount-proc --ipc --net --uts {CLIENT} --spin-ms {SPIN_MS}"
        host.run(f"systemd-run -q --unit boxed -p EnvironmentFile=/etc/mps/0.env {inside}", quiet=True)
        if not until_clients(host, "boxed.service"):
            return
        moment()
        pid = host.run("systemctl show --value -p MainPID boxed", quiet=True).split()[-1]
        said = host.run(f"mpsctl evict --pid {pid} --end --json", quiet=True, check=False)
        if not said.startswith("{") or not json.loads(said)["taken_off"]:
            soft("its client was taken off", False, said)
        host.run("systemctl stop boxed; systemctl reset-failed boxed", quiet=True, check=False)
    lost = failures(host) - before
    soft(f"{NAMESPACE_ENDS} of them cost the neighbour nothing", lost == 0, lost)


TORCH = """
import json, torch
free, total = torch.cuda.mem_get_info()
held = torch.zeros(256, 1 << 20, device="cuda")
try:
    torch.zeros(4096, 1 << 20, device="cuda")
    more = "allocated"
except torch.cuda.OutOfMemoryError:
    more = "out of memory"
print(json.dumps({"free_mib": free >> 20, "total_mib": total >> 20, "gib_more": more,
  "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count}))
"""


def torch(host: Host) -> None:
    print("-- a torch job wired by the file of variables alone, in namespaces of its own, under a limit of 4 GiB")
    if "yes" not in host.run("machine-python3 -c 'import torch; print(\"yes\")' 2>&1 | tail -1", check=False):
        not_tried.append("a torch job: the machine has no torch")
        return
    (host.root / "opt/torch_job.py").write_text(TORCH)
    said = host.run(
        "cp /opt/torch_job.py /run/torch_job.py;"
        " systemd-run -q --pipe --wait -p EnvironmentFile=/etc/mps/0.env -p PrivateIPC=yes -p PrivateNetwork=yes"
        " machine-python3 /run/torch_job.py",
        check=False,
    )
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not lines:
        soft("the torch job ran", False, said[-400:])
        return
    found: dict[str, Any] = json.loads(lines[-1])
    soft("it is held by the limit", found["gib_more"] == "out of memory" and found["free_mib"] < 4096, found)
    soft("it sees half of the multiprocessors", found["multiprocessors"] == 66, found["multiprocessors"])
    hints = host.run("mpsctl env 0 --hints", quiet=True)
    share = re.search(r"--gpu-memory-utilization (\S+?):", hints)
    if share is None:
        soft("vLLM's hint", False, hints)
        return
    wanted_mib, naive_mib = float(share[1]) * found["total_mib"], 4096
    print(f"   vLLM's share {share[1]} of {found['total_mib']} MiB: {wanted_mib:.0f} MiB; free {found['free_mib']} MiB")
    soft("vLLM would find as much free as it is told to take", wanted_mib <= found["free_mib"], found["free_mib"])
    soft("limit / total would be refused", naive_mib > found["free_mib"], f"{naive_mib} MiB of {found['free_mib']}")


def part(host: Host) -> None:
    for name, lines in UNITS.items():
        (host.root / "etc/systemd/system" / name).write_text(f"[Unit]\nStartLimitIntervalSec=0\n[Service]\n{lines}\n")
    wiring = [{"unit": name, "instance": "0"} for name in WIRED]
    wiring[1] = {"unit": "stubborn.service", "instance": "0", "memory_limit": "2G"}
    converge(host, "4G", f"-e '{json.dumps({'mps_clients': wiring})}'", quiet=True)
    host.run("systemctl cat ended.service stubborn.service | grep -v '^#'; cat /etc/mps/0.env")
    wired(host)
    bare(host)
    namespaces(host)
    host.run("systemctl stop neighbour", quiet=True)
    torch(host)


if __name__ == "__main__":
    sys.exit(on_a_host(part))
