#!/usr/bin/env python3
"""A host with real systemd and a real GPU passed through, brought up by the role: the first proof on silicon.

Run as root on a machine with an NVIDIA driver, beside build/gpu-bundle.tar.xz (`make gpu-bundle`). The
machine needs no systemd of its own. It boots one host from the bundle with the driver passed through
read-only, converges it with the role (compute mode not managed), and proves with a bare CUDA client that
the limit is in force: after the converge, for another user, after kill -9 of the daemon, after a live change,
after a reboot. The compute mode, persistence and clocks of the GPU are left alone.

Every command and its answer is printed; a check that does not hold ends the run with exit code 1.
"""

from __future__ import annotations

import sys
import threading
import time

from gpu_host import Host, client, converge, expect, kill_daemon_and_wait, on_a_host


def prove(host: Host, when: str, limit_mib: int) -> None:
    """A client is under MPS, sees its limit and not a MiB more, and half of the multiprocessors."""
    print(f"-- {when}")
    free = client(host, "--allocate-mib", str(limit_mib - 700), "--allocate-mib", str(limit_mib))
    expect("under MPS (attribute 133)", free["mps"], 1)
    expect(f"an allocation of {limit_mib - 700} MiB", free[f"allocate_{limit_mib - 700}_mib"], "ok")
    expect(f"an allocation of {limit_mib} MiB (2: out of memory)", free[f"allocate_{limit_mib}_mib"], 2)
    expect("multiprocessors under 50 % of 132", free["sms"], 66)
    print(f"   a client's context costs {limit_mib - free['free_mib']} MiB of its limit of {limit_mib} MiB")
    server = host.run("journalctl -u mps-control@0 -b -o cat --no-pager | grep 'pinned memory limit' | tail -1")
    expect("the server's own log line", f"0x{limit_mib << 20:x} bytes" in server, True)


def trial(host: Host) -> None:
    converge(host, "4G", "--check --diff")
    converge(host, "4G")
    expect("the second run changes nothing", "changed=0" in converge(host, "4G"), True)
    host.run("systemctl status mps-control@0 --no-pager -n 8; mpsctl status; mpsctl gpus; mpsctl version")
    prove(host, "after the first converge", 4096)
    other = client(host, "--uid", "1000")
    expect("another user's client is under MPS", other["mps"], 1)
    print("-- kill -9 of the daemon, nobody acts")
    for _ in range(3):
        kill_daemon_and_wait(host)
    prove(host, "after kill -9", 4096)
    print("-- a live change to 6G with a client at work")
    holder = threading.Thread(target=client, args=(host, "--label", "holder", "--hold-s", "12"))
    holder.start()
    time.sleep(2)
    pid = host.run("systemctl show -p MainPID --value mps-control@0")
    converge(host, "6G")
    expect("the daemon is the same process", host.run("systemctl show -p MainPID --value mps-control@0"), pid)
    prove(host, "after the change", 6144)
    host.run("mpsctl status")
    holder.join()
    print("-- reboot of the host")
    host.run("systemctl reboot", check=False)
    time.sleep(3)
    host.wait()
    host.run("systemctl status mps-control@0 --no-pager -n 3; mpsctl status")
    prove(host, "after the reboot", 6144)
    print("-- a real stop")
    host.run("time systemctl stop mps-control@0; systemctl is-active mps-control@0; mpsctl status", check=False)
    host.run("journalctl -u mps-control@0 -b --no-pager | tail -80", check=False)


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
