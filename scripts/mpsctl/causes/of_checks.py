"""Which causes a failing check of the host can have: the one place where checks are turned into diagnoses."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Mapping

from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, because
from mpsctl.checks import training
from mpsctl.model.finding import FAIL, WARN, Check, Reason

CAUSES_OF_CHECKS: Mapping[str, str] = {
    "gpus-answer": "no-driver",
    "other-managers": "several-managers",
    "foreign-daemons": "foreign-daemon",
    "modes-without-daemon": "exclusive-without-daemon",
    "boot-order": "ordering-cycle",
    "unit-active": "unit-not-active",
    "restarts": "daemon-went-away",
    "other-daemons": "two-daemons-one-gpu",
    "front-door": "front door-closed",
    "pipe-directory-files": "cleaned-pipe-directory",
    "pipe-directory-access": "pipe-directory-closed",
    "gpus-served": "set-before-restart",
    "compute-mode": "not-as-desired",
    "persistence": "persistence-off",
    "memory-limit": "not-as-desired",
    "thread-percentage": "not-as-desired",
    "client-priority": "not-as-desired",
    "server-exits": "server-crash-loop",
    "client-pids": "clients-hidden-by-pid-namespace",
    "client-count": "too-many-clients",
    "client-connections": "max-connections-raised",
    "waiting-clients": "waiting-behind-another-user",
    training.JOBS: "distributed-job",
    training.RANKS: "nccl-ranks-on-one-gpu",
}
"""The cause of the catalogue behind each check that gives no reasons. A check that is not here is its own cause."""

ADVICE = ("compute-mode", "unit-active")
"""Checks whose warnings are advice and explain no symptom."""


def diagnose_checks(checks: Iterable[Check]) -> list[Diagnosis]:
    """The diagnoses of each check that failed or warns: with its own evidence, and its own remedy where it has one."""
    found = []
    for one in checks:
        if one.level not in (FAIL, WARN) or (one.level == WARN and one.name in ADVICE):
            continue
        name = CAUSES_OF_CHECKS.get(one.name, one.name)
        sure = CERTAIN if one.level == FAIL else LIKELY
        if one.reasons:
            found += [because(reason, sure) for reason in one.reasons]
        elif name in CAUSES:
            first = because(Reason(name, one.found, one.remedy), sure)
            found.append(replace(first, evidence=(one.found, *one.evidence)))
        else:
            cause = f"found {one.found}, expected {one.expected}"
            sure = CERTAIN if one.level == FAIL else POSSIBLE
            found.append(Diagnosis(name, cause, (one.found, *one.evidence), one.remedy, sure))
    return found
