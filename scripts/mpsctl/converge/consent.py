"""What becomes of steps that would end clients: withheld, or behind a drain, as the operator consents.

A client that is connected is in the way of its instance's end. Whoever cannot be counted is in the way as well, and
nobody is waited for or ended unseen, whatever the operator consents to.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.checks import words
from mpsctl.converge.instance_steps import Drain
from mpsctl.converge.step import Occupied, Step, dependent, withhold
from mpsctl.model.checked_values import REFUSE, TERMINATE
from mpsctl.observe.facts import InstanceFacts
from mpsctl.store.world import World


def occupied(facts: InstanceFacts) -> Optional[Occupied]:
    """Who is in the way of an instance's end, or None."""
    lives = facts.main is None or facts.main.alive
    if facts.clients_unknown and lives:
        return Occupied(tuple(facts.clients), _why_unknown(facts))
    return Occupied(tuple(facts.clients)) if facts.clients else None


def _why_unknown(facts: InstanceFacts) -> str:
    if facts.unread is not None:
        return words.unread(facts.unread)
    if facts.refused is not None:
        return str(facts.refused)
    return facts.answer.words or f"the control daemon (pid {facts.pid}) {facts.answer.kind}"


def order(
    world: World, steps: Sequence[Step], instances: Mapping[str, InstanceFacts], on_clients: str, timeout_s: int
) -> list[Step]:
    """The steps, with a drain before those that have to wait for clients, and what is refused marked as withheld.

    What waits for nobody is taken before the drains: a wait holds up no other instance.
    """
    endings = {step.instance: step for step in steps if step.ends_instance and step.instance is not None}
    in_the_way = {name: found for name in endings for found in [occupied(instances[name])] if found is not None}
    drained = {name: found for name, found in in_the_way.items() if on_clients != REFUSE and found.unknown is None}
    withhold(steps, {name: found for name, found in in_the_way.items() if name not in drained})
    # What cannot end, whoever leaves, keeps its GPUs from those that are to have them.
    withhold([step for step in steps if step.blocked is None], {n: Occupied() for n, s in endings.items() if s.blocked})
    drains = [
        _drain(world, instances[name], endings[name], on_clients, timeout_s) for name in drained if endings[name].due
    ]
    late = dependent([step for step in steps if step.withheld is None], drained)
    return [*(step for step in steps if step not in late), *drains, *(step for step in steps if step in late)]


def _drain(world: World, facts: InstanceFacts, ending: Step, on_clients: str, timeout_s: int) -> Step:
    assert facts.desired is not None  # else its clients could not be counted
    return Drain(
        desired=facts.desired,
        purpose=ending.noun,
        why=ending.needs[facts.name],
        clients=tuple(facts.clients),
        ages_s=tuple(procfs.age_s(client.started_at, world.now_s()) for client in facts.clients),
        timeout_s=timeout_s,
        end_clients=on_clients == TERMINATE,
    )
