"""How the verbs that judge show what they found: one word for a state, and one form for what is amiss."""

from __future__ import annotations

from typing import Mapping, Sequence

from mpsctl.cli.output import colour, say
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check

COLOURS: Mapping[str, str] = {OK: "32", WARNING: "33", CRITICAL: "31", UNKNOWN: "35"}
_SIGNS: Mapping[str, str] = {CRITICAL: "!", WARNING: "!", UNKNOWN: "?"}


def word(level: str) -> str:
    """The word for a state, coloured where it stands alone: ok, WARNING, CRITICAL or UNKNOWN."""
    return colour(level if level == OK else level.upper(), COLOURS[level])


def amiss(checks: Sequence[Check], indent: str = "") -> None:
    """Show what is critical and what warns, the worst first, with what is expected and what to do; then in one line what
    is not known."""
    for level in (CRITICAL, WARNING):
        for one in (each for each in checks if each.level == level):
            say(indent, colour(_SIGNS[level], COLOURS[level]), f" {one.name}: {one.found}")
            if one.expected:
                say(f"{indent}    expected: {one.expected}")
            if one.remedy:
                say(f"{indent}    do: {one.remedy}")
    unknown(checks, indent)


def unknown(checks: Sequence[Check], indent: str = "") -> None:
    """Show in one line what is not known: what a missing daemon or driver hides is one thing, not twenty."""
    left = [one for one in checks if one.level == UNKNOWN]
    if not left:
        return
    reasons = list(dict.fromkeys(one.found for one in left))
    more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
    names = ", ".join(one.name for one in left)
    say(indent, colour(_SIGNS[UNKNOWN], COLOURS[UNKNOWN]), f" not known: {names}: {reasons[0]}{more}")
