"""Outcomes of checks, and the exit codes of monitoring plugins."""

from __future__ import annotations

import pytest

from mpsctl.model import finding
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN


@pytest.mark.parametrize(
    ("levels", "worst", "code"),
    [
        ([], PASS, 0),
        ([PASS, PASS], PASS, 0),
        ([PASS, CANNOT_TELL], CANNOT_TELL, 3),
        ([CANNOT_TELL, WARN], WARN, 1),
        ([WARN, FAIL, CANNOT_TELL], FAIL, 2),
    ],
)
def test_the_worst_decides_and_sets_the_exit_code(levels: list[str], worst: str, code: int) -> None:
    assert finding.worst(levels) == worst
    assert finding.exit_code(levels) == code
