"""What a run does with a host that is its own for the time: it looks, plans, takes the steps, and looks again."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import hardware, trusted
from mpsctl.adapters.trusted import WeakPoint
from mpsctl.checks import words
from mpsctl.checks.report import Report
from mpsctl.converge import cdi_steps, client_steps, ours, plan, read_back, situation, walk
from mpsctl.converge.answer import Answer
from mpsctl.converge.door_steps import OpenFrontDoor
from mpsctl.converge.file_steps import InstallProgram, WriteFile
from mpsctl.converge.request import Request
from mpsctl.converge.situation import Situation
from mpsctl.converge.step import Step
from mpsctl.converge.unit_steps import Restart, Start
from mpsctl.model.errors import BadValue, DoesNotFit, MpsctlError, NotReady, one_line
from mpsctl.model.names import UNIT
from mpsctl.observe import gpus as observed_gpus
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World


def run(world: World, request: Request, check: bool, program: Optional[Path], begun: Asked) -> Answer:
    """As ``reconcile``, which has the host lock by now; ``begun`` is what it began to ask."""
    answer = Answer(check=check, host={**hardware.os_release(), "driver_version": hardware.driver_version()})
    answer.missing = _missing()
    gpus = observed_gpus.answer(begun.nvml)
    if gpus.unread is not None:
        # Where the daemon is missing that is what matters: its package may bring the driver as well.
        answer.error = None if answer.missing else words.unread(gpus.unread)
        return answer
    answer.host["driver_version"] = gpus.driver
    try:
        desired = situation.desired(request, gpus.gpus)
        client_steps.drop_ins(world.places, request.clients, desired.instances, gpus.gpus)
        answer.warnings += situation.fit(world, desired, gpus)
    except NotReady as error:
        answer.error = str(error)
        return answer
    except BadValue as error:
        answer.refused = f"{error.variable or 'mps_instances'}: {error}"
        answer.does_not_fit = isinstance(error, DoesNotFit)
        return answer
    try:
        found = situation.look(world, request, desired, gpus, begun)
        _plan_and_act(found, program, answer)
    except (MpsctlError, OSError) as error:
        answer.error = one_line(error)
    return answer


def _plan_and_act(found: Situation, program: Optional[Path], answer: Answer) -> None:
    steps = plan.steps(found, program)
    if found.request.atomic:
        from mpsctl.converge import rollback  # seldom needed

        answer.refused = rollback.refusal(steps)
    if answer.refused or (answer.missing and not answer.check):
        return
    weak = _weak_points(found, steps)
    if weak:
        answer.error = ours.untrusted(weak)
        return
    answer.instances = read_back.instances(found.report, found.desired.instances)
    _note(found, steps, answer)
    try:
        if answer.check or not any(step.due for step in steps):
            walk.describe(steps, answer)
            _note_for_people(found, steps, answer)
        elif found.request.atomic:
            _take_whole(found, steps, answer)
        else:
            _take(found, steps, answer)
    finally:
        answer.pending = walk.pending(found.world, steps)
        blocked = walk.blocked(steps)
        if blocked:
            answer.error = "; ".join([*blocked, *([answer.error] if answer.error else [])])


def _weak_points(found: Situation, steps: Sequence[Step]) -> list[WeakPoint]:
    """Where others than root can change something, but for the files that these steps write anew."""
    anew = {step.file.path for step in steps if isinstance(step, WriteFile)}
    anew |= {step.place for step in steps if isinstance(step, InstallProgram)}
    moves = (step.moves_from for step in steps if isinstance(step, (OpenFrontDoor, Restart)))
    left = [place for place in moves if place is not None]
    weak = [*found.host.weak_points, *(one for one in map(trusted.weak_point, left) if one is not None)]
    return [one for one in weak if one.place not in anew]


def _take(found: Situation, steps: Sequence[Step], answer: Answer) -> Report:
    """Take the steps; what was read back."""
    context = walk.take(found.world, steps, answer)
    return read_back.judge(found, steps, context.problems, answer)


def _take_whole(found: Situation, steps: Sequence[Step], answer: Answer) -> None:
    """Take the steps and, where they do not come into force, put the host back to what it had."""
    from mpsctl.converge import rollback

    former = rollback.remember(found, steps)
    try:
        seen = _take(found, steps, answer)
        answer.error = answer.error or rollback.problem_of_withheld(seen, steps)
    except (MpsctlError, OSError) as error:
        answer.error = one_line(error)
    if not answer.error:
        return
    answer.put_back_why, after = rollback.put_back(found.world, former)
    answer.put_back = answer.put_back_why is None
    answer.changed = not answer.put_back
    if after is not None:
        answer.instances.update(read_back.instances(after, former.instances))
    outcome = "the former limits are in force again" if answer.put_back else f"NOT put back: {answer.put_back_why}"
    answer.error = f"{answer.error}; {outcome}"


def _missing() -> Optional[dict[str, str]]:
    for what in (hardware.CONTROL_DAEMON, hardware.SERVER):
        if hardware.binary(what) is None:
            places = ", ".join(hardware.SEARCH_PATH)
            return {"what": what, "message": f"{what} was found in none of {places}; install it or set mps_package"}
    return None


def _note(found: Situation, steps: Sequence[Step], answer: Answer) -> None:
    """What is worth knowing of the plan beside its steps."""
    if answer.missing and steps:
        answer.warn(
            f"{answer.missing['what']} is not installed yet: the unit is shown with its usual path {ours.USUAL_DAEMON}"
        )
    anew = {step.instance for step in steps if isinstance(step, (Start, Restart))}
    if any(isinstance(step, WriteFile) and step.file.path.name == UNIT for step in steps) and any(
        instance.name not in anew for instance in found.desired.instances
    ):
        answer.warn(f"{UNIT} has changed: daemons that run take it at their next start, none is restarted for it")
    without_device = cdi_steps.without_device(found.request.cdi, found.desired.instances)
    if without_device is not None:
        answer.warn(without_device)
    for name in found.gpu_missing:
        unit, conf = f"mps-control@{name}.service", found.world.places.conf(name)
        answer.warn(
            f"instance {name} is kept, but GPU {name} is gone from this host: see `mpsctl gpus` and dmesg; if it is to"
            f" stay away, `systemctl disable --now {unit}` and remove {conf}"
        )
    for gpu in found.gpus:
        if gpu.pre_volta:
            answer.warn(f"{gpu} is older than Volta: at most 16 clients, no memory protection between them")


def _note_for_people(found: Situation, steps: Sequence[Step], answer: Answer) -> None:
    staying = {step.instance for step in steps if step.withheld is not None}
    names = [*(one.name for one in found.desired.instances), *(name for name in found.leftovers if name in staying)]
    for line in read_back.for_people(found.report, names, steps):
        answer.warn(line)
