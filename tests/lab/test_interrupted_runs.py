"""Five interrupted runs, and five where a host cannot write, so that each run, interruption and obstacle comes once.

150 of each are in tests/soak.
"""

from __future__ import annotations

from typing import Iterator

import pytest

from . import interruption


@pytest.fixture(scope="module")
def trial() -> Iterator[interruption.Trial]:
    with interruption.fleet("int") as booted:
        yield booted


@pytest.mark.parametrize("obstacles", [False, True])
def test_the_run_after_one_that_was_interrupted_makes_it_whole(trial: interruption.Trial, obstacles: bool) -> None:
    interruption.prove(trial, 5, obstacles)
