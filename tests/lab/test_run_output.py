"""What runs over 12, 40 and 48 names say; two lab hosts stand behind all of them."""

from __future__ import annotations

from pathlib import Path

from . import run_output
from .conftest import hosts
from .run_output import Aliases


def test_what_a_run_did_is_said_for_hosts_that_are_alike(tmp_path: Path) -> None:
    with hosts("said", "--hosts", "2", "--gpus", "2") as booted:
        run_output.prove_one_refuses_alone(Aliases(tmp_path, booted, 12), "gpu-07")
        run_output.prove_like_hosts_have_one_diff(Aliases(tmp_path, booted, 40))
        run_output.prove_a_limit_fits_a_screen(Aliases(tmp_path, booted, 48), own_hosts=False)
        run_output.prove_the_users_own_callback(Aliases(tmp_path, booted, 12))
        run_output.prove_a_verification_needs_no_program_of_its_own(Aliases(tmp_path, booted, 2))


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
