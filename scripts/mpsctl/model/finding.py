"""What a check found: the common form of every proof that is told to people and to monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

PASS, WARN, FAIL, CANNOT_TELL = "pass", "warn", "fail", "cannot tell"
_EXIT_CODES = {PASS: 0, WARN: 1, FAIL: 2, CANNOT_TELL: 3}
_WORST_FIRST = (FAIL, WARN, CANNOT_TELL, PASS)


@dataclass(frozen=True)
class Reason:
    """Why something is amiss: ``cause`` by its name in the catalogue of `mpsctl doctor`, ``line`` is the evidence.

    ``cause`` is empty where it is not known, ``remedy`` where the catalogue's own is the best there is.
    """

    cause: str
    line: str
    remedy: str = ""

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    ``name`` is stable and made of words with hyphens, ``level`` one of pass, warn, fail and cannot tell. ``found`` and
    ``expected`` are one line each, ``remedy`` says what to do (empty where nothing is to be done), and ``evidence``
    holds the lines on which it stands. ``reasons`` are given where they say more than the name, deepest first.
    """

    name: str
    level: str
    found: str
    expected: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


def worst(levels: Iterable[str]) -> str:
    """The worst of some levels: fail before warn before cannot tell before pass."""
    return min(levels, key=_WORST_FIRST.index, default=PASS)


def exit_code(levels: Iterable[str]) -> int:
    """The exit code that monitoring plugins have for the worst level: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
    return _EXIT_CODES[worst(levels)]
