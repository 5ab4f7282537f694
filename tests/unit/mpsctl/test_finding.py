"""Outcomes of checks, and the exit codes of monitoring plugins."""

from __future__ import annotations

import pytest

from mpsctl.model import finding
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING


@pytest.mark.parametrize(
    ("levels", "worst", "code"),
    [
        ([], OK, 0),
        ([OK, OK], OK, 0),
        ([OK, UNKNOWN], UNKNOWN, 3),
        ([UNKNOWN, WARNING], WARNING, 1),
        ([WARNING, CRITICAL, UNKNOWN], CRITICAL, 2),
    ],
)
def test_the_worst_decides_and_sets_the_exit_code(levels: list[str], worst: str, code: int) -> None:
    assert finding.worst(levels) == worst
    assert finding.plugin_exit_code(levels) == code
