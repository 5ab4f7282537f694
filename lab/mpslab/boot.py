"""Starting hosts side by side, waiting for them, finding their processes, and ending them."""

from __future__ import annotations

import re
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import Optional, Sequence

from mpslab import cgroups, enter, hosts, processes, ssh, supervisor
from mpslab.errors import LabError
from mpslab.places import Places


def start(places: Places, host: hosts.Host) -> None:
    """Start the host's supervisor, detached from the caller in every way."""
    base = hosts.folder(places, host.name)
    with (base / "supervisor.log").open("wb") as log:
        subprocess.Popen(
            supervisor.command("enter", host.name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**processes.ENVIRONMENT, "MPS_LAB_DIR": str(places.base)},
            cwd="/",
            start_new_session=True,
        )


def supervisor_pid(places: Places, name: str) -> Optional[int]:
    """The process behind the host, or None while it is not running."""
    return processes.recorded(hosts.folder(places, name) / supervisor.RECORD)


def leader_pid(places: Places, name: str) -> Optional[int]:
    """The machine's id of the host's own PID 1, or None (for a moment also during a reboot)."""
    behind = supervisor_pid(places, name)
    while behind is not None:
        below = next(iter(processes.children(behind)), None)
        if processes.name(behind) == "systemd-nspawn":
            return below
        behind = below
    return None


def host_root(places: Places, host: hosts.Host) -> Path:
    """The host's files: as it sees them while it runs, else what will be laid over its root at the next boot."""
    leader = leader_pid(places, host.name)
    return Path(f"/proc/{leader}/root") if leader else hosts.folder(places, host.name) / "upper"


def wait(places: Places, waiting: Sequence[hosts.Host], timeout_s: float) -> None:
    """Wait until every host's sshd greets; where this machine has no ssh, until its systemd says that it is up.

    :raises LabError: naming those that do not, with the end of the first one's console.
    """
    deadline = time.monotonic() + timeout_s
    left = list(waiting)
    by_ssh = ssh.client() is not None
    while left:
        left = [host for host in left if not (_greets(host) if by_ssh else is_up(places, host.name))]
        dead = [host for host in left if supervisor_pid(places, host.name) is None]
        if dead and time.monotonic() > deadline - timeout_s + 5:
            raise LabError(f"{_names(dead)} ended while booting: {_last_words(places, dead[0])}")
        if left and time.monotonic() > deadline:
            raise LabError(
                f"{_names(left)} did not answer within {timeout_s:.0f} s; see {hosts.folder(places, left[0].name)}/"
                f"{supervisor.CONSOLE}"
            )
        if left:
            time.sleep(0.05)


def is_up(places: Places, name: str) -> bool:
    """Whether the host's boot is over, by its own systemd, well or not."""
    leader = leader_pid(places, name)
    if leader is None:
        return False
    asked = subprocess.run(
        enter.command(leader, ["systemctl is-system-running"]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() in ("running", "degraded")


def _greets(host: hosts.Host) -> bool:
    try:
        with socket.create_connection((host.address, host.port), timeout=1) as connection:
            readable, _, _ = select.select([connection], [], [], 1)
            return bool(readable) and connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _names(some: Sequence[hosts.Host]) -> str:
    return ", ".join(host.name for host in some)


def _last_words(places: Places, host: hosts.Host) -> str:
    for name in ("supervisor.log", supervisor.CONSOLE):
        path = hosts.folder(places, host.name) / name
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        # without the colours of a console
        said = [line for line in (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in lines) if line]
        if said:
            return " / ".join(said[-2:])
    return "no message"


def stop(places: Places, names: Sequence[str]) -> None:
    """End hosts at once, as a loss of power would."""
    for name in names:
        processes.kill(hosts.folder(places, name) / supervisor.RECORD)
    for name in names:
        cgroups.remove(places, name)
