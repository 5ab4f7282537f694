"""Three interrupted runs of each playbook that changes a fleet; fifty of each are in tests/soak."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import interruption


@pytest.fixture(scope="module")
def trial() -> Iterator[interruption.Trial]:
    with interruption.fleet("int") as booted:
        yield booted


@pytest.mark.parametrize("playbook", [interruption.SITE, interruption.LIMITS, interruption.REMOVE])
def test_the_run_after_one_that_was_killed_makes_it_whole(trial: interruption.Trial, playbook: str) -> None:
    interruption.prove(trial, playbook, 3)
