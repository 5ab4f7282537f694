"""From what is desired and what was found to a list of steps, in the order in which they are taken.

First what disturbs nobody: files, what starts at boot, live reloads. Then the instances that end or start with no
client in the way, then the drains, then what waits for them. Which step an instance needs its checks say, by what
mends them.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Iterator, Optional, Sequence

from mpsctl.converge import (
    cdi_steps,
    client_steps,
    consent,
    mode_changes,
    ours,
    policy_steps,
    remains_steps,
    statement,
)
from mpsctl.converge.door_steps import OpenFrontDoor, TakeFrontDoorAway
from mpsctl.converge.file_steps import InstallProgram, WriteFile, differs, masked, text_of
from mpsctl.converge.instance_steps import RestoreComputeMode, StopAndRemoveInstance
from mpsctl.converge.policy_steps import LoadPolicy, UnloadPolicy
from mpsctl.converge.request import File
from mpsctl.converge.situation import Situation
from mpsctl.converge.statement import INSTANCE_WRITTEN, Statement
from mpsctl.converge.step import Step
from mpsctl.converge.unit_steps import Enable, Reload, ReloadSystemd, Restart, RestartUnit, Start, why_masked
from mpsctl.model.checked_values import REFUSE
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import RELOAD, RESTART
from mpsctl.model.instance import Instance
from mpsctl.model.names import DOOR_SOCKET, UNIT
from mpsctl.observe import host as host_look
from mpsctl.observe import remains
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import InstanceFacts
from mpsctl.store import configuration, saved_compute_modes
from mpsctl.store.world import World

LIMITS = (
    *("limit", "thread_percentage", "client_priority", "expected_clients", "over_expected", "shares"),
    *("limit_bypass", "limit_bypass_grace_s", "client_wait_s"),
)
"""What of an instance a live reload brings about, clients or not; of how many there may be only the front door is told,
and nobody who is in is ended."""

NO_LONGER_DESIRED = "the instance is no longer desired"
FRONT_DOOR = "front-door"
"""The check by its id."""
_NO_DOOR_YET = "the front door is new, and lets clients in once the limits were read back"
_FILES_CHANGED = "it was starting when its files were written, and came up by the former ones"
_BEING_RELOADED = "it is being reloaded, and what that reads of its file cannot be told"


def steps(found: Situation, program: Optional[Path]) -> list[Step]:
    """The plan. ``program`` is the file this program runs from, None where it is not to be installed."""
    writes = list(_writes(found))
    policy = list(policy_steps.steps(found.world, found.request.selinux_module))
    enables, doors = list(_enables(found)), list(_doors(found))
    removals, restarts = list(_removals(found)), list(_restarts(found))
    containers: list[Step] = []
    if not found.request.atomic:  # a change of limits is no change for what clients export
        moving = {step.desired.name: step.moves_from for step in restarts}
        writes += client_steps.environment_files(found, moving)
        containers += cdi_steps.steps(found.world, found.request.cdi, _kept(found))
    writes += client_steps.writes(found)
    taken_off = list(client_steps.removals(found))
    _note_what_they_wait_for(found, restarts)
    request = found.request
    ordered = consent.order(
        found.world,
        [*removals, *restarts, *_unit_restarts(found, writes), *_starts(found, writes, [*removals, *restarts])],
        found.host.instances,
        REFUSE if request.atomic else request.on_clients,
        request.drain_timeout_s,
    )
    return [
        *InstallProgram.where_it_differs(found.world, program),
        *writes,
        *taken_off,
        *(step for step in policy if isinstance(step, LoadPolicy)),
        *enables,
        *_systemd_reload(found, [*writes, *taken_off], enables),
        *doors,
        *_doors_that_go(found),
        *_reloads(found, [step.instance for step in doors]),
        *ordered,
        *_reloads_instead(found, restarts),
        *_left_behind(found),
        *containers,  # last: a folder of others in which nothing can be written costs nothing else
        *remains_steps.of(remains.look(found.world, host_look.public_in_use(found.world, found.host))),
        *(step for step in policy if isinstance(step, UnloadPolicy)),
    ]


def _writes(found: Situation) -> Iterator[WriteFile]:
    for file in map(ours.with_binary, found.request.files):
        if masked(file.path):
            yield WriteFile(file, blocked=why_masked(file.path.name))
        elif differs(file):
            moved = file.path.name == DOOR_SOCKET
            yield WriteFile(file, blocked=_why_not_moved(found) if moved else None)
    for instance in found.desired.instances:
        file = File(found.world.places.conf(instance.name), found.desired.texts[instance.name])
        if differs(file):
            former = _former(found.world, instance.name)
            beyond = _beyond_limits(found.world, former, instance)
            changes = (
                (Statement(INSTANCE_WRITTEN, instance.name),)
                if former is None
                else statement.changes(instance.name, former, text_of(file.path) or "", instance, file.content)
            )
            yield WriteFile(
                file, instance.name, live=beyond is None, beyond_limits=beyond or "", changes=tuple(changes)
            )


def _kept(found: Situation) -> list[Instance]:
    """The instances that the host has after the run: the desired ones, and those whose GPU is gone for now."""
    missing = [_former(found.world, name) for name in found.gpu_missing]
    return [*found.desired.instances, *(one for one in missing if one is not None)]


def _former(world: World, name: str) -> Optional[Instance]:
    """The desired state that an instance's file has; None where it is absent or refused."""
    try:
        return configuration.load(world, name)
    except BadValue:
        return None


def _beyond_limits(world: World, former: Optional[Instance], instance: Instance) -> Optional[str]:
    """What an instance's desired state changes besides its limits, in a few words, or None."""
    if former is None:
        return f"{world.places.conf(instance.name)} is absent or is refused"
    names = [field.name for field in fields(Instance) if field.name not in LIMITS]
    differing = [name for name in names if getattr(former, name) != getattr(instance, name)]
    return f"instance {instance.name} gets another {' and '.join(differing)}" if differing else None


def _units(found: Situation) -> list[UnitFacts]:
    """The units of the desired instances and the other desired ones."""
    mine = [found.facts(one.name) for one in found.desired.instances]
    doors = [facts.door.unit for facts in mine if facts.door is not None]
    return [*(facts.unit for facts in mine), *doors, *found.units.values()]


def _why_blocked(unit: UnitFacts) -> Optional[str]:
    return why_masked(unit.name) if unit.load_state == "masked" else None


def _enables(found: Situation) -> Iterator[Enable]:
    names = {unit: one.name for one in found.desired.instances for unit in (one.unit, one.door)}
    without_door = {one.door for one in found.desired.instances if not one.front_door}
    for unit in _units(found):
        if unit.name not in without_door and (not unit.enabled or unit.load_state == "masked"):
            yield Enable(unit.name, names.get(unit.name), _why_blocked(unit))


def _doors(found: Situation) -> Iterator[OpenFrontDoor]:
    for instance in found.desired.instances:
        facts = found.facts(instance.name)
        door = facts.door
        moves_from = _stands_elsewhere(facts) if not facts.active else None
        if not instance.front_door or door is None:
            continue
        masked_unit = next((one for one in (door.unit, door.service) if one.load_state == "masked"), None)
        if door.stands and moves_from is None and masked_unit is None:
            continue
        if facts.serves_public is not None:  # the restart that moves it from there brings the door
            continue
        blocked = why_masked(masked_unit.name) if masked_unit is not None else None
        if moves_from is not None:
            blocked = blocked or _why_not_moved(found)
        yield OpenFrontDoor(door.unit, Path(instance.pipe_directory), instance.name, blocked, moves_from)


def _doors_that_go(found: Situation) -> Iterator[TakeFrontDoorAway]:
    """Where a daemon runs behind one, its restart takes it away."""
    for instance in found.desired.instances:
        facts = found.facts(instance.name)
        door = facts.door
        if instance.front_door or door is None or not (door.unit.active or door.unit.enabled):
            continue
        if not facts.active or facts.serves_public == facts.public:
            yield TakeFrontDoorAway(door.unit, Path(instance.pipe_directory), instance.name)


def _systemd_reload(found: Situation, changes: Sequence[Step], enables: Sequence[Enable]) -> Iterator[Step]:
    places = found.world.places
    stale = any(unit.needs_daemon_reload for unit in _units(found)) or any(step.due for step in enables)
    if stale or client_steps.reloads(places.units, changes):
        yield ReloadSystemd()
    if client_steps.reloads(places.user_units, changes):
        yield client_steps.ReloadUserManagers()


def _removals(found: Situation) -> Iterator[StopAndRemoveInstance]:
    for name in found.leftovers:
        facts = found.facts(name)
        has = [*facts.serves, *(device.uuid for device in facts.devices)]
        yield StopAndRemoveInstance(
            name=name,
            unit=facts.unit,
            desired=facts.desired,
            conf=found.world.places.conf(name),
            needs={name: NO_LONGER_DESIRED},
            frees=_freed(found, name, has),
            modes=mode_changes.of_removal(found, name),
        )


def _restarts(found: Situation) -> Iterator[Restart]:
    for instance in found.desired.instances:
        facts = found.facts(instance.name)
        why = _why_restart(found, instance.name)
        if facts.active and why is not None:
            frees = _freed(found, instance.name, facts.serves)
            moves_from = _stands_elsewhere(facts)
            blocked = _why_blocked(facts.unit) or (_why_not_moved(found) if moves_from is not None else None)
            yield Restart(
                desired=instance,
                why=why,
                needs={instance.name: why},
                frees=frees,
                moves_from=moves_from,
                door_goes=not instance.front_door and facts.serves_public is None,
                blocked=blocked,
                modes=mode_changes.of_instance(found, instance),
            )


def _stands_elsewhere(facts: InstanceFacts) -> Optional[Path]:
    """The public directory at which clients find an instance, where another one is desired."""
    return facts.found_at if facts.found_at != facts.public else None


def _why_not_moved(found: Situation) -> Optional[str]:
    """Why no front door can be moved now. systemd closes the sockets of all as soon as it knows their new place, and
    who came to the old one then would run outside MPS."""
    moving = [found.facts(one.name) for one in found.desired.instances]
    busy = [facts.name for facts in moving if _stands_elsewhere(facts) and (facts.clients or facts.clients_unknown)]
    if not busy:
        return None
    return (
        f"found clients in the instances {', '.join(busy)}, expected none while mps_pipe_root changes; end them"
        " (`mpsctl drain`) and run it again"
    )


def _why_restart(found: Situation, name: str) -> Optional[str]:
    """Why an instance's daemon has to be restarted, or None."""
    return next((one.found for one in found.report.instances[name] if one.mends == RESTART), None)


def _freed(found: Situation, name: str, devices: Sequence[str]) -> tuple[str, ...]:
    """The GPUs among an instance's devices that no other instance has then, as far as their saved mode is on record."""
    world, gone = found.world, {name, *found.leftovers}
    others = [one for one in configuration.names(world) if one not in gone and one not in found.desired.texts]
    kept = saved_compute_modes.had_by(world, others, found.gpus)
    kept |= {device.gpu.uuid for one in found.desired.instances for device in found.facts(one.name).devices}
    kept |= {uuid for other, facts in found.host.instances.items() if other != name for uuid in facts.serves}
    return tuple(uuid for uuid in devices if uuid in found.host.saved_modes and uuid not in kept)


def _note_what_they_wait_for(found: Situation, restarts: Sequence[Restart]) -> None:
    ending = {*found.leftovers, *(step.desired.name for step in restarts)}
    for step in restarts:
        step.needs = {**step.needs, **_served_by_others(found, step.desired, ending)}


def _served_by_others(found: Situation, instance: Instance, ending: set[str]) -> dict[str, str]:
    """Which instances that end serve a device of this one: until then it cannot have it."""
    owners = {uuid: name for name in ending for uuid in found.facts(name).serves}
    return {
        owner: f"the instance {owner!r} still serves {device}"
        for device in found.facts(instance.name).devices
        for owner in [owners.get(device.uuid)]
        if owner is not None and owner != instance.name
    }


def _starts(found: Situation, writes: Sequence[WriteFile], endings: Sequence[Step]) -> Iterator[Start]:
    paths = {step.file.path for step in writes}
    shared = found.world.places.units / UNIT in paths
    ending = {step.instance for step in endings if step.instance is not None}
    for instance in found.desired.instances:
        unit = found.facts(instance.name).unit
        if not unit.active:
            written = shared or found.world.places.conf(instance.name) in paths
            anew = unit.active_state == "activating" and written
            yield Start(
                unit=unit.name,
                before=unit.active_state,
                instance=instance.name,
                anew=instance if anew else None,
                needs={
                    **_served_by_others(found, instance, ending),
                    **({instance.name: _FILES_CHANGED} if anew else {}),
                },
                blocked=_why_blocked(unit),
                modes=mode_changes.of_instance(found, instance),
            )
    for unit in found.units.values():
        if not unit.active:
            yield Start(unit.name, unit.active_state, blocked=_why_blocked(unit))


def _unit_restarts(found: Situation, writes: Sequence[WriteFile]) -> Iterator[RestartUnit]:
    anew = {step.file.path.name for step in writes if step.due}
    for unit in found.units.values():
        if unit.active and unit.name in anew:
            yield RestartUnit(unit.name, "its file has changed")


def _reloads(found: Situation, opened: Sequence[Optional[str]]) -> Iterator[Reload]:
    """``opened`` are the instances that get a front door by this run: what waits there is let in by a reload."""
    for instance in found.desired.instances:
        facts, why = found.facts(instance.name), _why_reload(found, instance.name)
        if not why and instance.name in opened and not (facts.door and facts.door.lets_in_to == facts.pid):
            why = _NO_DOOR_YET
        if facts.active and why and _why_restart(found, instance.name) is None:
            modes = mode_changes.of_instance(found, instance)
            yield Reload(facts.unit.name, why, instance.name, blocked=_why_blocked(facts.unit), modes=modes)


def _why_reload(found: Situation, name: str) -> str:
    """What a reload brings about, empty where there is nothing."""
    facts = found.facts(name)
    lines = [one.found for one in found.report.instances[name] if one.mends == RELOAD]
    if facts.unit.active_state == "reloading":
        lines.append(_BEING_RELOADED)
    return "; ".join(lines)


def _reloads_instead(found: Situation, restarts: Sequence[Restart]) -> Iterator[Reload]:
    """A restart that is withheld holds back no limit: the clients to come get the new ones all the same. Nor does it
    keep them out, where an earlier run that was killed did."""
    for step in restarts:
        facts, why = found.facts(step.desired.name), _why_reload(found, step.desired.name)
        closed = found.report.check(step.desired.name, FRONT_DOOR).mends == RELOAD
        if closed or not all(value.in_force for value in facts.every_value):
            blocked = _why_blocked(facts.unit)
            modes = mode_changes.of_instance(found, step.desired)
            yield Reload(facts.unit.name, why, facts.name, instead_of=step, blocked=blocked, modes=modes)


def _left_behind(found: Situation) -> list[Step]:
    """GPUs that an interrupted run left in a mode of ours."""
    in_use = [device.gpu.uuid for one in found.desired.instances for device in found.facts(one.name).devices]
    in_use += [uuid for facts in found.host.instances.values() for uuid in facts.serves]
    for daemon in found.host.processes.daemons:
        # Also one whose instance has no file any more. One that does not tell may serve any.
        if daemon.roots or daemon.uid is None:
            served = found.host.devices(daemon)
            in_use += [gpu.uuid for gpu in found.gpus] if served is None else served
    left = saved_compute_modes.left_behind(found.world, found.gpus, in_use)
    return [RestoreComputeMode(gpu, mode) for gpu, mode in left]
