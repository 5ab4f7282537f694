"""A few interrupted runs, and a few over hosts that cannot write; 150 of each are in tests/soak."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import interruption


@pytest.fixture(scope="module")
def trial() -> Iterator[interruption.Trial]:
    with interruption.fleet("int") as booted:
        yield booted


@pytest.mark.parametrize(("rounds", "obstacles"), [(6, False), (6, True)])
def test_the_run_after_one_that_was_interrupted_makes_it_whole(
    trial: interruption.Trial, rounds: int, obstacles: bool
) -> None:
    interruption.prove(trial, rounds, obstacles)
