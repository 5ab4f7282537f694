"""Every control daemon and server of this host, found once and by /proc, whoever started it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import hardware, procfs
from mpsctl.adapters.bounded import Call
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import NotReady
from mpsctl.model.gpu import Gpu
from mpsctl.observe.facts import NO_ANSWER, DaemonProcess, ServerProcess, Unread

TIMEOUT_S = 5.0
DAEMON_FILES = ("control", "control_privileged", "control_lock", "log")
"""Those of every daemon; a file with its pid is there from 550 on (control daemons 535, 550, 555)."""
PID_FILE = "nvidia-cuda-mps-control.pid"
_ADOPTERS = (0, 1)


@dataclass
class MpsProcesses:
    """``unread`` says why it is not known what runs. ``named_like_servers`` have a server's name, no daemon above them,
    and nothing that their user could not have made: a name decides nothing."""

    daemons: list[DaemonProcess] = field(default_factory=list)
    servers: list[ServerProcess] = field(default_factory=list)
    named_like_servers: list[ServerProcess] = field(default_factory=list)
    unread: Optional[Unread] = None

    def daemon(self, pid: Optional[int]) -> Optional[DaemonProcess]:
        return next((one for one in self.daemons if one.pid == pid), None)

    def server(self, pid: int) -> Optional[ServerProcess]:
        return next((one for one in self.servers if one.pid == pid), None)


@dataclass(frozen=True)
class _Pids:
    daemons: tuple[int, ...]
    servers: tuple[int, ...]


def begin(timeout_s: float = TIMEOUT_S) -> Call[MpsProcesses]:
    """Look in a process of its own: of one that hangs in the kernel, what /proc tells may hang as well."""
    return Call(_at_once, timeout_s, "the look at the control daemons")


def answer(call: Call[MpsProcesses], timeout_s: float = TIMEOUT_S) -> MpsProcesses:
    """What was found; where one process hangs the look, each is looked at by itself."""
    try:
        return call.answer()
    except NotReady:
        pass
    try:
        pids = Call(_pids, timeout_s, "the list of processes").answer()
    except NotReady as error:
        return MpsProcesses(unread=Unread("/proc", NO_ANSWER, str(error)))
    daemons = [Call(partial(_daemon, pid), timeout_s, f"process {pid}") for pid in pids.daemons]
    servers = [Call(partial(_server, pid, pids.daemons), timeout_s, f"process {pid}") for pid in pids.servers]
    found = MpsProcesses()
    for pid, call_of_daemon in zip(pids.daemons, daemons):
        try:
            found.daemons.append(call_of_daemon.answer())
        except NotReady:
            found.daemons.append(DaemonProcess(pid, "", None, None, state="D"))
    for pid, call_of_server in zip(pids.servers, servers):
        try:
            _sort(found, *call_of_server.answer())
        except NotReady:
            _sort(found, ServerProcess(pid, None, None, None, state="D"), False)
    return found


def _at_once() -> MpsProcesses:
    pids = _pids()
    found = MpsProcesses([_daemon(pid) for pid in pids.daemons])
    for pid in pids.servers:
        _sort(found, *_server(pid, pids.daemons))
    return found


def _sort(found: MpsProcesses, server: ServerProcess, of_root: bool) -> None:
    believed = of_root or server.daemon is not None
    (found.servers if believed else found.named_like_servers).append(server)


def _pids() -> _Pids:
    """The daemon's program without arguments is a front-end (control daemons 535, 550, 555; driver 580)."""
    programs = {pid: program for pid in procfs.pids() for program in [hardware.mps_program(pid)] if program}
    controls = [pid for pid, program in programs.items() if program == hardware.CONTROL_DAEMON]
    daemons = [pid for pid in controls if len(procfs.arguments(pid)) > 1]
    return _Pids(
        tuple(pid for pid in daemons if procfs.parent(pid) not in daemons),
        tuple(pid for pid, program in programs.items() if program == hardware.SERVER),
    )


def _daemon(pid: int) -> DaemonProcess:
    environment, uid = procfs.environment(pid), procfs.uid(pid)
    found = DaemonProcess(
        pid,
        procfs.command(pid),
        uid,
        None if uid is None else procfs.user(uid),
        procfs.container(pid),
        procfs.state(pid),
        procfs.parent(pid),
        readable=environment is not None,
        roots=procfs.is_roots(pid),
    )
    if environment is None:
        return found
    directory = Path(environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY)
    return replace(
        found,
        directory=directory,
        visible=environment.get(VISIBLE_DEVICES),
        elsewhere=_elsewhere(pid, directory),
        missing=missing_files(procfs.root(pid) / str(directory).lstrip("/")),
    )


def missing_files(directory: Path) -> Optional[tuple[str, ...]]:
    """Which of a daemon's files are not there; None where the directory may not be read."""
    try:
        present = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return DAEMON_FILES
    except OSError:
        return None
    return tuple(name for name in DAEMON_FILES if name not in present)


def _server(pid: int, daemons: Sequence[int]) -> tuple[ServerProcess, bool]:
    """A server, and whether root's daemon started it."""
    uid, parent = procfs.uid(pid), procfs.parent(pid)
    # A server in a container whose daemon this host cannot see has a parent that is neither a daemon nor an adopter.
    daemon = parent if parent in daemons or parent not in _ADOPTERS else None
    server = ServerProcess(pid, uid, None if uid is None else procfs.user(uid), daemon, procfs.state(pid))
    return server, hardware.of_roots_daemon(pid)


def _elsewhere(pid: int, directory: Path) -> bool:
    """Whether a daemon of another pid namespace has another directory of this name than this host."""
    namespace = procfs.namespace(pid, "pid")
    if namespace is None or namespace == procfs.namespace(os.getpid(), "pid"):
        return False
    try:
        return not os.path.samefile(directory, procfs.root(pid) / str(directory).lstrip("/"))
    except OSError:
        return True


def devices(daemon: DaemonProcess, gpus: Sequence[Gpu]) -> Optional[tuple[str, ...]]:
    """The UUIDs of what a daemon offers: without the variable every GPU (driver 580, H200). None: not told."""
    if not daemon.readable:
        return None
    if daemon.visible is None:
        return tuple(gpu.uuid for gpu in gpus)
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))]
    found: list[str] = []
    for word in (part.strip() for part in daemon.visible.split(",")):
        found += [gpu.uuid for gpu in gpus if word == str(gpu.index)]
        if word.startswith(("GPU-", "MIG-")):
            found += [uuid for uuid in uuids if uuid.startswith(word)] or [word]
    return tuple(found)


def on_directory(daemon: DaemonProcess, public: Path, own: Path) -> bool:
    """Whether a daemon of root's serves an instance's public directory on this host, one inside it, or ``own``, by its
    environment and never by a title. Others may not make a socket there."""
    served = None if daemon.elsewhere or not daemon.roots else daemon.directory
    return served is not None and (served in (public, own) or public in served.parents)
