"""A host with real GPUs: what is wished is in force, and a real CUDA client says so."""

from __future__ import annotations

import json
from typing import Any

testinfra_hosts = ["ansible://gpu-nodes"]


def test_every_instance_is_as_wished_and_no_gpu_is_simulated(host: Any) -> None:
    found = json.loads(host.run("mpsctl status --json").stdout)["instances"]
    assert found
    assert all(one["as_wished"] and not one["simulated"] for one in found.values()), found


def test_a_real_client_of_every_instance_is_under_mps_and_within_its_limit(host: Any) -> None:
    report = json.loads(host.run("mpsctl verify --witness --allocate --json").stdout)
    for name, checks in report["instances"].items():
        levels = {one["name"]: one["level"] for one in checks}
        witness = {check: level for check, level in levels.items() if check.startswith("witness-")}
        assert witness.get("witness-under-mps") == "pass", (name, checks)
        assert set(witness.values()) == {"pass"}, (name, witness)
        assert "fail" not in levels.values(), [one for one in checks if one["level"] == "fail"]


def test_each_daemon_serves_its_own_gpu_by_uuid(host: Any) -> None:
    found = json.loads(host.run("mpsctl status --json").stdout)["instances"]
    for one in found.values():
        environment = host.run(f"tr '\\0' '\\n' < /proc/{one['unit']['main_pid']}/environ").stdout.splitlines()
        assert f"CUDA_VISIBLE_DEVICES={','.join(gpu['uuid'] for gpu in one['gpus'])}" in environment
