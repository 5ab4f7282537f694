"""Five interrupted runs of each playbook that changes a fleet; fifty of each are in tests/soak."""

from __future__ import annotations

import pytest

from . import interruption


@pytest.mark.parametrize("playbook", [interruption.SITE, interruption.LIMITS, interruption.REMOVE])
def test_the_run_after_one_that_was_killed_makes_it_whole(playbook: str) -> None:
    interruption.prove(f"int-{interruption.name_of(playbook)[0]}", playbook, 5)
