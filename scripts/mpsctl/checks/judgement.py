"""What a judgement is, which verbs make it, and how it is made: what goes wrong in it is told and hides no other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Callable, Iterable, Mapping, NamedTuple, Optional

from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.model.finding import CRITICAL, NOTHING, OK, PERSON, UNKNOWN, WARNING, Check, Reason, worst
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.host import HostFacts

STATUS, VERIFY, HEALTH, SITE = "status", "verify", "health", "site"
EVERY_VERB = (STATUS, VERIFY, HEALTH, SITE)
"""What can be critical is judged by all of them, so that none says that all is well where another fails."""
LOG_TRUSTED = "log_trusted"
"""The fact of a check that stands on a log which others could have written: false."""
OPEN_LOG = "the daemon's log could have been written by others (see daemon-log): this is no proof"
VERIFY_ONLY = (VERIFY,)
"""For advice, and for what takes long to look at: it can warn at most."""


class Finding(NamedTuple):
    """A check without its name."""

    level: str
    found: str
    expected: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    mends: str = NOTHING
    facts: Mapping[str, object] = {}


@dataclass(frozen=True)
class View:
    """What a judgement looks at: the host, and the instance where it is of one."""

    host: HostFacts
    instance: Optional[InstanceFacts] = None

    @property
    def one(self) -> InstanceFacts:
        assert self.instance is not None
        return self.instance


@dataclass(frozen=True)
class Judgement:
    """``name`` is stable; ``verbs`` are those that make it; ``summary`` is its sentence in the documentation."""

    name: str
    of_host: bool
    verbs: tuple[str, ...]
    judge: Callable[[View], Finding]
    summary: str


def judgement(
    of_host: bool = False, verbs: tuple[str, ...] = EVERY_VERB, by_log: bool = False
) -> Callable[[Callable[[View], Finding]], Judgement]:
    """Make a judgement of a function: its name with hyphens is the id, its docstring the sentence.

    ``by_log`` is for those that stand on the daemon's log: they warn at most where others could have written that.
    """

    def make(function: Callable[[View], Finding]) -> Judgement:
        summary = " ".join((function.__doc__ or "").split())
        judge = _by_log(function) if by_log else function
        return Judgement(function.__name__.strip("_").replace("_", "-"), of_host, verbs, judge, summary)

    return make


def passed(found: str, *evidence: str, facts: Mapping[str, object] = {}) -> Finding:
    return Finding(OK, found, evidence=evidence, facts=facts)


def warned(
    found: str,
    expected: str,
    remedy: str,
    *evidence: str,
    reasons: Iterable[Reason] = (),
    mends: str = PERSON,
    facts: Mapping[str, object] = {},
) -> Finding:
    return Finding(WARNING, found, expected, remedy, evidence, tuple(reasons), mends, facts)


def failed(
    found: str,
    expected: str,
    remedy: str,
    *evidence: str,
    reasons: Iterable[Reason] = (),
    mends: str = PERSON,
    facts: Mapping[str, object] = {},
) -> Finding:
    return Finding(CRITICAL, found, expected, remedy, evidence, tuple(reasons), mends, facts)


def unknown(why: str, expected: str = "", remedy: str = "", *evidence: str) -> Finding:
    return Finding(UNKNOWN, why, expected, remedy, evidence)


def _by_log(judge: Callable[[View], Finding]) -> Callable[[View], Finding]:
    @wraps(judge)
    def judged(view: View) -> Finding:
        return by_log_alone(view, judge(view))

    return judged


def by_log_alone(view: View, finding: Finding) -> Finding:
    """A finding that stands on the daemon's log: it warns at most where others could have written that."""
    if view.one.log_trusted is not False or finding.level not in (CRITICAL, WARNING):
        return finding
    facts = {**finding.facts, LOG_TRUSTED: False}
    return finding._replace(level=WARNING, evidence=(*finding.evidence, OPEN_LOG), facts=facts)


def make(judgements: Iterable[Judgement], view: View) -> list[Check]:
    """Make each judgement; nothing is raised."""
    return [Check(one.name, *_make_one(one, view)) for one in judgements]


def _make_one(one: Judgement, view: View) -> Finding:
    try:
        return one.judge(view)
    except (MpsctlError, OSError) as error:
        return unknown(one_line(error))
    except Exception as error:
        return unknown(f"{type(error).__name__}: {error} (a fault of mpsctl)", remedy="report it")


def worst_of(findings: Iterable[Finding]) -> Optional[Finding]:
    """One finding for several of one kind, of which each is of another device or server: the worst, which says how many
    more are as bad, and shows them. None where there is none."""
    every = list(findings)
    level = worst(each.level for each in every)
    alike = [each for each in every if each.level == level]
    if len(alike) < 2:
        return alike[0] if alike else None
    lines = [each.found for each in alike]
    return alike[0]._replace(
        found=some(lines),
        evidence=(*lines, *(line for each in alike for line in each.evidence)),
        reasons=tuple(reason for each in alike for reason in each.reasons),
    )


def some(lines: Iterable[str]) -> str:
    """One line for one finding, or the first with how many more there are."""
    every = list(lines)
    return every[0] + (f" (and {len(every) - 1} more)" if len(every) > 1 else "")
