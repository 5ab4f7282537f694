"""One instance: its unit, daemon, directory, limits, servers, clients and who else is on its GPUs."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import files, hardware, pipe, procfs, without_door
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.model import daemon_environment
from mpsctl.model.errors import BadValue, MpsctlError, Unreadable, one_line
from mpsctl.model.instance import Instance
from mpsctl.observe import daemons, facts, front_door, gpu_processes, process_facts, reachability, room, servers, units
from mpsctl.observe.daemons import MpsProcesses
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import (
    NO_ANSWER,
    NO_RIGHT,
    Answer,
    GpuFacts,
    InstanceFacts,
    MainProcess,
    SessionHolder,
    Unread,
)
from mpsctl.observe.reachability import User
from mpsctl.store import (
    configuration,
    desired_values,
    drains,
    fitting,
    measured,
    open_log,
    quiet,
    record,
    server_log,
)
from mpsctl.store.world import World


@dataclass(frozen=True)
class Surroundings:
    """What is known of the host before one instance is looked at."""

    gpus: GpuFacts
    processes: MpsProcesses
    whole_journal: bool = True
    """whether all lines of a unit's start are read, and not only those of late and of the servers that live"""


_LATE_S, _SPARE_S = 3600, 60
"""How far a look goes back in the journal. Each look of the health timer leaves some 15 lines an instance there, and a
start may be months old."""


Journal = Callable[[], DaemonLog]


def begin_journal(world: World, unit: UnitFacts, around: Surroundings) -> Optional[Journal]:
    """Read what the journal has of a unit's present start, beside whatever else is done; None where nothing runs."""
    if not unit.invocation or not unit.main_pid:
        return None
    return server_log.begin(world, unit.invocation, _last_s(world, unit, around))


def _last_s(world: World, unit: UnitFacts, around: Surroundings) -> Optional[float]:
    """The last hour, or as long as the oldest server of the unit's daemon lives; None where that is not known.

    Others than root are shown no line where they may read none: to tell that from silence all are read.
    """
    if around.whole_journal or around.processes.unread or os.geteuid() != 0 or unit.clock_set_s:
        return None  # journalctl counts back by the clock, which no line from before it was set goes by
    servers = [server.pid for server in around.processes.servers if server.daemon == unit.main_pid]
    ages_s = [procfs.age_s(procfs.started_at(pid), world.now_s()) for pid in servers]
    known_s = [age_s for age_s in ages_s if age_s is not None]
    return max([_LATE_S, *known_s]) + _SPARE_S if len(known_s) == len(servers) else None


def look(
    world: World,
    desired: Instance,
    unit: UnitFacts,
    door: tuple[UnitFacts, UnitFacts],
    around: Surroundings,
    journal: Optional[Journal] = None,
) -> InstanceFacts:
    """The facts of an instance whose desired state is given, whether or not it is what its file says. ``door`` are its
    front door's socket and service."""
    journal = journal or begin_journal(world, unit, around)
    found = InstanceFacts(desired.name, unit, desired)
    found.drain = drains.read(world, desired.name)
    found.short_lives = record.short_lives(world, desired.name) or 0
    _look_at_devices(found, desired, around.gpus)
    if unit.main_pid:
        found.main = main_process(unit.main_pid)
    _look_at_client_file(world, found)
    public = Path(desired.pipe_directory)
    found.door = front_door.look(world, desired, *door, found)
    jammed = found.door.notes.jammed
    found.jammed = jammed is not None and found.pid == jammed.daemon_pid and _is(found.pid, jammed.daemon_started_at)
    someone_there = found.door.stands or found.door.daemon_stands
    found.door_open = someone_there and found.pid != 0 and found.door.lets_in_to == found.pid
    served = found.main.serves.pipe_directory if found.main and found.main.serves else None
    if served is not None and served in (public, found.door.directory):
        own = served == world.places.pipe(desired.name) or pipe.is_former(served)
        found.serves_public = None if own else served
    private = served or (found.door.directory if unit.main_pid else None)
    _look_at_directory(world, found, desired, public, private)
    found.log_trusted = open_log.trusted(
        world, desired.name, private, unit.main_pid, procfs.started_at(unit.main_pid) if unit.main_pid else None
    )
    if unit.main_pid and private is not None:
        _ask(world, found, desired, private, around, journal)
    else:
        _read_journal(found, journal)
    _look_at_costs(world, found, around.gpus)
    found.waiting = front_door.waiting(found, world.now_s())
    found.room = room.of_instance(found, world.now_s())
    _look_at_processes(world, found, public, around)
    return found


def _is(pid: int, started_at: int) -> bool:
    """Whether this very process lives."""
    return procfs.started_at(pid) == started_at


def _look_at_devices(found: InstanceFacts, desired: Instance, gpus: GpuFacts) -> None:
    if gpus.unread is not None:
        return
    try:
        found.devices = configuration.resolve(desired, gpus.gpus)
    except BadValue as error:
        found.devices_refused = error


def _look_at_client_file(world: World, found: InstanceFacts) -> None:
    try:
        found.client_file = files.read_text(world.places.client_environment(found.name), believed=False)
    except Unreadable as error:
        found.client_file_unread = Unread("file", NO_ANSWER, one_line(error))


def main_process(pid: int) -> MainProcess:
    """The main process of a unit."""
    environment = procfs.environment(pid)
    return MainProcess(
        pid,
        procfs.alive(pid),
        procfs.state(pid),
        procfs.parent(pid),
        environment is not None,
        daemon_environment.of_process(environment),
        hardware.serves_several_users(procfs.command(pid)),
        hardware.replaced(pid),
    )


def _look_at_directory(
    world: World, found: InstanceFacts, desired: Instance, public: Path, private: Optional[Path]
) -> None:
    """Whether the host has those that may connect, and they get to the daemon's files, and whether these are there."""
    try:
        found.group_id = configuration.gid_of(desired)
    except BadValue as error:
        found.group_refused = error
    try:
        configuration.room_of(desired)
    except BadValue as error:
        found.room_refused = error
    user = _who_connects(desired, found.group_id)
    found.server_user_unknown = user is None
    found.connects_as = str(user or "")
    top = world.places.root
    found.closed_for_now = found.without_door and not found.door_open
    if user is not None and found.group_refused is None and not found.closed_for_now:
        try:
            found.access = reachability.closed_directory(public, user, top=top)
            found.access = found.access or reachability.closed_socket(public, user)
        except OSError as error:
            found.access = process_facts.Obstacle(process_facts.CANNOT_LOOK, public, words=error.strerror or "")
    if private is None or not found.pid:
        return
    found.missing_files = daemons.missing_files(private)
    with suppress(OSError):
        if private == found.serves_public:
            found.directory_closed = without_door.is_guarded(private)
        else:
            found.directory_closed = private == world.places.pipe(desired.name) and pipe.is_closed(private)
    if found.missing_files is not None:
        with suppress(OSError):
            has_pid_file = os.path.lexists(private / daemons.PID_FILE)
            found.guards_limits = True if has_pid_file else None if found.missing_files else False


def _who_connects(desired: Instance, group: Optional[int]) -> Optional[User]:
    """Whoever has to get in: every user, or the server's; None where this host does not have that one."""
    name = desired.server_user
    if name is None or desired.multi_user:
        return User(None) if group is None else User(None, (group,))
    import pwd

    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        return User(int(name)) if name.isdigit() else None
    return User(entry.pw_uid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _read_journal(found: InstanceFacts, journal: Optional[Journal]) -> None:
    if journal is None:
        return
    try:
        found.log = journal()
    except (MpsctlError, OSError) as error:
        found.log_unread = Unread("journal", NO_ANSWER, one_line(error))
        return
    if not found.log.lines and os.geteuid() != 0:
        found.log_unread = Unread("journal", NO_RIGHT)


def _ask(
    world: World,
    found: InstanceFacts,
    desired: Instance,
    private: Path,
    around: Surroundings,
    journal: Optional[Journal],
) -> None:
    """What the daemon tells, and the journal, which is read meanwhile."""
    if os.geteuid() != 0 and not os.access(private, os.X_OK):
        found.answer = Answer(facts.REFUSED, "its directory is root's alone")
        _read_journal(found, journal)
        return
    if found.main is not None and found.main.stopped:
        found.answer = Answer(facts.STOPPED)
        _read_journal(found, journal)
        return
    served = found.serves or tuple(device.uuid for device in found.devices)
    known = record.read(world, desired.name, found.pid)
    found.in_force_s = None if known is None else world.now_s() - known.since_s
    common = servers.OfDaemon(
        world,
        world.daemon_of(desired.name, private),
        served,
        _desired_values(found, desired, served, around.gpus),
        known,
        around.gpus,
        found.pid,
    )
    with _undisturbed(world, found) as undisturbed:
        _ask_daemon(common, found, journal, undisturbed)


@contextmanager
def _undisturbed(world: World, found: InstanceFacts) -> Iterator[bool]:
    """Nobody is passed on to the daemon meanwhile; False where somebody may be. Where there is no front door, everyone
    comes when he likes."""
    at_door = found.serves_public is None and found.door is not None and found.door.admission is not None
    if not at_door or os.geteuid() != 0:
        yield True
        return
    with quiet.kept(world.places, found.name) as nobody:
        yield nobody


def _ask_daemon(common: servers.OfDaemon, found: InstanceFacts, journal: Optional[Journal], undisturbed: bool) -> None:
    try:
        told = servers.ask(common)
    except MpsctlError as error:
        found.answer = no_answer(error, undisturbed)
        return
    finally:
        _read_journal(found, journal)
    try:
        servers.look(common, found, told)
        found.answer = Answer(facts.ANSWERED)
    except MpsctlError as error:
        found.answer = no_answer(error, undisturbed)
        found.jammed = found.jammed or _is_jammed(found, told[-1])


def _is_jammed(found: InstanceFacts, listed: Sequence[str]) -> bool:
    """Whether a daemon that told its defaults and the list of its servers, and then nothing of a server, is jammed: so
    answers one that a client's death jammed (driver 580, H200), if nobody holds its session and no server is stopped.
    """
    answer = found.answer
    if answer.kind != facts.NOT_SERVED or answer.held or answer.holders_untold or procfs.stopped(found.pid):
        return False
    pids = [int(word) for line in listed for word in line.split() if word.isdigit()]
    return bool(pids) and not any(map(procfs.stopped, pids))


def no_answer(error: MpsctlError, undisturbed: bool = True) -> Answer:
    """Why a daemon that was asked did not answer, and who was connected to it. Unless ``undisturbed`` the front door
    may have been: one whose client the daemon serves does not answer us."""
    if isinstance(error, control.Stopped):
        return Answer(facts.STOPPED, str(error))
    if isinstance(error, control.NotServed):
        peers = error.peers
        untold = peers.untold if undisturbed else "the front door was passing clients on"
        return Answer(facts.NOT_SERVED, str(error), _holders(peers.holds), peers.unnamed, untold, not undisturbed)
    kind = facts.UNREACHABLE if isinstance(error, control.Unreachable) else facts.REFUSED
    return Answer(kind, str(error))


def _holders(pids: Sequence[int]) -> tuple[SessionHolder, ...]:
    """Who is connected, but for our front door: a daemon that is jammed keeps its connection open."""
    pids = [pid for pid in pids if not control.is_front_door(pid)]
    uids = {pid: procfs.uid(pid) for pid in pids}
    users = {pid: None if uid is None else procfs.user(uid) for pid, uid in uids.items()}
    return tuple(SessionHolder(pid, uids[pid], users[pid], procfs.command(pid)) for pid in pids)


def _desired_values(
    found: InstanceFacts, desired: Instance, served: Sequence[str], gpus: GpuFacts
) -> desired_values.Desired:
    """What is desired of the daemon; without its memory limits where they are not known: who is connected it tells all
    the same."""
    try:
        memory_mib = [] if gpus.unread else desired_values.memory_of(served, gpus.gpus)
        return desired_values.Desired.of(desired, memory_mib)
    except MpsctlError as error:
        found.limits_refused = error
        return desired_values.Desired.of(desired, [])


def _look_at_costs(world: World, found: InstanceFacts, gpus: GpuFacts) -> None:
    percentage = found.desired.thread_percentage if found.desired else None
    for device in found.devices:
        if device.memory_mib is not None:
            card = fitting.card(device, gpus.driver)
            found.cards[device.uuid] = card
            found.costs[device.uuid] = measured.costs_of(world, card.name, gpus.driver, percentage)


def _look_at_processes(world: World, found: InstanceFacts, public: Path, around: Surroundings) -> None:
    told = found.answer.complete or (not found.pid and found.unit.load_state != units.UNKNOWN)
    daemon = gpu_processes.OfDaemon(
        public=public,
        devices=[device.uuid for device in found.devices],
        others=around.processes,
        pid=found.pid,
        servers=[server.pid for server in found.servers],
        clients=[client.pid for client in found.clients] if told else None,
        top=world.places.root,
    )
    for device in found.devices:
        compute = around.gpus.compute.get(device.uuid)
        if compute is not None:
            found.processes[device.uuid] = gpu_processes.look(daemon, compute, around.gpus.clients.get(device.uuid))
