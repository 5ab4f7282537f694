#!/usr/bin/env python3
"""Limits that hold, on a real GPU: changed under clients at work, told apart, and not to be shaken off.

See gpu_host.py for the host. 8 clients hold contexts under 4G while site.yml changes the limit to 6G: all live
on at their old limit by their own cuMemGetInfo, a new client gets 6G to the byte, and `mpsctl status` tells them
apart. Each way to shake a limit off by the client's own variable is named within one `mpsctl status`. With the
policy terminate, `mpsctl health` ends the client without its limit (it sees error 810) and no other.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gpu_host import CLIENT, Host, converge, expect, fail, on_a_host

PLACE = "/run/trial"
VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LIMIT_BYPASSES = ("0=1G,1=1G", "1=1G", "1G")
OLD_MIB, NEW_MIB = 4096, 6144
DEADLINE_S = 30


class Client:
    """A CUDA client that holds its context until it is told to leave."""

    def __init__(self, host: Host, label: str, variable: str | None = None) -> None:
        self._host, self.label = host, label
        self._hold, self._said = f"{PLACE}/{label}.hold", f"{PLACE}/{label}.out"
        own = f"export {VARIABLE}='{variable}'; " if variable is not None else ""
        host.run(
            f"mkdir -p {PLACE}; touch {self._hold}; eval $(mpsctl env 0); {own}"
            f"setsid {CLIENT} --label {label} --hold-while {self._hold} </dev/null >{self._said} 2>&1 &"
        )
        self.begun = self._line(0)
        if "failed" in self.begun:
            fail(f"client {label} did not begin: {self.begun}")
        self.pid, self.free_mib = int(self.begun["pid"]), int(self.begun["free_mib"])
        print(f"   client {label}: pid {self.pid}, free {self.free_mib} MiB, under MPS {self.begun['mps']}")

    def _line(self, number: int) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            lines = self._host.run(f"cat {self._said}", check=False, quiet=True).splitlines()
            if len(lines) > number and lines[number].startswith("{"):
                found: dict[str, Any] = json.loads(lines[number])
                return found
            time.sleep(0.1)
        fail(f"client {self.label} said nothing within {DEADLINE_S} s")
        raise AssertionError  # not reached: fail ends the trial

    @property
    def alive(self) -> bool:
        return self._host.run(f"kill -0 {self.pid} 2>&1", check=False, quiet=True).strip() == ""

    def leave(self) -> dict[str, Any]:
        """How it ended, and what was free to it last."""
        self._host.run(f"rm -f {self._hold}", quiet=True)
        return self.end()

    def end(self) -> dict[str, Any]:
        return self._line(1)


def status(host: Host) -> dict[str, Any]:
    """Instance 0 by one call of `mpsctl status`: its word, facts and checks."""
    host.run("mpsctl status", check=False)
    said = host.run("mpsctl status --json", check=False, quiet=True)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])["instances"]["0"]
    return found


def critical(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The checks that are critical, by their ids, with the facts behind them."""
    return {one["name"]: one["facts"] for one in found["checks"] if one["level"] == "critical"}


def of_pid(found: dict[str, Any], pid: int) -> dict[str, Any]:
    for server in found["facts"]["servers"]:
        for client in server["clients"]:
            if client["pid"] == pid:
                named: dict[str, Any] = client
                return named
    fail(f"status names no client {pid}")
    raise AssertionError


def trial(host: Host) -> None:
    converge(host, "4G")
    change_under_load(host)
    limit_bypasses(host)
    policy(host)
    host.run("journalctl -u mps-health.service -b --no-pager -o cat | tail -20", check=False)


def change_under_load(host: Host) -> None:
    print(f"-- 8 clients under {OLD_MIB} MiB")
    old = [Client(host, f"old{number}") for number in range(8)]
    context_mib = OLD_MIB - old[0].free_mib
    print(f"   a context costs {context_mib} MiB")
    expect("each is under its limit", [client.free_mib for client in old], [OLD_MIB - context_mib] * 8)
    main_pid = host.run("systemctl show -p MainPID --value mps-control@0")
    before = [server["pid"] for server in status(host)["facts"]["servers"]]
    print(f"-- site.yml changes the limit to {NEW_MIB} MiB")
    converge(host, "6G")
    new = Client(host, "new")
    expect("what is free to a new client", new.free_mib, NEW_MIB - context_mib)
    expect("all 8 are alive", [client.alive for client in old], [True] * 8)
    found = status(host)
    expect("the daemon is the same process", host.run("systemctl show -p MainPID --value mps-control@0"), main_pid)
    servers = found["facts"]["servers"]
    expect("the server is the same process", [server["pid"] for server in servers], before)
    expect("everything is in the desired state", critical(found), {})
    limit = next(value["desired"] for value in servers[0]["values"] if value["desired"]["kind"] == "memory limit")
    expect("the server's limit to the byte, by its own log", limit["said_bytes"], NEW_MIB << 20)
    expect(
        "the limits of the old clients",
        [of_pid(found, client.pid)["limits_mib"] for client in old],
        [[OLD_MIB]] * len(old),
    )
    for client in old:
        older = [(one["limit_mib"], one["desired_mib"]) for one in of_pid(found, client.pid)["older"]]
        expect(f"{client.label} is told to be older", older, [(OLD_MIB, NEW_MIB)])
    expect(
        "the limit of the new client",
        (of_pid(found, new.pid)["limits_mib"], of_pid(found, new.pid)["older"]),
        ([NEW_MIB], []),
    )
    print(f"   memory by NVML: {[of_pid(found, client.pid)['memory_mib'] for client in [*old, new]]}")
    expect(
        "what is free to the old ones after the change",
        [client.leave() for client in old],
        [{"label": client.label, "held": "ok", "free_mib": OLD_MIB - context_mib} for client in old],
    )
    new.leave()


def limit_bypasses(host: Host) -> None:
    print("-- three ways to shake a limit off")
    good = Client(host, "good", "0=1G")
    bad = [Client(host, f"bad{number}", variable) for number, variable in enumerate(LIMIT_BYPASSES)]
    found = status(host)
    for client, variable in zip(bad, LIMIT_BYPASSES):
        expect(f"{variable!r}: more than the limit is free to it", client.free_mib > NEW_MIB, True)
        expect(f"{variable!r} is named", of_pid(found, client.pid)["bypass"]["value"], variable)
    expect("a client that only lowers its limit is not accused", of_pid(found, good.pid)["bypass"], None)
    expect("nothing else is critical", list(critical(found)), ["client-limits"])
    pids = sorted(critical(found)["client-limits"]["pids"])
    expect("status names each and no other", pids, sorted(one.pid for one in bad))
    for client in [good, *bad]:
        client.leave()


def policy(host: Host) -> None:
    print("-- policy terminate, grace 2 s, enforced by `mpsctl health` alone")
    converge(host, "6G", "-e mps_limit_bypass=terminate -e mps_limit_bypass_grace_s=2")
    host.run("systemctl list-timers mps-health.timer --no-pager; systemctl stop mps-health.timer")
    others = [Client(host, "other0"), Client(host, "other1", "0=2G")]
    bad = Client(host, "bypassed", LIMIT_BYPASSES[0])
    host.run("mpsctl health; echo exit $?")
    expect("it lives through its grace time", bad.alive, True)
    time.sleep(3)
    said = host.run("mpsctl health; echo exit $?")
    expect("health says what it did", f" {bad.pid}`" in said and "terminate_client" in said, True)
    expect("the client without its limit sees CUDA_ERROR_MPS_CLIENT_TERMINATED", bad.end().get("code"), 810)
    expect("the others are alive", [client.alive for client in others], [True, True])
    expect("the others end well", [client.leave()["held"] for client in others], ["ok", "ok"])
    said = host.run("mpsctl health; echo exit $?")
    expect("all is well again", "exit 0" in said, True)
    host.run("systemctl start mps-health.timer")


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
