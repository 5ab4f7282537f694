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
