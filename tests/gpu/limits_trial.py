#!/usr/bin/env python3
"""Limits on a real GPU: changed under eight clients, shaken off, and named (see first_run.py for the host).

Eight clients hold contexts under 4G; site.yml changes the limit to 6G. All eight live on and keep what they had, by
their own cuMemGetInfo; a client that comes later has 6G to the byte, by its server's log line; `mpsctl status`
tells them apart. Then the three ways in which a client shakes off its limit, each named by one `status`, and the
policy that ends it: `mpsctl health`, run twice, has the daemon end the escaped client and no other.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from gpu_host import CLIENT, Host, client, converge, expect, on_a_host

VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ESCAPES = ("0=1G,1=1G", "1=1G", "1G")


def status(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run("mpsctl status --json", check=False, quiet=True))["instances"]["0"]
    return found


def hold(host: Host, said: list[str], environment: str, hold_s: int) -> threading.Thread:
    """A client in the background that holds its context."""
    command = f"eval $(mpsctl env 0); {environment} {CLIENT} --hold-s {hold_s}"
    thread = threading.Thread(target=lambda: said.append(host.run(command, check=False, quiet=True)))
    thread.start()
    return thread


def connected(host: Host, count: int) -> list[dict[str, Any]]:
    """The clients in `status`, once there are so many."""
    for _ in range(100):
        clients = [one for server in status(host)["servers"] for one in server["clients"]]
        if len(clients) == count:
            return clients
        time.sleep(0.2)
    expect("connected clients", len(clients), count)
    return clients


def trial(host: Host) -> None:
    converge(host, "4G", quiet=True)
    said: list[str] = []
    eight = [hold(host, said, "", 20) for _ in range(8)]
    connected(host, 8)
    pid = host.run("systemctl show -p MainPID --value mps-control@0", quiet=True)
    converge(host, "6G", quiet=True)
    expect(
        "the daemon is the same process", host.run("systemctl show -p MainPID --value mps-control@0", quiet=True), pid
    )
    late: list[str] = []
    ninth = hold(host, late, "", 6)
    connected(host, 9)
    host.run("mpsctl status", check=False)
    ninth.join()
    for thread in eight:
        thread.join()
    lines = [[json.loads(line) for line in one.splitlines()] for one in said]
    expect("clients that lived on through the change", sum(one[-1].get("held") == "ok" for one in lines), 8)
    expect("what each of the eight could take, MiB", {one[0]["free_mib"] <= 4096 for one in lines}, {True})
    newcomer = json.loads(late[0].splitlines()[0])
    expect("the newcomer has more than 4G and not more than 6G", 4096 < newcomer["free_mib"] <= 6144, True)
    log = host.run("journalctl -u mps-control@0 -b -o cat --no-pager | grep 'pinned memory limit' | tail -1")
    expect("6G to the byte", f"0x{6 << 30:x} bytes" in log, True)
    print("-- escapes")
    for value in ESCAPES:
        escaped: list[str] = []
        thread = hold(host, escaped, f'{VARIABLE}="{value}"', 5)
        connected(host, 1)
        found = status(host)
        named = [finding for finding in found["findings"] if VARIABLE in finding or "escaped" in finding]
        print(f"   {value}: {named}")
        expect(f"{value} is named by one status", bool(named), True)
        thread.join()
        print(f"   it could take {json.loads(escaped[0].splitlines()[0])['free_mib']} MiB")
    print("-- the policy: terminate after 1 s of grace, by the health verb alone")
    converge(host, "6G", "-e mps_escaped_clients=terminate -e mps_escape_grace_s=1", quiet=True)
    good: list[str] = []
    bad: list[str] = []
    threads = [hold(host, good, "", 12), hold(host, bad, f'{VARIABLE}="1G"', 12)]
    connected(host, 2)
    host.run("mpsctl health", check=False)
    time.sleep(2)
    host.run("mpsctl health", check=False)
    for thread in threads:
        thread.join()
    print(f"   the escaped client: {bad[0].splitlines()[-1]}")
    expect("the other lived on", json.loads(good[0].splitlines()[-1]).get("held"), "ok")
    expect("the escaped one was ended (810)", json.loads(bad[0].splitlines()[-1]).get("code"), 810)
    client(host)


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
