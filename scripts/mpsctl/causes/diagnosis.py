"""A diagnosis: a cause from the catalogue, with the evidence for it and how sure it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Iterable, Optional

from mpsctl.causes.catalogue import CAUSES
from mpsctl.model import foreign
from mpsctl.model.finding import Reason

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
_SUREST_FIRST = (CERTAIN, LIKELY, POSSIBLE)
_AT_MOST = {
    "foreign-daemon": POSSIBLE,
    "no-daemon": LIKELY,
    "persistence-off": POSSIBLE,
    "session-held": LIKELY,
    "started-before-daemon": LIKELY,
    "visible-devices-renumbered": LIKELY,
}
"""Causes for which what proofs can see has other explanations as well."""
_MOST_OF_LINE, _MOST_OF_REMEDY = 500, 2000
MOST_EVIDENCE = 12
"""Lines of evidence that are kept for one diagnosis: a log in a loop repeats itself."""


@dataclass(frozen=True)
class Diagnosis:
    """One cause. ``name`` is stable and of the catalogue, ``evidence`` the lines on which it stands.

    ``certainty`` is certain (nothing else explains the evidence), likely, or possible (worth a look).
    """

    name: str
    cause: str
    evidence: tuple[str, ...]
    remedy: str
    certainty: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(name: str, certainty: str, *evidence: str, remedy: Optional[str] = None) -> Diagnosis:
    """A diagnosis with the catalogue's words; ``remedy`` where this host's own figures make a better one.

    Evidence quotes what others wrote, whole lines of logs as well: each line is escaped, and cut to 500 characters.
    """
    known = CAUSES[name]
    lines = tuple(foreign.shown(line, _MOST_OF_LINE) for line in evidence)
    return Diagnosis(name, known.cause, lines, foreign.shown(remedy or known.remedy, _MOST_OF_REMEDY), certainty)


def because(reason: Reason, certainty: str) -> Diagnosis:
    """The diagnosis of a reason that a proof gave, at most as sure as its cause ever is by that alone."""
    at_most = _AT_MOST.get(reason.cause, CERTAIN)
    return diagnose(
        reason.cause, max(certainty, at_most, key=_SUREST_FIRST.index), reason.line, remedy=reason.remedy or None
    )


def in_order(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """One diagnosis for each name, with all its evidence, the surest first.

    Of equally sure ones the order stays: whoever finds several names what lies deepest first.
    """
    together: dict[str, Diagnosis] = {}
    for one in found:
        first = together.get(one.name)
        if first is not None:
            surer = min(first, one, key=lambda each: _SUREST_FIRST.index(each.certainty))
            one = replace(surer, evidence=(*first.evidence, *one.evidence))
        together[one.name] = replace(one, evidence=tuple(dict.fromkeys(one.evidence))[:MOST_EVIDENCE])
    return sorted(together.values(), key=lambda each: _SUREST_FIRST.index(each.certainty))
