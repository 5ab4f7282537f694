#!/usr/bin/env python3
"""Several users on a real GPU: probe clients of root and of an unprivileged user through a multi-user daemon, and a
group whose members alone may connect.

See gpu_host.py for the host.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpu_host import CLIENT, Host, converge, expect, not_so, on_a_host, soft
from verify_trial import USER, amiss, asked

GROUP, GID = "gpu-users", 2000
RESTART = "-e mps_on_clients=wait"


def several(host: Host) -> None:
    print("-- a multi-user daemon: probe clients of two users")
    converge(host, "4G", f"-e mps_multi_user=true {RESTART}", quiet=True)
    report, seconds = asked(host, "mpsctl verify --probe-client --allocate")
    soft(f"verify is silent ({seconds:.1f} s)", not amiss(report), amiss(report))
    checks = report.get("instances", {}).get("0", {}).get("checks", [])
    users = {one["facts"]["uid"]: one["level"] for one in checks if one["name"] == "probe-client-under-mps"}
    soft("root and another user are under MPS", len(users) == 2 and set(users.values()) == {"ok"}, users)
    for one in checks:
        if one["name"].startswith("probe"):
            print(f"   {one['name']}: {one['level']}: {one['found']}")


def _as_user(host: Host, groups: str) -> dict[str, Any]:
    said = host.run(
        f"eval $(mpsctl env 0); setpriv --reuid {USER} --regid {USER} {groups} {CLIENT}", check=False, quiet=True
    )
    found: dict[str, Any] = json.loads(said.splitlines()[0]) if said.startswith("{") else {"said": said[-300:]}
    return found


def group(host: Host) -> None:
    print("-- a group whose members may connect")
    host.run(f"grep -q ^{GROUP}: /etc/group || echo {GROUP}:x:{GID}: >>/etc/group", quiet=True)
    converge(host, "4G", f"-e mps_group={GROUP} {RESTART}", quiet=True)
    member = _as_user(host, f"--groups {GID}")
    soft("a member is under MPS and its limit", member.get("mps") == 1 and member.get("free_mib", 0) < 4096, member)
    other = _as_user(host, "--clear-groups")
    soft("another user is not a client", other.get("mps") in (0, None), other)
    report, _ = asked(host, "mpsctl verify --probe-client")
    soft("verify is silent", not amiss(report), amiss(report))
    converge(host, "4G", RESTART, quiet=True)


def parts(host: Host) -> None:
    converge(host, "4G", quiet=True)
    several(host)
    group(host)


def trial(host: Host) -> None:
    parts(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
