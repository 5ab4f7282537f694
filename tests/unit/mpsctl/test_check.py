"""Outcomes of checks, and the exit codes of monitoring plugins."""

from __future__ import annotations

import pytest

from mpsctl.values import check
from mpsctl.values.check import CANNOT_TELL, FAIL, PASS, WARN


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
    assert check.worst(levels) == worst
    assert check.exit_code(levels) == code
