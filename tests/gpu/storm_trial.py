#!/usr/bin/env python3
"""100 restarts of the daemon under a storm of connecting clients: none may ever run without its limit.

Root's clients and another user's, in multi-user mode, on a host with the real GPU (see gpu_host.py). Half of the
restarts are `systemctl restart`, half are kill -9. Clients, refusals and, in default compute mode, processes that
ran outside MPS while the daemon was down are counted apart. The machine's compute mode is left alone.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

from gpu_host import Host, converge, expect, fail, kill_daemon_and_wait, on_a_host

LIMIT_MIB = 4096
BOUND_S = 330
RESTARTS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 100


def trial(host: Host) -> None:
    converge(host, "4G", "-e mps_multi_user=true")
    host.run("mpsctl status; systemctl status mps-control@0 --no-pager -n 0")
    said: list[str] = []
    storm = "eval $(mpsctl env 0); /usr/bin/python3 /opt/project/tests/gpu/storm_clients.py"
    clients = threading.Thread(
        target=lambda: said.append(
            host.run(f"{storm} --limit-mib {LIMIT_MIB} --until /run/storm-over", check=False, timeout_s=550)
        )
    )
    clients.start()
    time.sleep(3)
    killed_s = []
    begin = time.monotonic()
    done = 0
    while done < RESTARTS and time.monotonic() - begin < BOUND_S:
        if done % 2:
            host.run("systemctl restart mps-control@0", quiet=True)
        else:
            killed_s.append(kill_daemon_and_wait(host, quiet=True))
        time.sleep(0.7)
        done += 1
        if done % 20 == 0:
            print(f"   {done} restarts, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"-- {done} restarts in {time.monotonic() - begin:.0f} s, clients at work all the while")
    host.run("touch /run/storm-over")
    clients.join()
    if not said or '"limited"' not in said[0]:
        fail("no client ever ran under MPS with its limit")
    expect("MPS clients that ran without their limit", '"unlimited"' in said[0], False)
    print(f"   kill -9 until the limit reads back, s: median {statistics.median(killed_s):.2f}, all {sorted(killed_s)}")
    host.run("mpsctl status; systemctl show -p NRestarts mps-control@0")


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
