"""Walking a plan: told step by step in check mode, taken step by step in a run.

The list and its objects are the same in both.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Iterable, Sequence

from mpsctl.adapters import procfs
from mpsctl.converge.answer import Answer, Difference
from mpsctl.converge.instance_steps import clients_as_json
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.lifecycle import acts
from mpsctl.store.world import World


def describe(steps: Sequence[Step], answer: Answer) -> None:
    """Put what would be done into the answer."""
    for step in steps:
        if step.due:
            _tell(step, step.differences(), step.statements(), answer)
    answer.changed = bool(answer.steps)


def take(world: World, steps: Sequence[Step], answer: Answer) -> Context:
    """Take the steps that are due, and put those into the answer that were begun and changed something.

    :raises MpsctlError, OSError: if the plan cannot be followed any further.
    """
    # As it is now: the next step may change it.
    before = {step: (step.differences(), step.statements()) for step in steps if step.blocked is None}
    context = Context(world, steps)
    try:
        for _, group in groupby(steps, type):
            due = [step for step in group if step.due]
            if not due:
                continue
            try:
                type(due[0]).act(due, context)
            finally:
                for step in due:
                    if step.due and step not in context.in_vain:
                        acts.tell(world, acts.CONVERGE, step.text, step.instance)
                        _tell(step, *before[step], answer)
    finally:
        answer.changed = bool(answer.steps)
        answer.progress += context.progress
        for line in context.warnings:
            answer.warn(line)
    return context


def _tell(step: Step, differences: Iterable[Difference], statements: Iterable[Statement], answer: Answer) -> None:
    answer.actions.append(step.text)
    answer.steps.append(step.as_json(statements))
    answer.diff += [one.as_json() for one in differences]


def pending(world: World, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """What was planned and withheld, one entry for each instance: why, and for which clients."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        if step.withheld is None or step.instance is None:
            continue
        clients = step.withheld.clients
        ages_s = [procfs.age_s(client.started_at, world.now_s()) for client in clients]
        entry = {
            "instance": step.instance,
            "kind": step.kind,
            "why": step.withheld.why,
            "clients": clients_as_json(clients, ages_s),
        }
        found.setdefault(step.instance, entry)
    return list(found.values())


def blocked(steps: Sequence[Step]) -> list[str]:
    """Why steps cannot work, as far as that is known before they are taken."""
    return list(dict.fromkeys(step.blocked for step in steps if step.blocked is not None))
