#!/usr/bin/env python3
"""The hosts of the lab as an inventory of Ansible, asked from `lab/lab list --json`.

All are in the group gpu-nodes, and in one group each by release, daemon and GPU model: `-l daemon_535`.
With MPS_LAB_PREFIX=NAME in the environment only the hosts NAME-… count: tests keep off a demo's hosts by it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[2] / "lab" / "lab"
GROUPS_BY = ("release", "daemon", "model")


def inventory(hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """What Ansible expects of an inventory script, with the hosts that run."""
    prefix = os.environ.get("MPS_LAB_PREFIX")
    mine = [host for host in hosts if not prefix or host["name"].startswith(f"{prefix}-")]
    running = [host for host in mine if host.get("state", "running") == "running"]
    groups: dict[str, Any] = {"gpu-nodes": {"hosts": [host["name"] for host in running]}}
    for host in running:
        for key in GROUPS_BY:
            if host.get(key):
                groups.setdefault(f"{key}_{host[key]}", {"hosts": []})["hosts"].append(host["name"])
    return {"_meta": {"hostvars": {host["name"]: _variables(host) for host in running}}, **groups}


def _variables(host: dict[str, Any]) -> dict[str, Any]:
    # A lab's hosts are made anew all the time, on loopback: their host keys say nothing.
    known = host.get("known_hosts")
    keys = f"-o UserKnownHostsFile={known}" if known else "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    # Hosts of two labs can have one address, one after the other: no run may take another lab's open connection.
    connections = hashlib.sha256(host["key"].encode()).hexdigest()[:8]
    return {
        "ansible_control_path_dir": f"~/.ansible/cp/{connections}",
        "ansible_host": host["address"],
        "ansible_port": host.get("port", 22),
        "ansible_user": host.get("user", "root"),
        "ansible_ssh_private_key_file": host["key"],
        "ansible_ssh_common_args": f"{keys} -o LogLevel=ERROR -o IdentitiesOnly=yes",
        "lab": host,
    }


def main() -> int:
    if sys.argv[1:2] == ["--host"]:
        print("{}")
        return 0
    try:
        listed = subprocess.run([str(LAB), "list", "--json"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        print(f"inventories/lab: the lab gives no list ({said}); start it with lab/lab up", file=sys.stderr)
        return 1
    print(json.dumps(inventory(json.loads(listed)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
