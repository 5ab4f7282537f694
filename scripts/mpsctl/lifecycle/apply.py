"""Putting limits in force and letting clients through the front door (ExecStartPost and ExecReload of the unit).

With an eager server (mps_server_user, mps_multi_user) the order is: limits, the desired compute mode, the
server, the admission. The server then holds the GPU from the first moment and spares the first client its wait.

The daemon forgets every limit when it ends and takes anything for a value; its environment variable for
memory limits nobody (driver 580, H200). So limits are set by command at every start, read back, and only
then can a client find the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import pipe, procfs, without_door
from mpsctl.adapters.control_daemon import Daemon
from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.lifecycle import admit, compute_modes
from mpsctl.model import daemon_environment, foreign
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.model.instance import Instance
from mpsctl.store import admission, configuration, last_good, open_log, record, server_log
from mpsctl.store.admission import Admission, ServedDaemon
from mpsctl.store.desired_values import Desired, DesiredValue, memory_of, values
from mpsctl.store.record import InForce
from mpsctl.store.world import World

_START_DEADLINE_S = 30
_EXEC_DEADLINE_S = 5
_POLL_S = 0.02
_SERVER_POLL_S = 0.05
_SERVER_LOG_S = 3


def apply(
    world: World, name: str, main_pid: Optional[int] = None, desired_state: Optional[Instance] = None
) -> list[str]:
    """Put an instance's limits, percentage, priority and compute mode in force; what was changed.

    ``main_pid`` is the daemon's process where the caller knows it (systemd does); waiting for the daemon
    ends when that process does. ``desired_state`` is what is desired, by default what the instance's file says.

    :raises NotReady: if the daemon ended, or did not answer within 30 s.
    :raises NotInForce: if something does not read back in the desired state. The front door is then left as it was.
    """
    instance = desired_state or configuration.load(world, name)
    pid = main_pid or _main_pid(world, instance)
    running = _environment_of(world, instance, pid)
    daemon = world.daemon_of(name, running.pipe_directory)
    _wait_until_it_answers(world, instance, daemon, pid)
    changes: list[str] = []
    changes += _close_directory(world, instance, running, pid)
    with world.nvml() as nvml:
        gpus = nvml.gpus()
        served = configuration.resolve(instance, gpus)
        desired = Desired.of(instance, memory_of(running.devices, gpus))
        known = record.read(world, name, pid)
        begun = None if known is None else _begun(known, desired)
        if begun is not None and begun != known:
            record.write(world, name, begun)
        changes += _put_in_force(world, instance, daemon, running.devices, desired, known)
        if tuple(device.uuid for device in served) == running.devices:
            changes += compute_modes.take(world, nvml, instance, served)
        else:
            world.say(f"the daemon still serves {', '.join(running.devices)}: restart the unit to change its GPUs")
    changes += _start_server(world, instance, daemon)
    started_at = procfs.started_at(pid)
    if not procfs.alive(pid) or started_at is None:
        raise NotReady(f"the control daemon (pid {pid}) ended while its limits were set")
    record.write(world, name, desired.recorded(pid, started_at, known.since_s if known else world.now_s()))
    last_good.keep(world, name)
    before = admission.read(world.places, name)
    served_daemon = ServedDaemon(pid, started_at, str(running.pipe_directory))
    drained = admit.let_in(world, instance, served_daemon, running.devices)
    changes += _who_may_connect(instance, before, admission.read(world.places, name))
    if drained is not None:
        world.say(f"drained since {drained.since}: no client is let in before `mpsctl undrain {instance.name}`")
    return changes


def _begun(known: InForce, desired: Desired) -> InForce:
    """What is on record while values are set. Should that break off halfway, the getters cannot tell how far it came:
    no limit that differs is believed then (0 is none that is ever desired), and what may be ours can be taken back."""
    pairs = zip_longest(desired.limits_mib, known.limits_mib)
    percentage, priority = desired.thread_percentage, desired.client_priority
    return replace(
        known,
        limits_mib=tuple(had if mib in (None, had) else 0 for mib, had in pairs),
        thread_percentage=known.thread_percentage if percentage is None else percentage,
        client_priority=known.client_priority if priority is None else priority,
    )


def _close_directory(world: World, instance: Instance, running: DaemonEnvironment, pid: int) -> list[str]:
    """Close the daemon's directory to all others; what was changed.

    Until a daemon's first reading back nobody could come there (``pipe.make``, ``without_door.make``). Whatever was
    open later, or was of release 0.2.0, others may have written to.
    """
    seen_before = record.read(world, instance.name, pid) is not None
    directory, own = running.pipe_directory, world.places.pipe(instance.name)
    without = directory != own and not pipe.is_former(directory)
    closed = without_door.guard(directory) if without else pipe.close(directory)
    if pipe.is_former(directory) or (closed and seen_before):
        open_log.note(world, instance.name, pid, procfs.started_at(pid))
    if not closed or not seen_before:
        return []
    return [f"{directory}: {'guarded again' if without else 'closed to everyone but root and its servers'}"]


def _log(world: World, instance: Instance) -> DaemonLog:
    """What the journal has of the daemon's present start; nothing where others could have written it."""
    pid = _main_pid(world, instance)
    running = daemon_environment.of_process(procfs.environment(pid))
    directory = running.pipe_directory if running is not None else None
    if not open_log.trusted(world, instance.name, directory, pid, procfs.started_at(pid)):
        return DaemonLog()
    return server_log.of_unit(world, instance.unit)


def _who_may_connect(instance: Instance, before: Optional[Admission], now: Optional[Admission]) -> list[str]:
    if before is None or now is None:
        return []
    changes = []
    if before.gid != now.gid:
        changes.append(f"who may connect: {f'the group {instance.group}' if instance.group else 'everyone'}")
    if before.room != now.room:
        changes.append(f"how many clients at once: {before.room or 'not held'} -> {now.room or 'not held'}")
    return changes


def _main_pid(world: World, instance: Instance) -> int:
    shown = world.systemd.show([instance.unit]).get(instance.unit, {})
    pid = int(shown.get("MainPID", "0") or 0)
    if not pid:
        raise NotReady(
            f"{instance.unit} has no main process ({shown.get('ActiveState', 'unknown')}); start it with"
            f" `systemctl start {instance.unit}`"
        )
    return pid


def _environment_of(world: World, instance: Instance, pid: int) -> DaemonEnvironment:
    """What the main process was started with: proof that it is the daemon of this instance."""
    environment = procfs.environment(pid)
    end_s = world.now_s() + _EXEC_DEADLINE_S
    while environment is not None and daemon_environment.of_process(environment) is None:
        # systemd calls us once exec has begun; the process has no environment before the kernel has finished it. Who
        # calls us by hand may come still earlier, to a process that is systemd's own.
        if not procfs.alive(pid) or world.now_s() >= end_s:
            break
        world.sleep_s(_POLL_S)
        environment = procfs.environment(pid)
    found = daemon_environment.of_process(environment)
    own, public = world.places.pipe(instance.name), Path(instance.pipe_directory)
    # One of the two where the other is desired, or a former place: until its restart.
    known = (own, public, *pipe.former_directories(public), _read_back_before(world, instance.name, pid))
    if found is None or found.pipe_directory not in known:
        if not procfs.alive(pid):
            raise NotReady(f"the control daemon (pid {pid}) has ended; its last words are in the journal of the unit")
        if environment is None:
            raise NotReady(f"the environment of the control daemon (pid {pid}) cannot be read; run it as root")
        served = found.pipe_directory if found else "nothing that can be read"
        raise NotReady(
            f"pid {pid} serves {served}, expected {world.places.daemon_directory(instance)}; restart {instance.unit}"
        )
    return found


def _read_back_before(world: World, name: str, pid: int) -> Optional[Path]:
    """Where this very process served when its limits were read back last."""
    told = admission.read(world.places, name)
    daemon = told.daemon if told is not None else None
    if daemon is None or (daemon.pid, daemon.started_at) != (pid, procfs.started_at(pid)):
        return None
    return Path(daemon.pipe_directory)


def _wait_until_it_answers(world: World, instance: Instance, daemon: Daemon, pid: int) -> None:
    end_s = world.now_s() + _START_DEADLINE_S
    while True:
        try:
            daemon.ask(["get_default_client_priority"], deadline_s=5)
            return
        except NotReady as error:
            if not procfs.alive(pid):
                raise NotReady(
                    f"the control daemon (pid {pid}) ended before it answered; `journalctl -u {instance.unit}` has its"
                    " last words"
                ) from None
            if world.now_s() >= end_s:
                raise NotReady(f"after {_START_DEADLINE_S} s: {error}") from None
        world.sleep_s(_POLL_S)


def _start_server(world: World, instance: Instance, daemon: Daemon) -> list[str]:
    """Start the server of the instance's user, if one is named and none is up; what was changed.

    The command returns before the server is up and its exit code proves nothing (control daemons 535 to 555),
    so the server is waited for.

    :raises NotReady: if it does not come up within 30 s.
    """
    if instance.eager_server is None:
        return []
    uid = _uid_of(instance.eager_server)
    end_s = world.now_s() + _START_DEADLINE_S
    asked = False
    while True:
        for server in control.servers(daemon):
            # 535 does not tell a server's state: there one that is listed and lives is taken for up.
            up = procfs.alive(server.pid) if server.state is None else server.state == "ACTIVE"
            if up and procfs.uid(server.pid) == uid:
                return [f"server {server.pid} of user {instance.eager_server} started"] if asked else []
        if not asked:
            daemon.ask([f"start_server -uid {uid}"])
            asked = True
        if world.now_s() >= end_s:
            raise NotReady(
                f"the server of user {instance.eager_server} did not come up within {_START_DEADLINE_S} s;"
                f" `journalctl -u {instance.unit}` has its last words"
            )
        world.sleep_s(_SERVER_POLL_S)


def _uid_of(user: str) -> int:
    """:raises BadValue: if the host has no such user."""
    uid = procfs.uid_of(user)
    if uid is None:
        raise BadValue(
            f"the user {user!r}", "a user of this host", "make it, or name another", "ServerUser", "mps_server_user"
        )
    return uid


@dataclass
class _Set:
    """What was set, and the lines for what that changed as far as anybody can tell."""

    anything: bool = False
    changes: list[str] = field(default_factory=list)


def _put_in_force(
    world: World, instance: Instance, daemon: Daemon, devices: Sequence[str], desired: Desired, known: Optional[InForce]
) -> list[str]:
    """Set what differs, in the defaults (for later servers) and in every running server, and read back."""
    changes = _set_defaults(world, instance, daemon, devices, desired, known)
    servers = control.servers(daemon)
    log = _log(world, instance) if servers else None
    told = []
    for server in servers:
        # A server takes the defaults only when it starts; a command to it reaches clients that connect later.
        said = server_log.limits(log.servers.get(server.pid) if log else None, devices)
        due = values(desired, known, str(server.pid), said)
        of_server = _set_and_read(daemon, due, str(server.pid), _read(daemon, due))
        told += [server.pid] if of_server.anything else []
        changes += of_server.changes
    if told:
        _confirm_by_server_log(world, instance, devices, desired, told)
    return changes


def _set_defaults(
    world: World, instance: Instance, daemon: Daemon, devices: Sequence[str], desired: Desired, known: Optional[InForce]
) -> list[str]:
    """The daemon's own log tells a default to the byte; it is read only where the getter's answer is too coarse."""
    due = values(desired, known)
    before = _read(daemon, due)
    if any(not one.exact and list(lines) == one.lines for one, lines in zip(due, before)):
        log = _log(world, instance)
        due = values(desired, known, said=server_log.defaults(log, devices))
    return _set_and_read(daemon, due, "", before).changes


def _confirm_by_server_log(
    world: World, instance: Instance, devices: Sequence[str], desired: Desired, servers: Sequence[int]
) -> None:
    """Hold the limits that servers were told against the bytes that each wrote to its log; the getter rounds.

    The line may come a moment after the answer. Where the journal has no line the getter's word stands.

    :raises NotInForce: if a server's log goes on saying something else.
    """
    end_s = world.now_s() + _SERVER_LOG_S
    while True:
        log = _log(world, instance)
        wrong = [
            f"memory limit of device {ordinal} (server {pid}): desired {mib} MiB, its log says {said} bytes"
            for pid in servers
            for ordinal, (mib, said) in enumerate(
                zip(desired.limits_mib, server_log.limits(log.servers.get(pid), devices))
            )
            if mib is not None and said is not None and said != mib << 20
        ]
        if not wrong:
            return
        if world.now_s() >= end_s:
            raise NotInForce("; ".join(wrong))
        world.sleep_s(_SERVER_POLL_S)


def _read(daemon: Daemon, desired: Sequence[DesiredValue]) -> list[list[str]]:
    return daemon.ask([one.getter for one in desired]) if desired else []


def _set_and_read(
    daemon: Daemon, desired: Sequence[DesiredValue], server: str, before: Sequence[Sequence[str]]
) -> _Set:
    """Set what ``before`` does not prove, and read it back. ``server`` is a server's pid, or empty for the defaults.

    Where the getter rounds and no log has the value, our record alone says that it is in force: somebody may have set
    its neighbour by hand since. It is set again then, and that is no change that could be told.

    :raises NotInForce: if a value does not read back as it was set.
    """
    if _gone(server, before):
        return _Set()
    due = [(one, lines) for one, lines in zip(desired, before) if not (one.in_force(lines) and one.exact)]
    if not due:
        return _Set()
    # in one session, in this order
    told = daemon.ask([*(one.setter for one, _ in due), *(one.getter for one, _ in due)])
    said, after = told[: len(due)], told[len(due) :]
    if _gone(server, after):
        return _Set()
    for (one, _), words, lines in zip(due, said, after):
        if list(lines) != one.lines:
            answer, reads = (foreign.shown(" / ".join(some)) or "nothing" for some in (words, lines))
            raise NotInForce(
                f"{one.what}: desired {one.desired}, reads back {reads} after `{one.setter}` (it answered {answer})"
            )
    where = f"server {server}" if server else "default"
    return _Set(
        anything=True,
        changes=[
            f"{one.what} ({where}): {' / '.join(lines) or 'unset'} -> {one.desired}"
            for one, lines in due
            if not one.in_force(lines)
        ],
    )


def _gone(server: str, answers: Sequence[Sequence[str]]) -> bool:
    return bool(server) and any(map(control.no_such_server, answers))
