"""Verifying a fleet and rebooting it, over six hosts with NVIDIA's control daemons 535, 550 and 555."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import rollout, whole_fleet


@pytest.mark.long
def test_verify_tells_each_broken_host_from_the_others_and_reboots_stop_and_go_on(tmp_path: Path) -> None:
    with rollout.fleet("whole", 2) as fleet:
        whole_fleet.prove_reboots(fleet, tmp_path, late=0, missing=2, delay_s=5)
        whole_fleet.prove_verify(fleet, tmp_path)
