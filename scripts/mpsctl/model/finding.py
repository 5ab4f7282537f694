"""What a judgement found: the common form of everything that is told of a host, to people and to monitoring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping

from mpsctl.model import foreign, messages

OK, WARNING, CRITICAL, UNKNOWN = "ok", "warning", "critical", "unknown"
"""The levels, which are the words for a state in every verb; monitoring plugins have the same four."""

NOTHING, RELOAD, RESTART, START, ENABLE, CONVERGE, UNDRAIN, PERSON = (
    "nothing",
    "reload",
    "restart",
    "start",
    "enable",
    "converge",
    "undrain",
    "a person",
)
"""What mends a finding. ``CONVERGE`` is a run of site.yml, by a step that is none of the instance's own unit."""
BY_A_RUN = frozenset({RELOAD, RESTART, START, ENABLE, CONVERGE})
"""A run of site.yml takes these steps by itself."""

_EXIT_CODES = {OK: 0, WARNING: 1, CRITICAL: 2, UNKNOWN: 3}
_WORST_FIRST = (CRITICAL, WARNING, UNKNOWN, OK)

_MOST_OF_LINE, _MOST_EVIDENCE = 1000, 100


@dataclass(frozen=True)
class Reason:
    """Why something is amiss: ``cause`` by its name in the catalogue of `mpsctl doctor`, ``line`` is the evidence.

    ``cause`` is empty where it is not known, ``remedy`` where the catalogue's own is the best there is.
    """

    cause: str
    line: str
    remedy: str = ""

    def __post_init__(self) -> None:
        _bound(self, "line", "remedy")
        if messages.AS_IDS:
            object.__setattr__(self, "line", messages.said(self.cause or "reason", self.line))
            object.__setattr__(self, "remedy", messages.said(self.cause or "reason", self.remedy))

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class Check:
    """One judgement and its outcome.

    ``name`` is its stable id of words with hyphens, ``level`` one of ok, warning, critical and unknown. ``found`` and
    ``expected`` are one line each, ``remedy`` says what to do (empty where nothing is to be done), ``mends`` what
    brings it about, and ``evidence`` holds the lines on which it stands; ``facts`` are the values behind it.
    ``reasons`` are given where they say more than the name, deepest first.
    """

    name: str
    level: str
    found: str
    expected: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    mends: str = NOTHING
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _bound(self, "found", "expected", "remedy")
        lines = [foreign.shown(line, _MOST_OF_LINE) for line in self.evidence[:_MOST_EVIDENCE]]
        left_out = len(self.evidence) - len(lines)
        object.__setattr__(self, "evidence", (*lines, *([f"and {left_out} more"] if left_out else [])))
        object.__setattr__(self, "reasons", self.reasons[:_MOST_EVIDENCE])
        if messages.AS_IDS:
            for sentence in ("found", "expected", "remedy"):
                object.__setattr__(self, sentence, messages.said(self.name, getattr(self, sentence)))
            object.__setattr__(self, "evidence", tuple(messages.said(self.name, line) for line in self.evidence))

    @property
    def amiss(self) -> bool:
        return self.level in (CRITICAL, WARNING)


def _bound(of: object, *names: str) -> None:
    """Whatever a judgement quotes: a field is one line that prints, and no longer than a person reads."""
    for name in names:
        object.__setattr__(of, name, foreign.shown(getattr(of, name), _MOST_OF_LINE))


def worst(levels: Iterable[str]) -> str:
    """The worst of some levels: critical before warning before unknown before ok."""
    return min(levels, key=_WORST_FIRST.index, default=OK)


def plugin_exit_code(levels: Iterable[str]) -> int:
    """The exit code that monitoring plugins have for the worst level: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
    return _EXIT_CODES[worst(levels)]
