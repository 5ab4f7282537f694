#!/usr/bin/env python3
"""What contexts cost, plans, and clients with less than their instance gives, on a host with the real GPU.

See gpu_host.py for the host. Every claim of `mpsctl run` is asked of a client of the tests' own, not of
mpsctl's: its own cuMemGetInfo, its multiprocessors, the attribute that says whether it is under MPS. The
machine's compute mode is left alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpu_host import CLIENT, Host, converge, expect, fail, on_a_host

REPORT = "/run/plan-trial.json"


def report_of(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run(f"cat {REPORT}", quiet=True))
    return found


def run(host: Host, options: str, command: str, check: bool = True) -> str:
    return host.run(f"mpsctl run --instance 0 {options} --report {REPORT} -- {command}", check=check)


def said(text: str) -> dict[str, Any]:
    """The client's own line among what was printed."""
    for line in text.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    fail("the client said nothing")
    return {}


def code_of(host: Host, options: str, command: str) -> int:
    text = host.run(f"mpsctl run --instance 0 {options} --report {REPORT} -- {command}; echo code $?", check=False)
    return int(text.split()[-1])


def measured(host: Host) -> dict[float, dict[str, Any]]:
    """Measure through the instance; the rows by percentage."""
    rows = json.loads(host.run("mpsctl measure --instance 0 --json 2>/dev/null | tail -1"))["measured"]
    host.run("cat /var/lib/mps-fleet/measured.json")
    for row in rows:
        expect(f"at {row['thread_percentage']:g} % a client needs more than its context", row["least_limit_mib"]
               > row["context_mib"] - 1, True)  # fmt: skip
        if row["server_mib"] is None:
            print("   NVML in this host does not tell what the server holds")
    return {row["thread_percentage"]: row for row in rows}


def trial(host: Host) -> None:
    print("-- at 100 %")
    converge(host, "4G", "-e mps_active_thread_percentage=100")
    rows = measured(host)
    print(f"   context: { ({key: row['context_mib'] for key, row in rows.items()}) } MiB by percentage")
    context_mib = rows[100.0]["context_mib"]
    free = said(run(host, "--memory 1G --json", CLIENT))
    expect("mpsctl's figure is the one of the tests' own client", 1024 - free["free_mib"], context_mib)
    least = rows[100.0]["least_limit_mib"]
    expect("a client starts with the least limit", said(run(host, f"--memory {least}M", CLIENT)).get("mps"), 1)
    expect("a MiB less is refused", code_of(host, f"--memory {least - 1}M", "true"), 2)

    print("-- plans")
    host.run("mpsctl plan --memory 4G --clients 8 --latency short; mpsctl plan --memory 120G; mpsctl plan --memory 20%")
    host.run("mpsctl plan --memory 4G --rates 3:1 --format vars")
    expect("a plan that cannot fit", host.run("mpsctl plan --memory 4G --clients 40 >/dev/null; echo $?").strip(), "2")
    refused = converge_refused(host, "4G", "-e mps_expected_clients=40")
    expect("site.yml refuses it by its variable", "mps_expected_clients" in refused, True)

    print("-- at 50 %")
    converge(host, "4G")
    free = said(run(host, "--memory 1G", CLIENT))
    expect("under MPS", free["mps"], 1)
    expect("half of the multiprocessors", free["sms"], 66)
    context_mib = rows[50.0]["context_mib"]
    expect("free of 1G by its own cuMemGetInfo", free["free_mib"], 1024 - context_mib)
    found = report_of(host)
    expect("proven", (found["became_client"], found["client_pid"] is not None), (True, True))
    quarter = said(run(host, "--memory 1G --threads 25", CLIENT))
    expect("a quarter of the multiprocessors", quarter["sms"] in (32, 33), True)
    other = host.run(
        f'/usr/bin/python3 -c \'import os; os.setgid(1000); os.setuid(1000); os.execvp("mpsctl", ["mpsctl", "run",'
        f' "--instance", "0", "--memory", "1G", "--require-mps", "--", *"{CLIENT} --hold-s 2".split()])\'',
        check=False,
    )
    expect("another user's client", said(other).get("mps"), 1)
    bad = said(host.run(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1G mpsctl run --instance 0 -- {CLIENT}"))
    expect("a variable that would drop every limit is not passed on", bad["free_mib"], 4096 - context_mib)

    print("-- refused, passed through, and not a client")
    expect("above the instance's limit", code_of(host, "--memory 5G", "true"), 2)
    expect("the exit code", code_of(host, "", "sh -c 'exit 9'"), 9)
    text = host.run(
        f"mpsctl run --instance 0 --require-mps -- {CLIENT} --hold-s 60 & p=$!; sleep 4; kill -TERM $p; wait $p;"
        " echo code $?"
    )
    expect("SIGTERM ends the client and shows in the exit code", text.split()[-1], "143")
    expect("no client of it is left", host.run("pgrep -f '[c]uda_client.py' || echo none").strip(), "none")
    expect("a command without CUDA", code_of(host, "--require-mps", "sleep 1"), 4)
    expect("and why", "open CUDA" in report_of(host)["why_not"], True)
    short = code_of(host, "--require-mps", CLIENT)
    expect("a client of half a second is seen", short, 0)
    host.run("mpsctl env 0 --hints; mpsctl status")


def converge_refused(host: Host, limit: str, more: str) -> str:
    """A converge that must not succeed."""
    command = (
        "cd /opt/project && PYTHONPATH=/opt/ansible ANSIBLE_NOCOLOR=1 /usr/bin/python3 -m ansible playbook"
        f" -i /opt/inventory.yml site.yml -l gpu-nodes -e mps_device_memory_limit={limit} {more}; echo code $?"
    )
    text = host.run(command, check=False)
    expect("the run failed", text.split()[-1] != "0", True)
    return text


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
