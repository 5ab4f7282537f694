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
