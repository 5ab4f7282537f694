"""A diagnosis: a cause from the catalogue, with the evidence for it and how sure it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Iterable, Optional

from mpsctl.causes.catalogue import CAUSES
from mpsctl.model import foreign, messages

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
SUREST_FIRST = (CERTAIN, LIKELY, POSSIBLE)
MOST_EVIDENCE = 12
"""Lines of evidence that are kept for one diagnosis: a log in a loop repeats itself. Of many instances each has one."""
GENERAL = ("foreign-daemon",)
"""Causes that say what is there; of equally sure ones those that say what is wrong with it come first."""
LINE_CHARACTERS, REMEDY_CHARACTERS = 500, 2000
"""How much of one is kept: evidence quotes what others wrote."""
_PLACEHOLDER = "INSTANCE"


@dataclass(frozen=True)
class Diagnosis:
    """One cause. ``name`` is stable and of the catalogue, ``evidence`` the lines on which it stands.

    ``certainty`` is certain (it was looked at, and nothing else explains it), likely, or possible (worth a look).
    ``instances`` are those that it speaks of, empty where it speaks of the host, or of what was brought.
    """

    name: str
    cause: str
    evidence: tuple[str, ...]
    remedy: str
    certainty: str
    instances: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if messages.AS_IDS:
            object.__setattr__(self, "cause", messages.said(self.name, self.cause))
            object.__setattr__(self, "remedy", messages.said(self.name, self.remedy))
            object.__setattr__(self, "evidence", tuple(messages.said(self.name, line) for line in self.evidence))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(name: str, certainty: str, *evidence: str, remedy: Optional[str] = None) -> Diagnosis:
    """A diagnosis with the catalogue's words; ``remedy`` where this host's own figures make a better one.

    Each line of evidence is escaped and cut: it may quote what others wrote.
    """
    known = CAUSES[name]
    lines = tuple(foreign.shown(line, LINE_CHARACTERS) for line in evidence)
    return Diagnosis(name, known.cause, lines, foreign.shown(remedy or known.remedy, REMEDY_CHARACTERS), certainty)


def of_instance(name: str, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """The same diagnoses as of an instance, which each line of evidence names."""
    return [
        replace(one, evidence=tuple(f"instance {name}: {line}" for line in one.evidence), instances=(name,))
        for one in found
    ]


def quoted(line: str) -> str:
    """A line that somebody else wrote, as evidence: escaped, and cut to its beginning."""
    return foreign.shown(line.strip(), LINE_CHARACTERS - 100)


def at_most(certainty: str, limit: str) -> str:
    """The less sure one of two certainties."""
    return max(certainty, limit, key=SUREST_FIRST.index)


def in_order(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """One diagnosis for each name, certainty and remedy, with all its evidence, the surest first.

    Of one instance a name comes once, as sure as its surest evidence makes it. What is known of no instance, by an
    error's text for one, belongs to the first of that name. Of equally sure ones the order stays, but for GENERAL:
    whoever finds several names what lies deepest first.
    """
    together: dict[tuple[str, tuple[str, ...]], Diagnosis] = {}
    for one in found:
        _add(together, (one.name, one.instances), one)
    for key in [key for key in together if not key[1]]:
        whose = next((other for other in together if other[0] == key[0] and other[1]), None)
        if whose is not None:
            _add(together, whose, together.pop(key))
    together = {key: replace(one, evidence=_few(one.evidence, MOST_EVIDENCE)) for key, one in together.items()}
    alike: dict[tuple[str, str, str], list[Diagnosis]] = {}
    for one in together.values():
        alike.setdefault((one.name, one.certainty, one.remedy), []).append(one)
    return sorted(
        map(_united, alike.values()), key=lambda each: (SUREST_FIRST.index(each.certainty), each.name in GENERAL)
    )


def _add(together: dict[Any, Diagnosis], key: Any, one: Diagnosis) -> None:
    first = together.get(key)
    if first is None:
        together[key] = one
        return
    surer = min(first, one, key=lambda each: SUREST_FIRST.index(each.certainty))
    instances = tuple(dict.fromkeys((*first.instances, *one.instances)))
    together[key] = replace(surer, evidence=(*first.evidence, *one.evidence), instances=instances)


def _few(evidence: tuple[str, ...], most: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(evidence))[:most]


def _united(every: list[Diagnosis]) -> Diagnosis:
    """One diagnosis of those that differ in their evidence alone. Each keeps some of it."""
    lines = tuple(line for one in every for line in _few(one.evidence, max(1, MOST_EVIDENCE // len(every))))
    names = tuple(dict.fromkeys(name for one in every for name in one.instances))
    remedy = every[0].remedy
    if len(names) == 1:
        remedy = remedy.replace(_PLACEHOLDER, names[0])
    return replace(every[0], evidence=_few(lines, len(lines)), instances=names, remedy=remedy)
