"""What the look each minute writes to the journal: what is new, what was done, what is over. Nothing where all is well.

What stays amiss is told again each hour. Lines of an instance stand in the journal of its unit as well.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Iterator, Optional

from mpsctl.adapters import journal
from mpsctl.lifecycle import acts
from mpsctl.lifecycle.health import Health
from mpsctl.model import duration
from mpsctl.model.errors import MpsctlError
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check
from mpsctl.store import told
from mpsctl.store.told import Key, Told
from mpsctl.store.world import World

_PRIORITIES = {CRITICAL: journal.ERROR, WARNING: journal.WARNING, UNKNOWN: journal.WARNING, OK: journal.NOTICE}


def tell(world: World, done: Health) -> None:
    """Write what is to be told of a look, and remember it. Nothing is raised."""
    before, now_s = told.read(world.places), world.now_s()
    known: dict[Key, Told] = {}
    for instance, check in _amiss(done):
        key = (instance or "", check.name)
        if told.due(before.get(key), check.level, now_s):
            remedy = f"; do: {check.remedy}" if check.remedy else ""
            _write(world, instance, check.name, check.level, f"{check.level}: {check.name}: {check.found}{remedy}")
            known[key] = Told(check.level, now_s, before[key].since_s if key in before else now_s)
        else:
            known[key] = before[key]
    for (name, id_), last in before.items():
        if (name, id_) not in known and (not name or name in done.report.instances):
            _write(world, name or None, id_, OK, f"over: {id_} is ok again, {_for(now_s - last.since_s)}")
    for name, actions in done.actions.items():
        for action in actions:
            _write(world, name, action.kind, WARNING, f"{action.kind}: {action.line}")
    if known != before:
        with suppress(OSError, MpsctlError):
            told.write(world.places, known)


def _for(seconds: float) -> str:
    return f"it was not for {duration.text(seconds)} of looks"


def _amiss(done: Health) -> Iterator[tuple[Optional[str], Check]]:
    """What is critical and what warns; what is not known only where it is the worst: it is most often the consequence
    of what is amiss."""
    report = done.report
    of_all = [(None, report.word_of_host, report.host)]
    for instance, word, checks in [*of_all, *((name, report.word(name), c) for name, c in report.instances.items())]:
        yield from ((instance, check) for check in checks if check.amiss or (check.level == UNKNOWN == word))


def _write(world: World, instance: Optional[str], what: str, level: str, text: str) -> None:
    line = text if instance is not None else f"host: {text}"
    more = {"MPS_CHECK": what, "MPS_LEVEL": level}
    acts.write(world, "mps-health", acts.HEALTH_LOOK, line, instance, _PRIORITIES[level], more)
