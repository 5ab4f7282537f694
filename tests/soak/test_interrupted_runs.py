"""150 interrupted runs over three lab hosts, and as many where a host cannot write."""

from __future__ import annotations

import pytest
from tests.lab import interruption


@pytest.mark.parametrize("obstacles", [False, True])
def test_runs_that_are_interrupted(obstacles: bool) -> None:
    with interruption.fleet("int") as trial:
        interruption.prove(trial, 150, obstacles)
