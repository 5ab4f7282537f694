"""Processes of the lab: found again by id and start time, so that a reused id is never taken for ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpslab.errors import LabError

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""All that a command of the lab gets to see of an environment: nothing of the caller's reaches a host."""

CONTAINED = ("unshare", "--mount-proc", "--pid", "--fork", "--kill-child=KILL")
"""Before a command: its mounts and all of its processes end with it, by the kernel's own doing."""


def run(command: Sequence[str | Path], *, log: Optional[Path] = None, env: Mapping[str, str] = ENVIRONMENT) -> str:
    """What the command printed. It dies with the lab: a killed lab leaves no build running.

    :raises LabError: if it fails, with the end of what it said.
    """
    words = ["setpriv", "--pdeathsig", "TERM", "--", *map(str, command)]
    # bytes: package tools print names in any encoding
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=dict(env), umask=0o022)
    said, complaint = (text.decode(errors="replace") for text in (ended.stdout, ended.stderr))
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(said + complaint)
    if ended.returncode != 0:
        lines = [line for line in (complaint or said).splitlines() if line.strip()]
        hint = f"; see {log}" if log is not None else ""
        raise LabError(f"{command[0]} ended with {ended.returncode}: {' / '.join(lines[-3:]) or 'no message'}{hint}")
    return said


def start_time(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot, or None if there is none (a zombie counts as none)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def children(pid: int) -> list[int]:
    """The children of a process, by id."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None and int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry))
    return sorted(found)


def name(pid: int) -> str:
    """The name of a process, or nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def record(path: Path) -> None:
    """Write down the calling process."""
    path.write_text(json.dumps({"pid": os.getpid(), "start_time_ticks": start_time(os.getpid())}))


def recorded(path: Path) -> Optional[int]:
    """The process that was recorded there, if it still is that one."""
    try:
        entry = json.loads(path.read_text())
        pid, ticks = int(entry["pid"]), int(entry["start_time_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if start_time(pid) == ticks else None


def kill(path: Path, timeout_s: float = 10.0) -> None:
    """End the recorded process at once and wait until it is gone.

    :raises LabError: if it does not go.
    """
    pid = recorded(path)
    if pid is None:
        return
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while recorded(path) == pid:
        if time.monotonic() > deadline:
            raise LabError(f"process {pid} of the lab is still there {timeout_s:.0f} s after kill -9; try again")
        time.sleep(0.01)


def _stat(pid: int) -> Optional[list[str]]:
    """The fields of /proc/PID/stat behind the name, which may itself hold blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
