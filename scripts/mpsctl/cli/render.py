"""How the verbs that judge show what they found: one word for a state, and one form for what is amiss."""

from __future__ import annotations

from typing import Mapping, Sequence

from mpsctl.checks.report import Report
from mpsctl.cli.output import colour, say
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check, worst

COLOURS: Mapping[str, str] = {OK: "32", WARNING: "33", CRITICAL: "31", UNKNOWN: "35"}


def word(level: str) -> str:
    """The word for a state, coloured where it stands alone: ok, WARNING, CRITICAL or UNKNOWN."""
    return colour(level if level == OK else level.upper(), COLOURS[level])


def host(found: Report, brief: bool = False) -> None:
    """Show what is amiss with the host; nothing where it is ok."""
    if found.word_of_host != OK:
        say("host: ", word(found.word_of_host))
        amiss(found.host, "  ", brief)


def amiss(checks: Sequence[Check], indent: str = "", brief: bool = False) -> None:
    """Show what is critical and what warns, the worst first, each with what is expected and what to do. Then show what
    is not known, each reason once: what a missing daemon or driver hides is one thing, not twenty.

    ``brief`` is for a journal: a line for each, and what is not known only where it is the worst.
    """
    for level in (CRITICAL, WARNING):
        for one in (each for each in checks if each.level == level):
            _amiss(one, indent, brief)
    if brief and worst(each.level for each in checks) != UNKNOWN:
        return
    hidden: dict[str, list[str]] = {}
    for one in (each for each in checks if each.level == UNKNOWN):
        hidden.setdefault(one.found, []).append(one.name)
    for reason, names in hidden.items():
        say(indent, colour("?", COLOURS[UNKNOWN]), f" {', '.join(names)}: {reason}")


def _amiss(one: Check, indent: str, brief: bool) -> None:
    remedy = f"; do: {one.remedy}" if brief and one.remedy else ""
    say(indent, colour("!", COLOURS[one.level]), f" {one.name}: {one.found}{remedy}")
    if not brief:
        for what, text in (("expected", one.expected), ("do", one.remedy)):
            if text:
                say(f"{indent}    {what}: {text}")
