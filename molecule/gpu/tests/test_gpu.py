"""A host with real GPUs: what is desired is in force, and a real CUDA client says so."""

from __future__ import annotations

import json
from typing import Any

testinfra_hosts = ["ansible://gpu-nodes"]


def test_every_instance_is_in_the_desired_state_and_no_gpu_is_simulated(host: Any) -> None:
    found = json.loads(host.run("mpsctl status --json").stdout)
    assert found["instances"]
    assert not found["simulated"]
    assert all(one["word"] in ("ok", "warning") for one in found["instances"].values()), found


def test_a_real_client_of_every_instance_is_under_mps_and_within_its_limit(host: Any) -> None:
    report = json.loads(host.run("mpsctl verify --probe-client --allocate --json").stdout)
    for name, instance in report["instances"].items():
        levels = {one["name"]: one["level"] for one in instance["checks"]}
        probe = {check: level for check, level in levels.items() if check.startswith("probe-client-")}
        assert probe.get("probe-client-under-mps") == "ok", (name, instance["checks"])
        assert set(probe.values()) == {"ok"}, (name, probe)
        assert instance["word"] != "critical", [one for one in instance["checks"] if one["level"] == "critical"]


def test_each_daemon_serves_its_own_gpu_by_uuid(host: Any) -> None:
    found = json.loads(host.run("mpsctl status --json").stdout)["instances"]
    for facts in (one["facts"] for one in found.values()):
        environment = host.run(f"tr '\\0' '\\n' < /proc/{facts['unit']['main_pid']}/environ").stdout.splitlines()
        assert f"CUDA_VISIBLE_DEVICES={','.join(device['uuid'] for device in facts['devices'])}" in environment
