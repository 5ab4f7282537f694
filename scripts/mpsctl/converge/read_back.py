"""Nothing is reported done that the host does not show: the look at the end of a run."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from mpsctl.checks.judgement import SITE
from mpsctl.checks.report import Report, report
from mpsctl.converge import policy_steps
from mpsctl.converge.answer import Answer
from mpsctl.converge.situation import Situation
from mpsctl.converge.step import Step
from mpsctl.converge.unit_steps import Enable, Start
from mpsctl.model.finding import BY_A_RUN, OK, PERSON, UNDRAIN, Check
from mpsctl.model.instance import Instance
from mpsctl.observe import host as observed
from mpsctl.observe import units
from mpsctl.store.world import World

_JOURNAL_LINES = 3


def look_again(world: World, instances: Sequence[Instance]) -> Report:
    """The host as it is now, with the desired state of these instances given."""
    return report(observed.look(world, [], instances), SITE)


def not_as_desired(seen: Report, name: str, touched: bool) -> list[str]:
    """What a run had to bring about and did not, in one line each.

    ``touched`` is an instance on which a step acted: that its daemon does not tell is no proof that all is well.
    """
    found = [one.found for one in seen.instances[name] if one.mends in BY_A_RUN and one.level != OK]
    facts = seen.facts.instances[name]
    proof = "daemon-answers" if facts.active else "unit-active"
    if touched and not facts.answer.complete:
        found += [one.found for one in seen.instances[name] if one.name == proof and one.found not in found]
    return found


def judge(found: Situation, steps: Sequence[Step], problems: Sequence[str], answer: Answer) -> Report:
    """Look again after the steps, and put into the answer what is there and what is wrong with it."""
    world = found.world
    seen = look_again(world, found.desired.instances)
    answer.instances = instances(seen, found.desired.instances)
    withheld = {step.instance for step in steps if step.withheld is not None}
    touched = {step.instance for step in steps if step.due}
    wrong, down = [], []
    for instance in found.desired.instances:
        name, facts = instance.name, seen.facts.instances[instance.name]
        if name in withheld or is_blocked(steps, name):
            continue
        lines = not_as_desired(seen, name, name in touched)
        if lines:
            wrong.append(f"{instance.unit}: {'; '.join(lines)}")
        if lines and not facts.active:
            down.append(f"its journal ends: {' | '.join(world.systemd.journal(instance.unit, _JOURNAL_LINES))}")
    wrong += [*_units_not_as_desired(world, found.units, steps), *down]
    wrong += policy_steps.not_as_desired(world, found.request.selinux_module)
    for line in [*exchanged(found, seen), *for_people(seen, [one.name for one in found.desired.instances], steps)]:
        answer.warn(line)
    if wrong:
        answer.error = " ".join([*wrong, *problems])
    else:
        for problem in problems:
            answer.warn(problem)
    return seen


def exchanged(found: Situation, seen: Report) -> list[str]:
    """A line for each instance that names its GPUs by what means other GPUs by now than when the run was planned."""
    lines = []
    for one in found.desired.instances:
        then = [device.uuid for device in found.facts(one.name).devices]
        now = [device.uuid for device in seen.facts.instances[one.name].devices]
        if then and now and then != now:
            lines.append(
                f"{one.name}: the GPUs of this host changed while the run went on: it was planned for"
                f" {', '.join(then)}, and GPUs={' '.join(one.gpus)} means {', '.join(now)} now"
            )
    return lines


def is_blocked(steps: Sequence[Step], name: str) -> bool:
    return any(step.instance == name and step.blocked is not None for step in steps)


def _blocked_units(steps: Sequence[Step]) -> set[str]:
    return {step.unit for step in steps if isinstance(step, (Enable, Start)) and step.blocked is not None}


def _units_not_as_desired(world: World, names: Iterable[str], steps: Sequence[Step]) -> list[str]:
    blocked = _blocked_units(steps)
    shown = units.look(world, list(names))
    return [
        f"{unit.name}: it is {unit.active_state}, expected enabled and active; see `systemctl status {unit.name}`"
        for unit in shown.values()
        if not (unit.active and unit.enabled) and unit.name not in blocked
    ]


def instances(seen: Report, desired: Sequence[Instance]) -> dict[str, Any]:
    """The desired instances as `mpsctl status --json` shows them."""
    return {one.name: seen.instance_as_json(one.name) for one in desired}


def for_people(seen: Report, names: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """What no run mends, of the host and of these instances: it is told, and fails no run."""
    # A unit that is masked is an error of the run, and told there.
    timer = seen.facts.timer
    masked = timer is not None and timer.name in _blocked_units(steps)
    found = [_line("", one) for one in seen.host if _is_for_people(one) and not (masked and one.name == "health-timer")]
    for name in names:
        of_unit = ("unit-enabled", "unit-active", "front-door") if is_blocked(steps, name) else ()
        checks = [one for one in seen.instances[name] if one.name not in of_unit]
        found += [_line(f"{name}: ", one) for one in checks if _is_for_people(one)]
    return found


def _is_for_people(one: Check) -> bool:
    return one.amiss and one.mends in (PERSON, UNDRAIN)


def _line(whose: str, one: Check) -> str:
    return f"{whose}{one.found}" + (f"; {one.remedy}" if one.remedy else "")
