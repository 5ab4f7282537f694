"""Which causes a check that is amiss can have: the one place where checks are turned into diagnoses."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Iterable, Mapping, Optional

from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, at_most, diagnose, of_instance
from mpsctl.checks.judgement import LOG_TRUSTED, OPEN_LOG
from mpsctl.checks.report import Report
from mpsctl.model.finding import CRITICAL, WARNING, Check, Reason

CAUSES_OF_CHECKS: Mapping[str, str] = {
    "other-managers": "several-managers",
    "foreign-daemons": "foreign-daemon",
    "boot-order": "ordering-cycle",
    "persistence": "persistence-off",
}
"""The cause of the catalogue behind each check that gives no reasons. A check that is not here is its own cause."""

ADVICE = ("default-mode", "unit-active")
"""Checks whose warnings are advice and explain no symptom, where they give no reasons."""

SEEN = (
    "drained",
    "foreign-daemon",
    "default-pipe-directory",
    "left-over-server",
    "memory-held-by-others",
    "card-full",
    "own-limit-reached",
    "waiting-behind-another-user",
    "waiting-for-daemon",
    "no-place",
    "more-than-places",
    "server-gone",
    "client-fault",
    "distributed-job",
    "nccl-ranks-on-one-gpu",
    "clients-hidden-by-pid-namespace",
)
"""Causes that their checks looked at themselves: they are certain, however little the check makes of them."""

_AT_MOST = {
    "no-driver": LIKELY,
    "no-daemon": LIKELY,
    "daemon-hangs": LIKELY,
    "session-held": LIKELY,
    "open-log": LIKELY,
    "started-before-daemon": LIKELY,
    "visible-devices-renumbered": LIKELY,
    "persistence-off": POSSIBLE,
    "several-managers": LIKELY,
}
"""Causes for which what checks can see has other explanations as well."""


def because(reason: Reason, certainty: str) -> Diagnosis:
    """The diagnosis of a reason that a check gave, at most as sure as its cause ever is by that alone."""
    return diagnose(reason.cause, certainty_of(reason.cause, certainty), reason.line, remedy=reason.remedy or None)


def unproven(one: Diagnosis) -> Diagnosis:
    """A diagnosis that stands on a log which others could have written: possible at most, and it says so."""
    return replace(one, certainty=at_most(one.certainty, POSSIBLE), evidence=(*one.evidence, OPEN_LOG))


def certainty_of(cause: str, certainty: str) -> str:
    """How sure a cause is by a check that would make it as sure as ``certainty``."""
    return CERTAIN if cause in SEEN else at_most(certainty, _AT_MOST.get(cause, CERTAIN))


def of_report(report: Report, names: Collection[str]) -> list[Diagnosis]:
    """What the checks of the host and of the named instances tell; each of an instance's says so."""
    found = of_checks(report.host)
    for name, checks in report.instances.items():
        if name in names:
            found += of_instance(name, of_checks(checks))
    return found


def of_checks(checks: Iterable[Check]) -> list[Diagnosis]:
    """The diagnoses of each check that is critical or warns: with its evidence, and its own remedy if it has one."""
    return [diagnosis for one in checks if one.amiss for diagnosis in _of_check(one)]


def _of_check(one: Check) -> list[Diagnosis]:
    sure = CERTAIN if one.level == CRITICAL else LIKELY
    if one.facts.get(LOG_TRUSTED) is False:
        return [unproven(because(reason, POSSIBLE)) for reason in one.reasons]
    if one.reasons:
        return [because(reason, sure) for reason in one.reasons]
    if one.level == WARNING and one.name in ADVICE:
        return []
    cause = CAUSES_OF_CHECKS.get(one.name)
    if cause is not None:
        certainty = certainty_of(cause, sure)
        return [diagnose(cause, certainty, one.found, *one.evidence, remedy=one.remedy or None)]
    words = f"found {one.found}, expected {one.expected}"
    sure = CERTAIN if one.level == CRITICAL else POSSIBLE
    return [Diagnosis(one.name, words, (one.found, *one.evidence), one.remedy, sure)]


def reasons_of(checks: Iterable[Check], causes: Optional[Collection[str]] = None) -> list[Reason]:
    """The reasons of the checks that are amiss, of all causes or of some."""
    return [reason for one in checks if one.amiss for reason in one.reasons if causes is None or reason.cause in causes]
