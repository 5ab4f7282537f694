"""What runs over 48 lab hosts say, each name with a host of its own; MPS_RUN_HOSTS sets another number."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab import run_output
from tests.lab.conftest import hosts
from tests.lab.run_output import Aliases


def test_48_hosts(tmp_path: Path) -> None:
    count = int(os.environ.get("MPS_RUN_HOSTS", "48"))
    with hosts("many", "--hosts", str(count), "--gpus", "2") as booted:
        fleet = Aliases(tmp_path, booted, count)
        run_output.prove_one_refuses_alone(fleet, "gpu-07")
        assert fleet.play("site.yml", mps_device_memory_limit="4G").exit_code == 0
        run_output.prove_like_hosts_have_one_diff(fleet)
        run_output.prove_a_limit_fits_a_screen(fleet, own_hosts=True)
        run_output.prove_the_users_own_callback(fleet)


def test_a_drain_and_a_reboot_say_whom_they_wait_for(tmp_path: Path) -> None:
    """A client stays for a while, and another one to the end."""
    with hosts("wait", "--hosts", "2", "--gpus", "1", "--standin-server") as booted:
        fleet = Aliases(tmp_path, booted, 2)
        assert fleet.play("site.yml").exit_code == 0
        with run_output.client(booted[0], 60), run_output.client(booted[1], 900):
            drained = fleet.play("playbooks/drain.yml", mps_drain_timeout_s=120)
            kept = fleet.play(
                "playbooks/reboot.yml", "-e", f"report_directory={tmp_path}", mps_serial="100%", mps_drain_timeout_s=5
            )
        assert kept.exit_code != 0
        assert "gpu-01: it was drained, and another host of its batch was not; clients are let in again" in kept.output
        assert drained.exit_code != 0
        assert "waiting for 2 clients on 2 hosts, for " in drained.output
        assert "\n  gpu-01: instance 0: 1 client left: pid " in drained.output
        assert drained.summary[0] == "gpu-01: instance 0 drained of 1 client"
        assert drained.summary[1].startswith(
            "failed: gpu-02: 0: no new client gets in, and after 120 s 1 client left: "
        )
        fleet.play("playbooks/drain.yml", "-l", "gpu-01")
        undrained = fleet.play("playbooks/undrain.yml")
        assert undrained.summary == ["gpu-01: instance 0 lets clients in again", "nothing to do: gpu-02"]
        again = fleet.play("playbooks/reboot.yml", "-e", f"report_directory={tmp_path}", mps_serial="100%")
        assert again.exit_code == 0, again.output
        assert again.summary == ["gpu-01, gpu-02 (2 hosts): instance 0 drained; rebooted"]
