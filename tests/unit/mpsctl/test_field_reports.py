"""The table of field reports in docs/field-reports.md, held against the program and against the tests of its rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from mpsctl.causes.catalogue import CAUSES
from mpsctl.checks.report import JUDGEMENTS

TABLE = Path(__file__).parents[3] / "docs" / "field-reports.md"
CHECKS = {one.name for one in JUDGEMENTS}
TESTED = {
    id_
    for path in Path(__file__).parent.glob("test_field_reports_*.py")
    for id_ in re.findall(r'@report\("(B\d+)"\)', path.read_text())
}
"""The ids of the reports that have a test."""


class Row(NamedTuple):
    id: str
    symptom: str
    source: str
    prevented: str
    checks: list[str]
    causes: list[str]


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| B\d+ \|", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            id_, symptom, source, prevented, checks, causes = cells
            found.append(
                Row(id_, symptom, source, prevented, re.findall("`(.*?)`", checks), re.findall("`(.*?)`", causes))
            )
    return found


def test_there_are_46_reports_each_once() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) == len(set(ids)) == 46
    assert "46 of them" in TABLE.read_text()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_a_row_is_whole(row: Row) -> None:
    assert row.id in TESTED
    assert row.symptom
    assert row.source == "public file" or re.fullmatch(r"<https://\S+>", row.source)
    assert row.causes
    assert set(row.causes) <= set(CAUSES)
    assert row.checks
    assert set(row.checks) <= CHECKS


def test_every_test_has_its_row() -> None:
    assert {row.id for row in rows()} == TESTED
