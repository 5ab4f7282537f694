"""The judgements of an instance's control daemon, its directory and the front door."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

from mpsctl.checks import words
from mpsctl.checks.door_checks import front_door, front_door_enabled, without_front_door
from mpsctl.checks.judgement import VERIFY_ONLY, Finding, View, failed, judgement, passed, unknown, warned
from mpsctl.checks.unit_checks import as_root, no_daemon, reload, restart
from mpsctl.model.finding import CONVERGE, RELOAD, Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.observe import daemons, facts, process_facts
from mpsctl.observe.facts import InstanceFacts


@judgement()
def main_process(view: View) -> Finding:
    """The unit's main process is the daemon behind this pipe directory: by environment and parentage, by no title."""
    one = view.one
    if not one.pid or one.main is None:
        return unknown(no_daemon(view))
    main = one.main
    if not main.readable:
        return unknown(f"the environment of pid {main.pid} cannot be read", remedy=as_root(view))
    directory = main.serves.pipe_directory if main.serves else None
    places, desired = view.host.places, one.desired
    own = places.daemon_directory(desired) if desired is not None else places.pipe(one.name)
    expected = f"a child of systemd that serves {own}"
    # 0.2.0 had it inside the public one; a front door that came or went since the start is for restart-pending to tell.
    known = (own, places.pipe(one.name), one.serves_public)
    if directory is None or (directory not in known and one.public not in directory.parents):
        served = shown(str(directory)) if directory else "no directory of its own"
        return failed(f"main process {main.pid} serves {served}", expected, restart(one))
    if main.parent != 1:
        return failed(f"main process {main.pid} is a child of pid {main.parent}", expected, restart(one))
    told = one.door.directory if one.door is not None else None
    if told is not None and told != directory:
        return failed(
            f"the front door leads to {shown(str(told))}, and main process {main.pid} serves {directory}",
            expected,
            reload(one),
            mends=RELOAD,
        )
    others = [server.pid for server in one.servers if server.process_state not in ("", "Z", "X") and not server.of_main]
    if others:
        return failed(
            f"server {others[0]} of the daemon that answers is no child of main process {main.pid}",
            expected,
            restart(one),
        )
    return passed(f"main process {main.pid} serves {directory}")


@judgement()
def orphan_daemon(view: View) -> Finding:
    """No control daemon names this directory and is not the unit's (B26: its socket may be gone or taken over)."""
    one, host = view.one, view.host
    gap = host.systemd_unread or host.processes.unread
    if gap:
        return unknown(words.unread(gap))
    if one.desired is None:
        return unknown("which directory it has is not known")
    places = host.directories(one.desired)
    orphans = [each for each in host.processes.daemons if daemons.on_directory(each, *places) and each.pid != one.pid]
    if not orphans:
        return passed("none")
    orphan = orphans[0]
    line = f"orphan: {words.daemon(orphan, host.devices(orphan))}"
    line += ", its socket is gone" if "control" in (orphan.missing or ()) else ""
    return failed(
        line,
        f"only the main process of {one.unit.name}",
        f"its clients lose MPS with it: drain them, then end pid {orphan.pid}; start no other daemon before",
        reasons=[Reason("orphan-daemon", line)],
        facts={"pids": [each.pid for each in orphans]},
    )


@judgement()
def other_daemons(view: View) -> Finding:
    """Nobody else's daemon serves the same GPU (B14, B15, B49)."""
    one, host = view.one, view.host
    gap = host.gpus.unread or host.processes.unread
    if gap:
        return unknown(words.unread(gap))
    mine = {device.uuid for device in one.devices} | {device.gpu.uuid for device in one.devices}
    unread, claims = [], []
    places = host.directories(one.desired) if one.desired is not None else None
    for daemon in host.processes.daemons:
        if daemon.pid == one.pid or (places is not None and daemons.on_directory(daemon, *places)):
            continue
        devices = host.devices(daemon)
        if devices is None:
            unread += [daemon] if daemon in host.foreign else []  # an instance's serves what its file says
        elif mine & set(devices) and not daemon.roots:
            claims.append(daemon)
        elif mine & set(devices) and (other := _instance_of(view, daemon.pid)) is not None:
            return _of_instance(one, other, daemon.pid, sorted(mine & set(devices)))
        elif mine & set(devices):
            line = f"another control daemon serves a GPU of this instance: {words.daemon(daemon, devices)}"
            return failed(
                line,
                "one daemon for each GPU",
                f"find who starts pid {daemon.pid}, and let it or this instance have the GPU",
                reasons=[Reason("two-daemons-one-gpu", line)],
                facts={"pids": [daemon.pid]},
            )
    if unread:
        return unknown(f"a {words.daemon(unread[0], None)} cannot be looked at", remedy=as_root(view))
    if claims:
        lines = [words.daemon(each, host.devices(each)) for each in claims]
        line = f"a user's process looks like a control daemon of a GPU of this instance: {lines[0]}"
        return warned(
            line,
            "one daemon for each GPU",
            f"find out what pid {claims[0].pid} is: a process can have any name and environment",
            *lines,
            reasons=[Reason("two-daemons-one-gpu", line)],
            facts={"pids": [each.pid for each in claims]},
        )
    return passed("no other daemon serves its GPUs")


def _instance_of(view: View, pid: int) -> Optional[str]:
    """The instance whose main process this is, or None."""
    return next((name for name, unit in view.host.units.items() if unit.main_pid == pid), None)


def _of_instance(one: InstanceFacts, other: str, pid: int, uuids: Sequence[str]) -> Finding:
    """A GPU that moves from one instance to another is the former one's until its daemon ends."""
    line = f"the instance {other!r} (control daemon {pid}) {'also' if one.pid else 'still'} serves {', '.join(uuids)}"
    remedy = (
        f"site.yml gives it over once the clients of {other!r} have left (mps_on_clients); where both instances are"
        " desired, leave it to one of them in mps_instances"
    )
    cause = "two-daemons-one-gpu" if one.pid else "set-before-restart"
    reasons = [Reason(cause, line, remedy)]
    return failed(line, "one daemon for each GPU", remedy, reasons=reasons, mends=CONVERGE, facts={"pids": [pid]})


@judgement()
def daemon_answers(view: View) -> Finding:
    """The daemon answers within its deadline; a stopped one accepts connections and never does."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    answer = one.answer
    if answer.kind == facts.ANSWERED:
        return passed(f"the control daemon {one.pid} answers")
    if answer.kind == facts.NOT_ASKED:
        if one.active and one.main is not None and one.main.readable and one.main.serves is None:
            return unknown("the main process is no control daemon (see main-process)")
        return unknown("which directory it serves cannot be read", remedy=as_root(view))
    if answer.kind == facts.REFUSED:
        return unknown(f"the daemon was not asked: {answer.words}")
    if answer.disturbed and not answer.held and not one.jammed:
        return unknown("the daemon was busy with clients of the front door all the while", remedy="look again")
    found, remedy, cause = _why_not(one)
    return failed(
        found, "an answer", remedy, reasons=[Reason(cause, found, remedy)], facts={"holders": list(answer.holders)}
    )


def _why_not(one: InstanceFacts) -> tuple[str, str, str]:
    """What is known of a daemon that does not answer: in words, what to do, and the cause."""
    answer, unit = one.answer, pasted(one.unit.name)
    if answer.kind == facts.STOPPED:
        found = f"the control daemon (pid {one.pid}) is stopped by a signal (state T): it answers nobody"
        return found, f"kill -CONT {one.pid}, and find who stopped it", "daemon-stopped"
    if one.jammed:
        found = (
            f"the control daemon (pid {one.pid}) is jammed: it answers no question about its servers, nobody holds its"
            " session, and new clients hang; so it stays when a client dies as it connects"
        )
        remedy = f"when no client is at work, systemctl restart {unit}; health does it where nobody can be hurt"
        return found, remedy, "daemon-jammed"
    if answer.kind == facts.UNREACHABLE:
        found = f"the control daemon (pid {one.pid}) lives, and nothing listens on its socket: {answer.words}"
        return found, f"drain its clients, then systemctl restart {unit}", "socket-gone"
    if answer.held:
        return answer.words, f"end the session that holds it: {words.session_holders(answer)}", "session-held"
    if answer.holders_untold:
        found = f"{answer.words}; who is connected to it cannot be told: {shown(answer.holders_untold)}"
        return found, f"as root, look who has its socket open; then systemctl restart {unit}", "daemon-hangs"
    return (
        answer.words,
        f"see journalctl -u {unit}; when no client is at work, systemctl restart {unit}",
        "daemon-hangs",
    )


@judgement()
def daemon_directory(view: View) -> Finding:
    """Only root and the daemon's servers come to the daemon's own directory, only root to its log, and without a front
    door everyone to the socket for clients alone."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    directory = _served(one)
    if directory is None or one.directory_closed is None:
        return unknown("the daemon's directory cannot be looked at", remedy=as_root(view))
    public = one.serves_public is not None
    if one.directory_closed:
        return passed(f"{directory}: {'all but the socket for clients' if public else 'it'} is root's alone")
    if public:
        line = f"others than root come to more in {directory} than to the daemon's socket for clients"
        return failed(line, "everyone at the socket for clients alone", reload(one), mends=RELOAD)
    expected = "open to root and the daemon's servers alone"
    if directory == view.host.places.pipe(one.name):
        line = f"others than root come to {directory}: they can write the daemon's log, or pass by the front door"
        return failed(line, expected, reload(one), mends=RELOAD)
    return warned(
        f"the daemon was started by an earlier release: {directory} is open to everyone who guesses its name",
        expected,
        restart(one),
    )


@judgement()
def pipe_directory_files(view: View) -> Finding:
    """The live daemon's files are complete (B26, B27, B58: cleaners and scripts remove them under it)."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    directory = _served(one)
    if directory is None or one.missing_files is None:
        return unknown("the daemon's directory cannot be read", remedy=as_root(view))
    if not one.missing_files:
        return passed(f"{directory} is complete")
    line = f"damage: {', '.join(one.missing_files)} gone from {directory} under daemon {one.pid}"
    return failed(
        line,
        "all that the daemon made there",
        f"do NOT start a second daemon: drain the clients, then systemctl restart {pasted(one.unit.name)}",
        reasons=[Reason("cleaned-pipe-directory", line)],
    )


def _served(one: InstanceFacts) -> Optional[Path]:
    return one.main.serves.pipe_directory if one.main and one.main.serves else None


@judgement()
def pipe_directory_access(view: View) -> Finding:
    """Those that may connect get to the socket (B19: a 0700 parent); who else does is judged at the front door."""
    one = view.one
    if one.desired is None:
        return unknown("who may connect is not known")
    if one.server_user_unknown:
        return failed(
            f"server user {shown(str(one.desired.server_user))} is not on this host",
            "a user of this host",
            "set mps_server_user",
        )
    if one.access is not None:
        reason = words.obstacle(one.access)
        if one.access.kind == process_facts.CANNOT_LOOK:
            return unknown(reason.line, remedy=as_root(view))
        reasons = [reason] if reason.cause else []
        return failed(reason.line, f"open to {one.connects_as}", reason.remedy, reasons=reasons)
    if not one.pid:
        return unknown(no_daemon(view))
    if one.closed_for_now:
        return passed(f"{one.public} is closed until clients are let in: see front-door")
    return passed(f"{one.connects_as} may enter {one.public}")


@judgement(verbs=VERIFY_ONLY)
def daemon_log(view: View) -> Finding:
    """Nobody else can have written what the journal has of the daemon: its log is closed since before its start."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    if one.log_trusted is None:
        return unknown("who can write to the daemon's log cannot be looked at", remedy=as_root(view))
    if one.log_trusted:
        return passed("written by the daemon and its servers alone")
    line = f"others can have written to the log of daemon {one.pid}: its lines in the journal are no proof"
    return warned(
        line,
        "a log that is closed to others since before the daemon's start",
        f"systemctl restart {pasted(one.unit.name)} at a convenient time: its clients must be started anew",
        reasons=[Reason("open-log", line)],
    )


@judgement(verbs=VERIFY_ONLY)
def limits_guarded(view: View) -> Finding:
    """Nobody but root changes limits. Daemons before 550, which write no pid file, let everyone who connects do it; the
    front door passes no command on."""
    one = view.one
    behind_door = bool(one.directory_closed) and one.serves_public is None
    if one.guards_limits or behind_door:
        who = "the control daemon lets" if one.guards_limits else "the front door and the daemon's directory let"
        return passed(f"{who} nobody but root change limits")
    if one.guards_limits is None:
        return unknown("the daemon's directory cannot be read" if one.pid else no_daemon(view))
    return warned(
        "every local user who comes to this control daemon (older than 550) may change its limits",
        "a directory that is root's alone",
        "a daemon of 550 or newer, or mps_front_door: true"
        if one.serves_public is not None
        else restart(one)
        if _served(one) != view.host.places.pipe(one.name)
        else reload(one),
    )


@judgement(verbs=VERIFY_ONLY, by_log=True)
def daemon_version(view: View) -> Finding:
    """The daemon's binary is of the driver's release: a mix of both is nobody's (daemons up to 555 do not tell)."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    if one.log_unread:
        return unknown(words.unread(one.log_unread))
    mine, drivers = one.log.cuda_version, view.host.gpus.cuda
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


JUDGEMENTS = (
    main_process,
    orphan_daemon,
    other_daemons,
    daemon_answers,
    front_door,
    front_door_enabled,
    without_front_door,
    daemon_directory,
    pipe_directory_files,
    pipe_directory_access,
    daemon_log,
    limits_guarded,
    daemon_version,
)
