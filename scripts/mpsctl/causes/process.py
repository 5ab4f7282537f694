"""One process: what it is to MPS, why it is no client of an instance, and what else is wrong with it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Optional

from mpsctl.adapters import procfs, unix_peers
from mpsctl.causes import environment, memory, refusals
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, at_most, diagnose, of_instance
from mpsctl.causes.of_checks import because, certainty_of, reasons_of, unproven
from mpsctl.causes.seen import Seen
from mpsctl.checks import waits, words
from mpsctl.model.foreign import shown
from mpsctl.model.gpu import EXCLUSIVE_PROCESS
from mpsctl.observe import process_facts, reachability
from mpsctl.observe.door_facts import Waiting
from mpsctl.observe.facts import DaemonProcess, InstanceFacts, ServerProcess
from mpsctl.observe.process_facts import Obstacle

_LIBRARY = "libcuda.so"
_OPEN_FILES = 16_384
"""NVIDIA's documentation of MPS; a process that is no server needs far less."""
_FEW_OPEN_FILES = 1024
_DEAD = ("Z", "D", "X")
_KEEPS_OUT = (
    "unit-masked",
    "unit-not-active",
    "front-door-closed",
    "daemon-stopped",
    "daemon-hangs",
    "session-held",
    "socket-gone",
    "gpu-missing",
    "gpu-swapped",
    "mig-switched-off",
    "mig-switched-on",
    "mig-device-gone",
    "left-over-server",
)
"""What is wrong with an instance that keeps a process from being its client; a drain is judged by itself."""


@dataclass(frozen=True)
class _Process:
    """What is known of the process. ``variables`` is its environment, None where that may not be read.

    ``as_client`` are the devices on which NVML lists it as a client of some daemon, ``at_all`` those on which it has a
    context. ``instance`` is the one whose client it is or means to be, ``daemon`` the control daemon of no instance on
    the directory that it looks in.
    """

    pid: int
    uid: Optional[int]
    variables: Optional[dict[str, str]]
    as_client: frozenset[str]
    at_all: frozenset[str]
    client_of: Optional[InstanceFacts]
    instance: Optional[InstanceFacts]
    daemon: Optional[DaemonProcess]


def look(seen: Seen, pid: int) -> tuple[list[Diagnosis], str]:
    """What is wrong with a process, and in one line what it is."""
    program = _program(seen, pid)
    if program is not None:
        return program
    one = _known(seen, pid)
    about = _about(seen, one)
    found: list[Diagnosis] = []
    if procfs.state(pid) in _DEAD:
        found.append(diagnose("zombie-client", CERTAIN if one.at_all else POSSIBLE, about))
    if one.variables is not None:
        devices = None if one.instance is None else [device.uuid for device in one.instance.devices]
        found += environment.lint(one.variables, devices)
    if one.client_of is None:
        found += _why_no_client(seen, one)
    found += memory.of_client(seen, pid)
    return found + _surroundings(pid, one), about


def instances_of(seen: Seen, pid: int) -> list[str]:
    """The instance of a process, or of the daemon of which it is a server; none where it is of none or of any."""
    server = seen.host.processes.server(pid)
    daemon_pid = pid if server is None else server.daemon
    mains = [name for name, one in seen.host.instances.items() if one.pid and one.pid == daemon_pid]
    if mains or server is not None:
        return mains
    known = _known(seen, pid)
    return [known.instance.name] if known.instance is not None else []


def _program(seen: Seen, pid: int) -> Optional[tuple[list[Diagnosis], str]]:
    """What is to be said of a control daemon, a server or who is connected to one; None for any other process."""
    server, daemon = seen.host.processes.server(pid), seen.host.processes.daemon(pid)
    if server is not None:
        return _server(seen, server)
    if daemon is not None:
        about = words.daemon(daemon, seen.host.devices(daemon))
        variables = procfs.environment(pid) or {}
        found = environment.lint(variables, None, of_daemon=True)
        if daemon in seen.foreign:
            found.append(diagnose("foreign-daemon", CERTAIN, about))
        return found + _open_files(pid, _OPEN_FILES), f"pid {pid} is the {about}{_whose(seen, pid)}"
    held = _held_by(seen, pid)
    if held is not None:
        uid = procfs.uid(pid)
        who = words.who(None if uid is None else procfs.user(uid), uid)
        line = f"pid {pid} ({shown(procfs.command(pid))}, {who}) is connected to the {held}"
        served = [one for one in seen.instances if pid in one.answer.holders]
        found = [diagnose("session-held", CERTAIN, line, remedy=f"end it: `kill {pid}`")] if served else []
        return found, f"{line}: an open session, and that daemon serves no other command meanwhile"
    return None


def _held_by(seen: Seen, pid: int) -> Optional[str]:
    """The control daemon to whose sockets a process is connected, in words; None where it is to none.

    A client is so for a moment when it comes, and not while it works (driver 580, H200).
    """
    if seen.client_of(pid) is not None or procfs.maps(pid, _LIBRARY):
        return None  # a CUDA program: a client that comes or waits is judged as such
    for daemon in seen.host.processes.daemons:
        if daemon.directory is None:
            continue
        directory = procfs.root(daemon.pid) / str(daemon.directory).lstrip("/")
        if pid in unix_peers.of_directory(directory).holds:
            return f"{words.daemon(daemon, seen.host.devices(daemon))}{_whose(seen, daemon.pid)}"
    return None


def _server(seen: Seen, server: ServerProcess) -> tuple[list[Diagnosis], str]:
    who = f"pid {server.pid} ({words.who(server.user, server.uid)}) is an MPS server"
    if server.daemon is None:
        line = f"{who}, and its control daemon is gone"
        return [diagnose("left-over-server", CERTAIN, line)], line
    daemon = seen.host.processes.daemon(server.daemon)
    if daemon is None:
        return _open_files(
            server.pid, _OPEN_FILES
        ), f"{who} of process {server.daemon}, which is no daemon of this host"
    about = f"{who} of the {words.daemon(daemon, seen.host.devices(daemon))}{_whose(seen, daemon.pid)}"
    found = [diagnose("foreign-daemon", CERTAIN, about)] if daemon in seen.foreign else []
    return found + _open_files(server.pid, _OPEN_FILES), about


def _whose(seen: Seen, daemon_pid: int) -> str:
    name = next((name for name, unit in seen.host.units.items() if unit.main_pid == daemon_pid), None)
    if name is not None:
        return f", which is instance {name}'s"
    return "" if seen.host.systemd_unread else ", which is no instance's"


def _known(seen: Seen, pid: int) -> _Process:
    gpus = seen.host.gpus
    variables = procfs.environment(pid)
    as_client = frozenset(uuid for uuid, held in gpus.clients.items() if pid in (held or {}))
    at_all = frozenset(uuid for uuid, held in gpus.compute.items() if pid in (held or {}))
    client_of = seen.client_of(pid)
    return _Process(
        pid,
        procfs.uid(pid),
        variables,
        as_client,
        at_all | as_client,
        client_of,
        client_of or _meant(seen, pid, variables or {}),
        None if variables is None else seen.served_by(pid, variables),
    )


def _meant(seen: Seen, pid: int, variables: dict[str, str]) -> Optional[InstanceFacts]:
    """The instance that the process means: by its variable, by the device that it is on, or the only one."""
    named = seen.meant_by(variables)
    if named is not None:
        return named
    on = [one for one in seen.instances if any(pid == each.pid for listed in one.processes.values() for each in listed)]
    if len(on) == 1:
        return on[0]
    return seen.instances[0] if len(seen.instances) == 1 else None


def _about(seen: Seen, one: _Process) -> str:
    who = procfs.user(one.uid) if one.uid is not None else None
    inside = procfs.container(one.pid)
    where = f", container {shown(inside[:12])}" if inside else ""
    unread = "" if one.variables is not None else "; its environment may not be read"
    name = f"pid {one.pid} ({shown(procfs.command(one.pid), 100)}), {words.who(who, one.uid)}{where}"
    return f"{name}: {_what(seen, one)}{unread}"


def _what(seen: Seen, one: _Process) -> str:
    """What the process is to MPS, as far as NVML and the daemons tell."""
    if one.client_of is not None:
        return f"an MPS client of instance {one.client_of.name}"
    if one.as_client and one.daemon is not None:
        return f"an MPS client of the {words.daemon(one.daemon, seen.host.devices(one.daemon))}, which is no instance's"
    if one.as_client:
        return "an MPS client, and no instance's daemon that answers lists it"
    if one.at_all:
        return "on a GPU outside MPS"
    return "on no GPU"


def _why_no_client(seen: Seen, one: _Process) -> list[Diagnosis]:
    """Why a process is no client of an instance, what lies deepest first."""
    if not one.at_all and one.variables is None:
        return []  # another user's: neither its libraries nor its environment may be read, and nothing is known
    if not one.at_all and _wait(one) is None and not procfs.maps(one.pid, _LIBRARY):
        return [diagnose("no-cuda-yet", LIKELY, f"pid {one.pid} has no {_LIBRARY} mapped")]
    found = [*_kept_out(seen, one), *_obstacles(seen, one)]
    if one.daemon is not None:
        line = f"pid {one.pid} looks in {shown(str(one.daemon.directory))}, which is served by the "
        line += words.daemon(one.daemon, seen.host.devices(one.daemon))
        found.append(diagnose("client-of-another-daemon", CERTAIN if one.as_client else LIKELY, line))
    left = [server.pid for server in seen.host.processes.servers if server.daemon is None]
    if one.as_client and one.daemon is None and left:
        line = (
            f"pid {one.pid} is a client of no daemon that answers; MPS servers without one: {', '.join(map(str, left))}"
        )
        found.append(diagnose("left-over-server", LIKELY, line))
    if one.at_all and not one.as_client:
        devices = ", ".join(sorted(one.at_all))
        more = ["it holds a GPU in exclusive mode: no server can have it meanwhile"] if _exclusive(seen, one) else []
        found.append(
            diagnose("client-outside-mps", CERTAIN, f"pid {one.pid} has a context on {devices} and is no client", *more)
        )
    return found if one.instance is None else of_instance(one.instance.name, found)


def _exclusive(seen: Seen, one: _Process) -> bool:
    return any(gpu.uuid in one.at_all and gpu.compute_mode == EXCLUSIVE_PROCESS for gpu in seen.host.gpus.gpus)


def _wait(one: _Process) -> Optional[Waiting]:
    return next((each for each in one.instance.waiting if each.pid == one.pid), None) if one.instance else None


def _kept_out(seen: Seen, one: _Process) -> list[Diagnosis]:
    """What of the instance's state keeps it out: a drain, a stopped unit, another user's clients."""
    instance = one.instance
    if instance is None:
        return []
    checks = seen.report.instances[instance.name]
    named = one.variables is not None and seen.meant_by(one.variables) is instance
    wait = _wait(one)
    proven = wait is not None and (wait.at_door or instance.log_trusted is not False)
    sure = CERTAIN if named or proven else LIKELY
    found = [
        diagnose("drained", sure, reason.line, remedy=reason.remedy) for reason in reasons_of(checks, ("drained",))
    ]
    if wait is not None:
        reason = waits.reason(instance, wait)
        diagnosis = because(reason, certainty_of(reason.cause, CERTAIN if wait.at_door else LIKELY))
        found.append(diagnosis if proven else unproven(diagnosis))
    found += refusals.of_process(seen.world, instance.name, one.pid)
    if one.as_client:
        return found
    # That it is so is certain; that it was so when this process began is not.
    kept = [because(reason, LIKELY) for reason in reasons_of(checks, _KEEPS_OUT)]
    return found + [replace(each, certainty=at_most(each.certainty, LIKELY)) for each in kept]


def _obstacles(seen: Seen, one: _Process) -> list[Diagnosis]:
    """What is wrong with its environment, or with its way to the pipe directory."""
    if one.variables is None:
        return []
    publics = [each.public for each in seen.instances if each.public is not None]
    instance = one.instance
    obstacles = reachability.obstacles(
        one.pid,
        one.variables,
        publics,
        [device.uuid for device in instance.devices] if instance and instance.devices else None,
        instance.pid if instance else 0,
        seen.world.places.root,
    )
    user = reachability.of_process(one.pid)
    gid = instance.group_id if instance is not None else None
    if not obstacles and gid is not None and user is not None and user.uid != 0 and gid not in user.gids:
        obstacles = [Obstacle(process_facts.NOT_IN_GROUP, user=str(user))]
    reasons = map(words.obstacle, obstacles)
    return [because(replace(reason, line=f"pid {one.pid}: {reason}"), CERTAIN) for reason in reasons if reason.cause]


def _surroundings(pid: int, one: _Process) -> list[Diagnosis]:
    found = _open_files(pid, _FEW_OPEN_FILES)
    if procfs.maps_users(pid) and not one.as_client:
        found.append(diagnose("user-namespace", POSSIBLE, f"pid {pid} is user {procfs.uid(pid)} to the daemon"))
    own, ours = procfs.namespace(pid, "pid"), procfs.namespace(os.getpid(), "pid")
    if own and ours and own != ours:
        found.append(diagnose("pid-namespace", POSSIBLE, f"pid {pid} is in {own}, this program in {ours}"))
    return found


def _open_files(pid: int, least: int) -> list[Diagnosis]:
    limit = procfs.open_files_limit(pid)
    if limit is None or limit >= least:
        return []
    return [diagnose("open-files-limit", POSSIBLE, f"pid {pid} may have {limit} files open, expected {least}")]
