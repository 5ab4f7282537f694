"""The checks of an instance's unit, daemon, GPUs and limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Optional

from mpsctl.adapters import pipe, procfs
from mpsctl.checks.checking import Finding, failed, passed, some, unknown, warned
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import Reason
from mpsctl.model.gpu import DEFAULT
from mpsctl.observe import reachability
from mpsctl.observe.host import NO_DAEMON, ControlDaemon, InstanceLook
from mpsctl.observe.status import Value
from mpsctl.store import configuration

_DAEMON_FILES = ("control", "control_privileged", "control_lock", "log")
"""Those of every daemon; a file with its pid is there from 550 on (control daemons 535, 550, 555)."""
_PID_FILE = "nvidia-cuda-mps-control.pid"
_LOOP = 3
"""So many servers of one user that failed in a row without a client are a loop (a daemon tries six times)."""


def _no_daemon(look: InstanceLook) -> str:
    return look.host.systemd_problem or NO_DAEMON


def unit_enabled(look: InstanceLook) -> Finding:
    """The unit starts at boot."""
    unit = look.status.unit
    if unit["enabled"]:
        return passed(f"{unit['name']} is enabled")
    return failed(f"{unit['name']} is not enabled", "enabled", f"systemctl enable {unit['name']}")


def unit_active(look: InstanceLook) -> Finding:
    """The unit runs (B26: an active unit alone proves nothing, see the other checks)."""
    if look.host.systemd_problem:
        return unknown(look.host.systemd_problem)
    unit = look.status.unit
    state = f"{unit['name']} is {unit['active_state']} ({unit['sub_state']})"
    if unit["result"] == "exec-condition":
        state += ", skipped on this host"
    if not look.status.active:
        return failed(state, "active (running)", f"see why: journalctl -b -u {unit['name']}")
    if unit["needs_daemon_reload"]:
        return warned(f"{state}, and its file has changed since", "as systemd read it", "systemctl daemon-reload")
    return passed(state)


def restarts(look: InstanceLook) -> Finding:
    """This start is the first since the unit was last started by hand or at boot."""
    if look.host.systemd_problem:
        return unknown(look.host.systemd_problem)
    unit, expected = look.status.unit, "a daemon that lasts"
    remedy = f"see why it ended: journalctl -b -u {unit['name']}"
    if look.status.short_lives > 1:
        return failed(f"{look.status.short_lives} starts in a row did not last", expected, remedy)
    if unit["restarts"]:
        return warned(f"systemd restarted it {unit['restarts']} times", expected, remedy)
    return passed("never restarted by systemd")


def restart_pending(look: InstanceLook) -> Finding:
    """Nothing is desired that only a restart brings about, and that waits for clients to leave."""
    if not look.pid:
        return unknown(_no_daemon(look))
    needed = look.status.restart_needed
    if needed:
        return warned(
            needed,
            "a daemon in the desired state",
            f"mpsctl drain {look.instance.name}, then systemctl restart {look.instance.unit}; or site.yml with"
            " mps_on_clients",
        )
    return passed("none")


def main_process(look: InstanceLook) -> Finding:
    """The unit's main process is the daemon behind this pipe directory: by environment and parentage, by no title."""
    if not look.pid:
        return unknown(_no_daemon(look))
    environment = procfs.environment(look.pid)
    if environment is None:
        return unknown(f"the environment of pid {look.pid} cannot be read", remedy="ask as root")
    directory = environment.get(pipe.VARIABLE)
    expected = f"a child of systemd that serves a directory in {look.public}"
    remedy = f"systemctl restart {look.instance.unit}, when no client is at work"
    if not directory or look.public not in Path(directory).parents:
        return failed(f"main process {look.pid} serves {directory or 'no directory of its own'}", expected, remedy)
    if procfs.parent(look.pid) != 1:
        return failed(f"main process {look.pid} is a child of pid {procfs.parent(look.pid)}", expected, remedy)
    door = pipe.behind_door(look.public)
    if door is not None and door != Path(directory):
        return failed(
            f"the front door leads to {door}, and main process {look.pid} serves {directory}", expected, _reload(look)
        )
    foreign = [
        server.pid
        for server in look.status.servers
        if procfs.alive(server.pid) and procfs.parent(server.pid) != look.pid
    ]
    if foreign:
        return failed(
            f"server {foreign[0]} of the daemon that answers is no child of main process {look.pid}", expected, remedy
        )
    return passed(f"main process {look.pid} serves {directory}")


def _reload(look: InstanceLook) -> str:
    return f"systemctl reload {look.instance.unit}"


def daemon_answers(look: InstanceLook) -> Finding:
    """The daemon answers within its deadline; a stopped one accepts connections and never does."""
    if not look.pid:
        return unknown(_no_daemon(look))
    if procfs.stopped(look.pid):
        return failed(
            f"the control daemon {look.pid} is stopped (state T)",
            "a daemon that answers",
            f"kill -CONT {look.pid}, and find who stopped it",
            reasons=[Reason("daemon-stopped", f"the control daemon {look.pid} is stopped (state T)")],
        )
    problem = look.status.daemon_problem
    if problem:
        remedy = f"end the session that holds it, or see journalctl -u {look.instance.unit}"
        return failed(problem, "an answer", remedy, reasons=_why_unresponsive(problem))
    if not look.status.daemon_answers:
        return unknown("which directory it serves cannot be read", remedy="ask as root")
    return passed(f"the control daemon {look.pid} answers")


def _why_unresponsive(problem: str) -> list[Reason]:
    for words, cause in (
        ("held by", "session-held"),
        ("no control daemon", "no-daemon"),
        ("not answer", "daemon-stopped"),
    ):
        if words in problem.lower():
            return [Reason(cause, problem)]
    return []


def front_door(look: InstanceLook) -> Finding:
    """Clients find the daemon on the public directory."""
    if look.status.door_open:
        return passed(f"{look.public} leads to the daemon")
    if not look.pid:
        return unknown(_no_daemon(look))
    return failed(
        f"the front door of {look.public} is closed", "open: clients run outside MPS without it", _reload(look)
    )


def pipe_directory_files(look: InstanceLook) -> Finding:
    """The live daemon's files are complete (B26, B27, B58: cleaners and scripts remove them under it)."""
    directory = _served(look)
    if directory is None:
        return unknown("the daemon's directory cannot be read" if look.pid else _no_daemon(look))
    missing = [name for name in _DAEMON_FILES if not os.path.lexists(directory / name)]
    if not missing:
        return passed(f"{directory} is complete")
    return failed(
        f"damage: {', '.join(missing)} gone from {directory} under daemon {look.pid}",
        "all that the daemon made there",
        f"do NOT start a second daemon: drain the clients, then systemctl restart {look.instance.unit}",
    )


def _served(look: InstanceLook) -> Optional[Path]:
    environment = procfs.environment(look.pid) if look.pid else None
    directory = (environment or {}).get(pipe.VARIABLE)
    return Path(directory) if directory else None


def pipe_directory_access(look: InstanceLook) -> Finding:
    """Every ancestor may be entered by those that may connect (B19: a 0700 parent)."""
    user = _who_connects(look)
    if user is None:
        return failed(
            f"server user {look.instance.server_user} is not on this host", "a user of this host", "set mps_server_user"
        )
    top = look.host.world.places.root
    closed = reachability.closed_directory(look.public, user, top=top)
    private = _served(look)
    if closed is None and private is not None and look.public in private.parents:
        closed = reachability.closed_directory(private, user, top=look.public)
    if closed is None:
        closed = reachability.closed_socket(look.public, user)
    if closed:
        return failed(closed.line, f"open to {user}", closed.remedy)
    if not look.pid and reachability.absent(look.public, reachability.TOP):
        return unknown(_no_daemon(look))
    return passed(f"{user} may enter {look.public}")


def limits_guarded(look: InstanceLook) -> Finding:
    """Nobody but root changes limits. Daemons before 550, which write no pid file, let everyone who connects do it."""
    directory = _served(look)
    if directory is not None and os.path.lexists(directory / _PID_FILE):
        return passed("the control daemon lets nobody but root change limits")
    if directory is None or not all(os.path.lexists(directory / name) for name in _DAEMON_FILES):
        return unknown("the daemon's directory cannot be read" if look.pid else _no_daemon(look))
    if look.instance.group is not None:
        return passed(f"the members of the group {look.instance.group} may change limits, nobody else")
    return warned(
        "every local user may change the limits of this control daemon (older than 550)",
        "a daemon that refuses it, or a group",
        "set mps_group to those who may connect, or upgrade the driver",
    )


def _who_connects(look: InstanceLook) -> Optional[reachability.User]:
    """Whoever has to get in: every user, or the server's; None where this host does not have that one."""
    name = look.instance.server_user
    if name is None or look.instance.multi_user:
        gid = configuration.gid_of(look.instance)
        return reachability.User(None) if gid is None else reachability.User(None, (gid,))
    import pwd

    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return reachability.User(int(name)) if name.isdigit() else None
    return reachability.User(entry.pw_uid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def gpus_present(look: InstanceLook) -> Finding:
    """The desired GPUs are on this host."""
    if look.host.seen.problem:
        return unknown(look.host.seen.problem)
    if look.devices:
        return passed(", ".join(str(device) for device in look.devices))
    try:
        configuration.resolve(look.instance, look.host.seen.gpus_seen)
    except BadValue as error:
        return failed(error.found, error.expected, error.remedy)
    return unknown("no GPU is desired")


def gpus_served(look: InstanceLook) -> Finding:
    """The daemon serves the desired GPUs and no others (B14)."""
    if not look.pid:
        return unknown(_no_daemon(look))
    if look.status.restart_needed:
        return failed(
            look.status.restart_needed,
            "in the desired state",
            f"restart {look.instance.unit} when no client is at work",
        )
    if not look.status.serves or not look.devices:
        return unknown(look.host.seen.problem or "which GPUs the daemon serves cannot be read", remedy="ask as root")
    return passed(f"the daemon serves {', '.join(look.status.serves)}")


def compute_mode(look: InstanceLook) -> Finding:
    """The mode is in the desired state, and no GPU is closed without a daemon (B47, B50)."""
    if not look.devices:
        return unknown(look.host.seen.problem or "the GPUs are not known")
    if look.host.systemd_problem:
        return unknown(look.host.systemd_problem)
    instance, running = look.instance, bool(look.pid)
    desired = instance.compute_mode if running else instance.compute_mode_when_down
    unprotected = []
    for device in look.devices:
        mode = device.gpu.compute_mode
        if mode is None:
            return unknown(f"{device}: NVML does not tell its compute mode")
        if not running and mode not in (DEFAULT, desired):
            found = f"{device} is in mode {mode} and no daemon serves it: nobody can use it, or one process alone"
            return failed(
                found,
                desired or DEFAULT,
                f"start {instance.unit}, or nvidia-smi -i {device.gpu.index} -c DEFAULT",
                reasons=[Reason("exclusive-without-daemon", found)],
            )
        if desired is not None and mode != desired:
            return failed(f"{device} is in mode {mode}", desired, _reload(look))
        if running and instance.compute_mode is None and mode == DEFAULT and device.mig is None:
            unprotected.append(str(device))
    if unprotected:
        return warned(
            f"{unprotected[0]} is in default mode: what finds no daemon runs outside MPS without a word",
            "exclusive_process (recommended, not required)",
            "set mps_compute_mode",
        )
    return passed(", ".join(f"{device}: {device.gpu.compute_mode}" for device in look.devices))


def persistence(look: InstanceLook) -> Finding:
    """The driver stays initialised between clients (B46)."""
    if not look.devices:
        return unknown(look.host.seen.problem or "the GPUs are not known")
    for device in look.devices:
        if device.gpu.persistence is None:
            return unknown(f"{device}: NVML does not tell its persistence mode")
        if not device.gpu.persistence:
            return warned(
                f"{device} has persistence off: servers start slowly, and clients may meet error 807",
                "on",
                "enable nvidia-persistenced; just after boot, look again",
            )
    return passed("on")


def memory_limit(look: InstanceLook) -> Finding:
    """The limit of the defaults and of each server, exact where a server's log has it (B06)."""
    return _in_force(look, lambda value: value.what.startswith("memory limit"), "memory limit")


def thread_percentage(look: InstanceLook) -> Finding:
    """The percentage of the defaults and of each server (B12)."""
    return _in_force(look, lambda value: "percentage" in value.what, "thread percentage")


def client_priority(look: InstanceLook) -> Finding:
    """The default priority; there is none of a server."""
    return _in_force(look, lambda value: "priority" in value.what, "client priority")


def _in_force(look: InstanceLook, mine: Callable[[Value], bool], what: str) -> Finding:
    status = look.status
    if not status.daemon_answers:
        return unknown(look.why_no_answer or "the daemon did not tell")
    rows = [("default", value) for value in status.values if mine(value)]
    rows += [(f"server {server.pid}", value) for server in status.servers for value in server.values if mine(value)]
    if not rows:
        return passed(f"no {what} is managed here")
    wrong: list[tuple[str, Value]] = []
    unsure: list[tuple[str, Value]] = []
    for where, value in rows:
        if not value.in_force:
            (unsure if _only_unproven(value) else wrong).append((where, value))
    if wrong:
        lines = [f"{value.what} ({where}): {_shown(value)}, desired {value.desired}" for where, value in wrong]
        return failed(some(lines), wrong[0][1].desired, _reload(look), *lines)
    if unsure:
        where, value = unsure[0]
        return unknown(
            f"{value.what} ({where}): the daemon shows {value.shown}, rounded, and no log line or record proves it",
            value.desired,
            _reload(look),
        )
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    return passed("; ".join(f"{where}: {_shown(value)}" for where, value in rows))


def _shown(value: Value) -> str:
    if value.log_bytes is not None:
        return f"the server's log says {value.log}"
    return f"the daemon shows {value.shown or 'nothing'}"


def _only_unproven(value: Value) -> bool:
    """Whether what the getter shows agrees with the desired state, and is only too coarse to prove it."""
    if value.log_bytes is not None or not value.desired.endswith(" MiB"):
        return False
    return value.shown == quantity.displayed(int(value.desired.split()[0]))


def server_state(look: InstanceLook) -> Finding:
    """No server is in FAULT; the server that is desired without clients is there."""
    if look.why_no_answer:
        return unknown(look.why_no_answer)
    servers = look.status.servers
    for server in servers:
        if procfs.stopped(server.pid):
            found = f"server {server.pid} is stopped (state T): its clients hang"
            reasons = [Reason("server-stopped", found, f"kill -CONT {server.pid}, and find who stopped it")]
            return failed(found, "ACTIVE", reasons[0].remedy, reasons=reasons)
        if server.state is None:
            return unknown(f"server {server.pid}: this driver's daemon does not tell its state")
        if server.state != "ACTIVE":
            level, cause = (failed, "client-fault") if server.state == "FAULT" else (warned, "server-not-ready")
            found = f"server {server.pid} is in state {server.state}"
            return level(
                found,
                "ACTIVE",
                "end the clients that met the error; the server comes back by itself when they are gone",
                reasons=[Reason(cause, found)],
            )
    desired = look.instance.eager_server
    if desired is not None and not servers:
        found, expected = "no server", f"the server of user {desired}, without waiting for a client"
        return failed(
            found, expected, _reload(look), reasons=[Reason("not-as-desired", f"{found}, desired {expected}")]
        )
    return passed(", ".join(f"server {s.pid} is {s.state}" for s in servers) or "no server yet, it comes with a client")


def server_exits(look: InstanceLook) -> Finding:
    """No server ended with a failure and was not replaced; no loop of failing servers (B53)."""
    if look.log_problem:
        return unknown(look.log_problem)
    servers = list(look.log.servers.values())
    if servers and servers[-1].left:
        last = servers[-1]
        line = f"server {last.pid} ended under {len(last.left)} clients (pid {', '.join(map(str, last.left[:8]))})"
        return warned(
            line,
            "servers that end when their clients have left",
            "its clients met error 806: start them anew; never kill a server that has clients",
            reasons=[Reason("server-gone", line)],
        )
    bad = [server for server in servers if server.exit_status not in (None, 0)]
    if not bad:
        return passed("no server failed since the daemon's start")
    lines = [f"server {one.pid} of user {one.uid} exited with status {one.exit_status}" for one in bad]
    for uid in dict.fromkeys(server.uid for server in bad):
        tail = 0
        for server in reversed([one for one in servers if one.uid == uid and one.exit_status is not None]):
            if server.exit_status == 0 or server.served:
                break
            tail += 1
        alive = any(server.uid == uid and server.exit_status is None for server in servers)
        if tail >= _LOOP and not (alive and look.status.servers):
            return failed(
                f"{tail} servers of user {uid} in a row exited with a failure before any client",
                "a server that starts",
                f"see the server's lines: journalctl -u {look.instance.unit}",
                *lines[-6:],
            )
    if servers[-1].exit_status not in (None, 0):
        return warned(
            f"the last server ({lines[-1]})",
            "servers that end with 0",
            "its clients met error 806: start them anew; see dmesg and the journal for why",
            *lines[-6:],
            reasons=[Reason("server-gone", lines[-1])],
        )
    return passed(f"{len(bad)} servers failed since the daemon's start, and another took over", *lines[-6:])


def daemon_version(look: InstanceLook) -> Finding:
    """The daemon's binary is of the driver's release: a mix of both is nobody's (daemons up to 555 do not tell)."""
    if look.log_problem:
        return unknown(look.log_problem)
    mine, drivers = look.log.cuda_version, look.host.seen.cuda
    if mine is None or drivers is None:
        return passed("the daemon does not tell its version" if mine is None else "NVML does not tell the driver's")
    if mine == drivers:
        return passed(f"the daemon and the driver are of CUDA {_cuda(mine)}")
    return warned(
        f"the daemon is of CUDA {_cuda(mine)}, the driver of CUDA {_cuda(drivers)}",
        "one release of both",
        "install the MPS package of the loaded driver, or reboot after a driver's upgrade",
    )


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def client_faults(look: InstanceLook) -> Finding:
    """No client's fatal fault has ended the work of all, or others have come since (error 700 in each: driver 580)."""
    if look.log_problem:
        return unknown(look.log_problem)
    faults = [(server.pid, pid) for server in look.log.servers.values() for pid in server.faults]
    if not faults:
        return passed("none since the last client connected")
    server, culprit = faults[-1]
    line = f"client {culprit} made a fatal fault on server {server}: every client of it met the same error"
    return warned(
        line,
        "clients without a fault",
        "start them all again; find the fault with compute-sanitizer, outside MPS",
        reasons=[Reason("client-fault", line)],
    )


def other_daemons(look: InstanceLook) -> Finding:
    """Nobody else's daemon on the same GPU or directory (B14, B15, B49)."""
    if look.host.seen.problem or look.host.daemons_problem:
        return unknown(look.host.seen.problem or look.host.daemons_problem or "")
    mine = {device.uuid for device in look.devices} | {device.gpu.uuid for device in look.devices}
    unread = []
    for daemon in look.host.daemons:
        if daemon.pid == look.pid or _on_directory(daemon, look.public):
            continue
        if daemon.devices is None:
            unread += [daemon] if daemon in look.host.foreign else []  # an instance's serves what its file says
        elif mine & set(daemon.devices):
            return failed(
                f"another control daemon serves a GPU of this instance: {daemon}",
                "one daemon for each GPU",
                f"find who starts pid {daemon.pid}, and let it or this instance have the GPU",
            )
    if unread:
        return unknown(f"a control daemon's environment cannot be read: {unread[0]}", remedy="ask as root")
    return passed("no other daemon serves its GPUs")


def orphan_daemon(look: InstanceLook) -> Finding:
    """No control daemon names this directory and is not the unit's (B26: its socket may be gone or taken over)."""
    orphans = [one for one in look.host.daemons if _on_directory(one, look.public) and one.pid != look.pid]
    if look.host.systemd_problem or look.host.daemons_problem:
        return unknown(look.host.systemd_problem or look.host.daemons_problem or "")
    if not orphans:
        return passed("none")
    orphan = orphans[0]
    served = orphan.directory
    gone = served is not None and not os.path.lexists(served / pipe.PUBLIC_NAMES[0])
    return failed(
        f"orphan daemon {orphan}" + (", its socket is gone" if gone else ""),
        f"only the main process of {look.instance.unit}",
        f"its clients lose MPS with it: drain them, then end pid {orphan.pid}; start no other daemon before",
    )


def _on_directory(daemon: ControlDaemon, public: Path) -> bool:
    return (
        not daemon.elsewhere
        and daemon.directory is not None
        and (daemon.directory == public or public in daemon.directory.parents)
    )


CHECKS: tuple[Callable[[InstanceLook], Finding], ...] = (
    unit_enabled,
    unit_active,
    restarts,
    restart_pending,
    main_process,
    orphan_daemon,
    other_daemons,
    daemon_answers,
    front_door,
    pipe_directory_files,
    pipe_directory_access,
    limits_guarded,
    daemon_version,
    gpus_present,
    gpus_served,
    compute_mode,
    persistence,
    memory_limit,
    thread_percentage,
    client_priority,
    server_state,
    server_exits,
    client_faults,
)
