"""playbooks/limits.yml over six hosts with NVIDIA's control daemons 535, 550 and 555."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import rollout
from .rollout import Rollout


@pytest.fixture
def fleet() -> Iterator[Rollout]:
    with rollout.fleet("roll", 2) as booted:
        yield booted


def test_limits_are_changed_in_batches_and_a_host_that_refuses_stops_the_rollout(fleet: Rollout) -> None:
    """By default the first batch is one host and the second a quarter: of six, one."""
    line = rollout.prove_a_rollout_that_stops(fleet, 2, 3)
    assert "untouched: roll-550-01, roll-550-02, roll-555-01, roll-555-02" in line
    fleet.converge()
    rollout.prove_a_healthy_rollout(fleet)
    refused = fleet.play("playbooks/limits.yml", "-e", "mps_compute_mode=default")
    assert refused.exit_code != 0
    assert "more than a live reload" in refused.output
    assert "run site.yml" in refused.output
