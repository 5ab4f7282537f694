"""Taking everything of ours off a host: clients first, then daemons, then the GPUs' modes, then the files.

What is not ours stays: files without our first line, the daemon's package, other people's units and processes.
An instance whose clients are still connected is withheld, and what all instances share stays with it. A second
run finds nothing to do, and an interrupted run is finished by the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import hardware, systemd
from mpsctl.checks import words
from mpsctl.converge import cdi_steps, client_steps, consent, ours, own_folders, policy_steps, walk
from mpsctl.converge.answer import Answer
from mpsctl.converge.file_steps import RemovePartialFile
from mpsctl.converge.instance_steps import RestoreComputeMode, StopAndRemoveInstance
from mpsctl.converge.remains_steps import RemoveFormerDirectory, RemoveTransport
from mpsctl.converge.removal_steps import (
    RemoveDirectory,
    RemoveFile,
    RemoveMetrics,
    RemoveProgram,
    RemoveScript,
    StopHelpers,
)
from mpsctl.converge.step import Occupied, Step, withhold
from mpsctl.converge.unit_steps import ReloadSystemd
from mpsctl.lifecycle import drain, host_lock
from mpsctl.model.checked_values import DRAIN_TIMEOUT_S, REFUSE, TERMINATE, WAIT
from mpsctl.model.errors import MpsctlError, NotReady, one_line
from mpsctl.model.names import HEALTH, SCRIPTS, SLURMD_DROP_IN, TIMER, UNIT_FILES
from mpsctl.model.places import Places
from mpsctl.observe import host as observed
from mpsctl.observe import remains
from mpsctl.observe.asked import unit_of
from mpsctl.observe.facts import ClientFacts
from mpsctl.observe.host import HostFacts
from mpsctl.observe.remains import Remains
from mpsctl.store import configuration, metrics_file, record, saved_compute_modes
from mpsctl.store.world import World

_HELPERS = (TIMER, HEALTH)
_WHY = "everything of this project is to go"
_SHARED = "it needs what all instances share"


@dataclass(frozen=True)
class _Found:
    """The host, the files of units that are ours, and what has our names and is somebody else's.

    ``instances`` are those that go, ``theirs`` those that run by a file that is not ours: they need what all share.
    """

    world: World
    host: HostFacts
    units: tuple[Path, ...]
    foreign: tuple[Path, ...]
    instances: tuple[str, ...]
    theirs: tuple[str, ...]
    remains: Remains


def remove(world: World, check: bool, on_clients: str = REFUSE, drain_timeout_s: int = DRAIN_TIMEOUT_S) -> Answer:
    """Remove everything of ours from this host, or with ``check`` only say what would go.

    ``on_clients`` is what becomes of connected clients, as in a request. ``pending`` in the answer names the instances
    that still have some, ``error`` what could not be removed.
    """
    answer = Answer(check, host={**hardware.os_release(), "driver_version": hardware.driver_version()})
    try:
        if check:
            host_lock.wait_for_others(world)
            _remove(world, on_clients, drain_timeout_s, answer)
        else:
            with host_lock.taken(world):
                _remove(world, on_clients, drain_timeout_s, answer)
    except host_lock.Busy as error:
        return Answer(check, error=str(error))
    except (MpsctlError, OSError) as error:
        answer.error = one_line(error)
    return answer


def _remove(world: World, on_clients: str, drain_timeout_s: int, answer: Answer) -> None:
    found = _look(world)
    for path in found.foreign:
        answer.warn(f"{path} is not ours and stays")
    steps = _steps(found, on_clients, drain_timeout_s)
    weak = found.host.weak_points
    blocked = "; ".join(walk.blocked(steps))
    answer.error = ours.untrusted(weak) if weak else _modes_would_be_lost(found) or blocked or None
    if answer.error:
        return
    try:
        if answer.check or not any(step.due for step in steps):
            walk.describe(steps, answer)
        else:
            context = walk.take(world, steps, answer)
            answer.error = _what_is_left(world, steps, context.problems)
    finally:
        answer.pending = walk.pending(world, steps)
    for path in _survivors(world.places):
        answer.warn(f"{path} stays until a reboot or a later removal: processes that it names came in and still live")
    withheld = [_why_withheld(world, steps, on_clients, drain_timeout_s), _why_shared_stays(found)]
    answer.error = answer.error or "; ".join(line for line in withheld if line) or None


def _look(world: World) -> _Found:
    """:raises NotReady: if systemd does not answer."""
    places = world.places
    every = configuration.names(world)
    mine = [name for name in every if ours.is_ours(places.conf(name))]
    without_file = [name for name in systemd.enabled_instances(places.units) if name not in every]
    ran = record.instances(world)  # a file may have lost its first line, or be gone, since
    host = observed.look(world, list(dict.fromkeys([*mine, *without_file, *ran])))
    if host.systemd_unread is not None:
        raise NotReady(host.systemd_unread.words)
    units = [places.units / name for name in UNIT_FILES]
    foreign = [path for path in units if ours.is_others(path)]
    foreign += [places.conf(name) for name in every if name not in mine]
    foreign += [path for path in _scripts(places) if ours.is_others(path)]
    foreign += _foreign_in_ours(places)
    foreign += [places.cdi] if ours.is_others(places.cdi) else []
    running = [name for name in ran if host.instances[name].pid or host.instances[name].active]
    return _Found(
        world,
        host,
        tuple(path for path in units if ours.is_ours(path)),
        tuple(foreign),
        tuple(dict.fromkeys([*mine, *without_file, *(name for name in running if name not in every)])),
        tuple(name for name in running if name in every and name not in mine),
        remains.look(world, observed.public_in_use(world, host)),
    )


def _modes_would_be_lost(found: _Found) -> Optional[str]:
    unread = found.host.gpus.unread
    # Without a loaded driver there is no mode to bring back: it forgets them.
    if unread is None or hardware.driver_version() is None:
        return None
    if not saved_compute_modes.directory(found.world).is_dir():
        return None
    return f"the compute modes cannot be brought back, so nothing was removed: {words.unread(unread)}"


def _steps(found: _Found, on_clients: str, drain_timeout_s: int) -> list[Step]:
    world = found.world
    instances = {name: found.host.instances[name] for name in found.instances}
    needs = dict.fromkeys([*instances, *found.theirs], _SHARED)
    helpers = tuple(path.name for path in found.units if path.name in _HELPERS)
    removals = [
        StopAndRemoveInstance(name, facts.unit, facts.desired, world.places.conf(name), {name: _WHY})
        for name, facts in instances.items()
    ]
    steps: list[Step] = [
        *([StopHelpers(helpers, _timer_link(world.places), needs)] if helpers else []),
        *removals,
        *_modes(found, needs),
        *(RemoveFile(path, needs) for path in [*found.units, *_variables(world.places, instances)]),
        *cdi_steps.removal(world, needs),
        *_drop_ins(world.places, needs),
        *_remains(found, needs),
        *_metrics(world, needs),
        *(RemoveScript(path, needs) for path in _scripts(world.places) if ours.is_ours(path)),
    ]
    unload = [policy_steps.unload(world, needs)] if policy_steps.record(world).exists() else []
    directories = list(_directories(world, needs))
    program = [RemoveProgram(world.places.program, needs)] if world.places.program.exists() else []
    if steps or unload or directories or program:  # an interrupted run may have come as far as the units
        steps.append(ReloadSystemd(after_removal=True, needs=needs))
    steps += [*unload, *directories, *program]
    withhold(steps, {name: Occupied() for name in found.theirs})
    return consent.order(world, steps, instances, on_clients, drain_timeout_s)


def _variables(places: Places, instances: Collection[str]) -> Iterator[Path]:
    """Files of variables of ours that no instance has any more: the others go with theirs."""
    mine = {places.client_environment(name) for name in instances}
    if places.configuration.is_dir():
        yield from (
            path for path in sorted(places.configuration.glob("*.env")) if path not in mine and ours.is_ours(path)
        )


def _drop_ins(places: Places, needs: Mapping[str, str]) -> list[Step]:
    """Those of units that are wired to an instance: where an instance stays, they stay with it."""
    steps: list[Step] = [client_steps.RemoveDropIn(path, needs) for path in client_steps.present(places)]
    if client_steps.reloads(places.user_units, steps):
        steps.append(client_steps.ReloadUserManagers(needs))
    return steps


def _timer_link(places: Places) -> Path:
    return places.units / "timers.target.wants" / TIMER


def _modes(found: _Found, needs: Mapping[str, str]) -> Iterator[RestoreComputeMode]:
    for gpu in found.host.gpus.gpus:
        mode = saved_compute_modes.to_bring_back(found.world, gpu)
        if mode is not None:
            yield RestoreComputeMode(gpu, mode, needs)


def _metrics(world: World, needs: Mapping[str, str]) -> Iterator[RemoveMetrics]:
    known = metrics_file.read(world.places)
    if known is not None:
        yield RemoveMetrics(Path(known.folder) / metrics_file.NAME, needs)


def _scripts(places: Places) -> list[Path]:
    """What Slurm runs of ours, and what orders its daemon."""
    return [*(places.scripts / name for name in SCRIPTS), places.units / SLURMD_DROP_IN]


def _remains(found: _Found, needs: Mapping[str, str]) -> Iterator[Step]:
    """Halves of files, and the link that would start the timer at boot where its file has gone before it."""
    places, left = found.world.places, found.remains
    for path in left.partial:  # those in directories of ours go whole
        if not path.is_relative_to(places.state) and path.parent != places.cache:
            yield RemovePartialFile(path, needs)
    yield from (RemoveFormerDirectory(path, name, needs) for name, path in left.public)
    yield from (RemoveTransport(path, needs) for path in left.transports)
    link = _timer_link(places)
    if link.is_symlink() and not link.exists():
        yield RemovePartialFile(link, needs)


def _directories(world: World, needs: Mapping[str, str]) -> Iterator[RemoveDirectory]:
    lock = world.places.host_lock
    for path in (world.places.state, world.places.cache):
        if path.is_dir() and (own_folders.look(world.places, path).mine or not any(path.iterdir())):
            yield RemoveDirectory(path, needs)
    # The lock goes, with its directory, at the end of the run.
    if lock.parent.is_dir() and any(path != lock for path in own_folders.look(world.places, lock.parent).mine):
        yield RemoveDirectory(lock.parent, needs, keeps=lock)


def _survivors(places: Places) -> list[Path]:
    """Notes of processes of instances that are gone."""
    folder = places.host_lock.parent
    found = own_folders.look(places, folder).survivors if folder.is_dir() else []
    return [path for path in found if not places.conf(path.parent.name).exists()]


def _foreign_in_ours(places: Places) -> Iterator[Path]:
    for folder in (places.state, places.cache, places.host_lock.parent):
        if folder.is_dir():
            yield from own_folders.look(places, folder).others


def _what_is_left(world: World, steps: Sequence[Step], problems: Sequence[str]) -> Optional[str]:
    """Nothing is reported gone that the host still shows."""
    gone = [step for step in steps if isinstance(step, StopAndRemoveInstance) and step.due]
    shown = world.systemd.show([step.unit.name for step in gone])
    left = [f"{unit} is {one.get('ActiveState')}" for unit, one in shown.items() if one.get("MainPID", "0") != "0"]
    left += [str(step.conf) for step in gone if step.conf.exists()]
    if all(step.due for step in steps):
        left += [str(step.path) for step in _directories(world, {})]
        if world.places.host_lock.parent.is_dir():  # a measurement's, that goes on beside this run
            left += [
                f"{path}, which a control daemon serves"
                for path in own_folders.look(world.places, world.places.host_lock.parent).served
            ]
    if not left:
        return None
    return f"still there: {', '.join([*left, *problems])}; run it again, or see `systemctl status`"


def _why_withheld(world: World, steps: Sequence[Step], on_clients: str, drain_timeout_s: int) -> Optional[str]:
    """The line for the instances that were left as they are, or None."""
    withheld = {
        step.name: step.withheld.clients
        for step in steps
        if isinstance(step, StopAndRemoveInstance) and step.withheld is not None
    }
    if not withheld:
        return None
    remedies = {
        REFUSE: "mps_on_clients is refuse; end their clients, or set it to wait or terminate",
        WAIT: f"waited {drain_timeout_s} s for them; end their clients, or set mps_on_clients to terminate",
        TERMINATE: "they could not be ended",
    }
    remedy = [remedies[on_clients]] if any(withheld.values()) else []
    if not all(withheld.values()):
        remedy.append("nobody is ended unseen, whatever mps_on_clients says: see why with `mpsctl verify`")
    who = "; ".join(f"{name} ({_told(world, clients)})" for name, clients in withheld.items())
    return f"instances were left as they are, with what all share, for their clients: {who}; {'; '.join(remedy)}"


def _why_shared_stays(found: _Found) -> Optional[str]:
    """The line for instances that run by files that are not ours, or None."""
    if not found.theirs:
        return None
    files = ", ".join(str(found.world.places.conf(name)) for name in found.theirs)
    units = " ".join(unit_of(name) for name in found.theirs)
    return (
        f"what all instances share was left as it is: found {units} running by files that are not ours ({files}),"
        f" expected none; `systemctl stop {units}` once nobody uses it, then run it again"
    )


def _told(world: World, clients: Sequence[ClientFacts]) -> str:
    if not clients:
        return "its clients cannot be counted"
    return drain.told([(0, client) for client in clients], world.now_s())
