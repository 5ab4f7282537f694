"""The table of attempts in docs/security.md is made from the tests of tests/attack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]

pytestmark = pytest.mark.sentenceless


def test_the_table_of_attempts_is_made_from_the_tests() -> None:
    script = PROJECT / "scripts" / "document_attacks.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_each_attempt_has_a_row_and_each_test_is_an_attempt() -> None:
    page = (PROJECT / "docs" / "security.md").read_text(encoding="utf-8")
    for module in sorted((PROJECT / "tests" / "attack").glob("test_*.py")):
        text = module.read_text(encoding="utf-8")
        assert text.count("\ndef test_") == text.count("\n@attempt(") == page.count(f"`{module.name}`:"), module.name
