"""Fifty interrupted runs of each playbook that changes a fleet, over four lab hosts."""

from __future__ import annotations

import pytest
from tests.lab import interruption


@pytest.mark.parametrize("playbook", [interruption.SITE, interruption.LIMITS, interruption.REMOVE])
def test_fifty_runs_that_were_killed(playbook: str) -> None:
    with interruption.fleet("int") as trial:
        interruption.prove(trial, playbook, 50)
