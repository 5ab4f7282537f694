"""Processes, by /proc."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import Iterator, Optional

from mpsctl.model import foreign
from mpsctl.model.pattern import Pattern

_PROC = Path("/proc")
_SET_PIPE_SIZE = 1031
"""F_SETPIPE_SZ, which Python names from 3.10 on."""
_MOST_BYTES = 128 << 10
"""What is read of a command line or an environment: every user can have some of several MB."""
_CONTAINER = Pattern(
    r"(?:^|/)(?:(?:docker|cri-containerd|crio|libpod)[-/]|lxc\.payload\.)(?P<runtime>[0-9a-zA-Z_.-]+?)(?:\.scope)?(?:/|$)"
    r"|kubepods[^ ]*/(?P<pod>[0-9a-f]{64})(?:/|$)"
    r"|machine\.slice/(?:systemd-nspawn@|machine-)(?P<machine>[^/]+?)\.(?:service|scope)"
)
_UNIT = Pattern(r"/([^/]+\.(?:service|scope))(?:/|$)")
_SESSION = Pattern(r"/session-([0-9a-zA-Z]+)\.scope(?:/|$)")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def started_at(pid: int) -> Optional[int]:
    """When the process began, in clock ticks since boot: with the pid it names one process for good."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def lives(pid: int, began_at: Optional[int]) -> bool:
    """Whether the very process runs that had this pid and began at that moment (``started_at``)."""
    return alive(pid) and started_at(pid) == began_at


def stack(pid: int) -> int:
    """Where the stack of the program lies that the process runs: exec(2) puts the next program's elsewhere, while the
    kernel randomises addresses. 0 where that is not told (proc(5), startstack)."""
    stat = _stat(pid)
    return int(stat[25]) if stat else 0


def age_s(started_at: Optional[int], now_s: float) -> Optional[int]:
    """How long ago a process began, from its ``started_at`` and the time since boot; None where that is not known."""
    if started_at is None:
        return None
    # In whole ticks: seconds as floats fall short of a whole one now and then.
    ticks = os.sysconf("SC_CLK_TCK")
    return max(0, (round(now_s * ticks) - started_at) // ticks)


def send(pid: int, began_at: int, number: signal.Signals) -> bool:
    """Send a signal to the process whose ``started_at`` is ``began_at``, and to no later one with the same pid.

    :returns: whether it was there.
    :raises PermissionError: if that is not allowed.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # From here on the descriptor is of one process, so what is looked at is what gets the signal.
        if started_at(pid) != began_at:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _stat(pid: int) -> Optional[list[str]]:
    """The fields of /proc/PID/stat from the state on; the name before them may hold blanks and brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def state(pid: int) -> str:
    """The kernel's letter for what the process does: R, S, D (waits and cannot be ended), T (stopped), Z (zombie) …

    Empty when it is gone.
    """
    stat = _stat(pid)
    return stat[0] if stat else ""


def stopped(pid: int) -> bool:
    """Whether a signal or a debugger stopped the process: it accepts connections and never answers."""
    return bool(pid) and state(pid) in ("T", "t")


def container(pid: int) -> Optional[str]:
    """The container of a process by its control group: an id or a name, for people; None where it is in none."""
    found = _control_group(pid, _CONTAINER)
    return foreign.shown(_id_of(found)) if found else None


def container_in(group: str) -> Optional[tuple[str, int]]:
    """The container that a control group's path leads to, and where its own part of the path ends."""
    found = _CONTAINER.search(group)
    return (_id_of(found), found.end()) if found else None


def _id_of(found: re.Match[str]) -> str:
    return found["runtime"] or found["pod"] or found["machine"]


def unit(pid: int) -> Optional[str]:
    """The systemd unit of a process by its control group, for people; None where it is in none.

    It is the outermost one, which root's systemd made: below it a user may name groups as he likes.
    """
    found = _control_group(pid, _UNIT)
    return foreign.shown(found[1]) if found else None


def session(pid: int) -> Optional[str]:
    """The login session in which a process was started, by its control group; None where it is in none."""
    found = _control_group(pid, _SESSION)
    return found[1] if found else None


def control_groups(pid: int) -> Optional[dict[str, str]]:
    """The path of a process's control group in each hierarchy, by the names of its controllers, "" of version 2; None
    where that cannot be read. A user's groups have names of his: all signs but a line feed (cgroups(7))."""
    try:
        text = (_PROC / str(pid) / "cgroup").read_bytes().decode(errors="replace")
    except OSError:
        return None
    lines = (line.split(":", 2) for line in text.split("\n"))
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}


def _control_group(pid: int, wanted: Pattern) -> Optional[re.Match[str]]:
    paths = (control_groups(pid) or {}).values()
    return next((found for found in map(wanted.search, paths) if found), None)


def namespace(pid: int, kind: str) -> Optional[str]:
    """The name of a namespace of the process (``mnt``, ``pid`` …), or None where that may not be read."""
    try:
        return os.readlink(_PROC / str(pid) / "ns" / kind)
    except OSError:
        return None


def root(pid: int) -> Path:
    """The root directory of the process: what it sees is found below it."""
    return _PROC / str(pid) / "root"


def parent(pid: int) -> int:
    """The process id of the parent, 0 when the process is gone."""
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def name(pid: int) -> str:
    """The process's name as the kernel keeps it, at most 15 bytes; every process can choose its own."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def command(pid: int) -> str:
    """The command line for people, as ``foreign.shown`` has it; empty when the process is gone."""
    return foreign.shown(title(pid))


def title(pid: int) -> str:
    """The command line as it is, or the bare name where that is empty; of a very long one the beginning.

    A process may write there what it likes: to be compared and never printed, for which there is ``command``.
    """
    raw = _beginning(pid, "cmdline")
    return "" if raw is None else raw.replace(b"\0", b" ").decode(errors="replace").strip() or name(pid)


def _beginning(pid: int, file: str) -> Optional[bytes]:
    """At most _MOST_BYTES of one of the process's files, or None where it may not be read."""
    try:
        with (_PROC / str(pid) / file).open("rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return None


def arguments(pid: int) -> list[str]:
    """The words of the command line, empty where it may not be read."""
    return command(pid).split()


def executable(pid: int) -> Optional[Path]:
    """The file that the process runs; its name ends with `` (deleted)`` once that was replaced or removed.

    None where that may not be read.
    """
    try:
        return Path(os.readlink(_PROC / str(pid) / "exe"))
    except OSError:
        return None


def uid(pid: int) -> Optional[int]:
    """The effective user id of the process, or None when it is gone."""
    try:
        return os.stat(_PROC / str(pid)).st_uid
    except OSError:
        return None


def is_roots(pid: int) -> bool:
    """Whether root started the process. One of a user is not, also where it runs a program with the setuid bit, whose
    name, command line and environment are that user's to choose."""
    return _has_only(pid, "Uid", stat.S_ISUID)


def begun_by_root(pid: int) -> bool:
    """Whether root started the process, which may act as a user for a moment: its real and saved user are root, and not
    by a program's setuid bit."""
    ids = _status(pid).get("Uid", "").split()
    return len(ids) == 4 and ids[0] == ids[2] == "0" and not _mode_of_program(pid) & stat.S_ISUID


def has_roots_group(pid: int) -> bool:
    """Whether root gave the process its group: it has no other than root's, and not by a program's setgid bit."""
    return _has_only(pid, "Gid", stat.S_ISGID)


def _has_only(pid: int, ids: str, not_by: int) -> bool:
    """Whether a process's ids of this kind (real, effective, saved, of files) are all 0, and not by a bit of its
    program's mode."""
    return _status(pid).get(ids, "").split() == ["0"] * 4 and not _mode_of_program(pid) & not_by


def _mode_of_program(pid: int) -> int:
    """The mode of the file that a process runs; every bit where that may not be looked at."""
    try:
        return os.stat(_PROC / str(pid) / "exe").st_mode
    except OSError:
        return -1


def groups(pid: int) -> tuple[int, ...]:
    """The group ids of the process, supplementary ones as well; empty when it is gone."""
    lines = _status(pid)
    words = [*lines.get("Gid", "").split()[1:2], *lines.get("Groups", "").split()]
    return tuple(int(word) for word in words)


def _status(pid: int) -> dict[str, str]:
    """Empty when the process is gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def gid(name: str) -> Optional[int]:
    """The id of a group of this host by its name or number, or None if it has none of that name."""
    if name.isdigit():
        return int(name)
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def uid_of(user: str) -> Optional[int]:
    """The id of a user of this host by its name or number, or None if it has none of that name."""
    if user.isdigit():
        return int(user)
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def user(uid: int) -> Optional[str]:
    """The name of a user of this host, or None if it has none (those of a container are not this host's)."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def environment(pid: int) -> Optional[dict[str, str]]:
    """The environment with which the process was started, or None where it may not be read.

    Of one above 128 KiB only the variables that lie whole in its beginning are there. The values are as they are:
    whoever quotes one uses ``foreign.shown``.
    """
    raw = _beginning(pid, "environ")
    return None if raw is None else _variables(raw)


def begin_environment(pid: int) -> subprocess.Popen[bytes]:
    """Read an environment in a process of its own, which may take as long as the user whose it is likes.

    :raises OSError: if no process can be started.
    """
    words = ["head", "-c", str(_MOST_BYTES), str(_PROC / str(pid) / "environ")]
    reader = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert reader.stdout is not None
    fcntl.fcntl(reader.stdout, _SET_PIPE_SIZE, 2 * _MOST_BYTES)  # so that it ends without being read
    return reader


def read_environment(reader: subprocess.Popen[bytes]) -> Optional[dict[str, str]]:
    """What a process of ``begin_environment`` read, as ``environment`` gives it; None if it has not ended by itself, or
    could not read it."""
    assert reader.stdout is not None
    with reader.stdout:
        return _variables(reader.stdout.read()) if reader.poll() == 0 else None


def _variables(raw: bytes) -> dict[str, str]:
    if len(raw) == _MOST_BYTES:
        raw = raw[: raw.rfind(b"\0") + 1]  # the last one may be incomplete
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def pids() -> Iterator[int]:
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            yield int(entry)


def tree(root: int) -> list[int]:
    """The process and its descendants that are there now, the root first."""
    parents: dict[int, list[int]] = {}
    for pid in pids():
        stat = _stat(pid)
        if stat:
            parents.setdefault(int(stat[1]), []).append(pid)
    found = [root]
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file of this name open; False where that may not be read."""
    try:
        descriptors = os.listdir(_PROC / str(pid) / "fd")
    except OSError:
        return False
    return any(_target(pid, descriptor) == str(path) for descriptor in descriptors)


def open_sockets(pid: int) -> Iterator[tuple[int, int]]:
    """The sockets that the process has open: its descriptor and the socket's inode. None where that may not be read."""
    try:
        descriptors = os.listdir(_PROC / str(pid) / "fd")
    except OSError:
        return
    for descriptor in descriptors:
        target = _target(pid, descriptor)
        if target and target.startswith("socket:["):
            yield int(descriptor), int(target[8:-1])


def _target(pid: int, descriptor: str) -> Optional[str]:
    try:
        return os.readlink(_PROC / str(pid) / "fd" / descriptor)
    except OSError:
        return None


def maps(pid: int, name: str) -> bool:
    """Whether the process has a file of this name mapped; False where that may not be read."""
    try:
        return name in (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return False


def mounts(pid: int) -> Optional[dict[str, str]]:
    """Where the process has something mounted, with what part of its file system that is; None where not readable.

    Of two mounts on one place the later hides the former. ``{"/run/mps": "/run/nvidia-mps/0"}`` is a bind mount.
    """
    try:
        text = (_PROC / str(pid) / "mountinfo").read_text(errors="replace")
    except OSError:
        return None
    rows = (line.split() for line in text.splitlines())
    return {_unescaped(row[4]): _unescaped(row[3]) for row in rows if len(row) > 4}


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def maps_users(pid: int) -> Optional[bool]:
    """Whether the process is in a user namespace in which its user ids are others; None where not readable."""
    try:
        rows = [line.split() for line in (_PROC / str(pid) / "uid_map").read_text().splitlines()]
    except OSError:
        return None
    return any(row[0] != row[1] for row in rows if len(row) == 3)


def open_files_limit(pid: int) -> Optional[int]:
    """How many files the process may have open (the soft limit), or None where that is not told or unlimited."""
    try:
        text = (_PROC / str(pid) / "limits").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^Max open files +(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None
