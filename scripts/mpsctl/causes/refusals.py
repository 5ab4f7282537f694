"""Why the front door refused clients with error 805, as it wrote to the journal itself."""

from __future__ import annotations

from typing import Iterable, Mapping, Optional

from mpsctl.adapters import procfs
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, Diagnosis, diagnose
from mpsctl.checks import waits
from mpsctl.model.errors import MpsctlError
from mpsctl.store import door_journal
from mpsctl.store.door_journal import Refusal
from mpsctl.store.world import World

_RECENT_S = 3600.0
_WAITED = "waited"
CAUSES: Mapping[str, str] = {
    "drained": "drained",
    "stopped": "unit-not-active",
    "disabled": "unit-not-active",
    "skipped": "unit-not-active",
    "failed": "unit-not-active",
    "not-found": "unit-not-active",
    "masked": "unit-masked",
    "not-in-group": "not-in-group",
    "unknown-greeting": "unknown-greeting",
    "server-ended": "server-gone",
    "over-expected": "no-place",
    "limit-bypass": "limit-bypassed",
    "daemon-silent": "daemon-jammed",
}
"""By the front door's word; of whom it let wait the cause is what he waited for."""
EVERY = tuple(dict.fromkeys((*CAUSES.values(), *(one.cause for one in waits.WAITS.values()))))
"""All that a refusal can stand for."""


def of_instance(world: World, name: str) -> list[Diagnosis]:
    """Why clients of an instance were refused within the last hour: likely what somebody met who got error 805."""
    return list(_diagnoses(_read(world, name, _RECENT_S), LIKELY))


def of_process(world: World, name: str, pid: int) -> list[Diagnosis]:
    """Why a process was refused that lives on."""
    age_s = procfs.age_s(procfs.started_at(pid), world.now_s())
    return [] if age_s is None else list(_diagnoses(_read(world, name, age_s + 1, pid), CERTAIN))


def _read(world: World, name: str, last_s: float, pid: Optional[int] = None) -> list[Refusal]:
    try:
        return door_journal.refusals(world, name, last_s, pid)
    except MpsctlError:
        return []


def _diagnoses(found: Iterable[Refusal], certainty: str) -> Iterable[Diagnosis]:
    lines: dict[str, list[str]] = {}
    for one in found:
        cause = cause_of(one)
        if cause is not None:
            lines.setdefault(cause, []).append(one.line)
    for cause, every in lines.items():
        more = [f"and {len(every) - 3} more before"] if len(every) > 3 else []
        yield diagnose(cause, certainty, *every[-3:], *more)


def cause_of(one: Refusal) -> Optional[str]:
    """The cause in the catalogue, None where none is known."""
    if one.reason == _WAITED:
        wait = waits.WAITS.get(one.waited_for)
        return None if wait is None else wait.cause
    return CAUSES.get(one.reason)
