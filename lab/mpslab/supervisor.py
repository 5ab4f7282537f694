"""The process behind one host: mounts its root where nobody else sees it, and boots it again whenever it reboots.

It runs in a mount and a PID namespace of its own, so neither its mounts nor any process of the host can outlive
it: however it ends, no host is left half there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from mpslab import cgroups, hosts, packages, passthrough, processes
from mpslab.places import SOURCE
from mpslab.places import places as lab_places

REBOOT = 133
"""nspawn's exit code for "the host wants to boot again", where it was told to stay in its unit."""

RECORD, CONSOLE = "supervisor.json", "console.log"
_CONSOLE_MAX_BYTES = 1 << 20
_CGROUP2_MAGIC = 0x63677270


def nspawn_command(host: hosts.Host, base: Path) -> list[str]:
    """How a host is booted: registered nowhere, with nothing of the machine bound or copied into it but a real GPU."""
    # the loader's libraries lie beside a program that is not the machine's own
    program = ["env", f"LD_LIBRARY_PATH={host.nspawn}", f"{host.nspawn}/systemd-nspawn"]
    binds = passthrough.binds() if host.real else []
    binds += [passthrough.Bind(aside, Path(target)) for (_, target), aside in zip(host.shares, _aside(base, host))]
    return [
        *(program if host.nspawn else ["systemd-nspawn"]),
        "--quiet",
        "--boot",
        f"--directory={base}/root",
        f"--machine={host.name}",
        "--register=no",
        "--keep-unit",
        "--settings=no",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=read-only",
        "--kill-signal=SIGRTMIN+3",
        *packages.NSPAWN.get(host.packages, ()),
        *(bind.option() for bind in binds),
    ]


def command(step: str, name: str) -> list[str]:
    """How this module is run as a program: ``enter`` makes the namespaces, ``main`` works in them."""
    script = (
        f"import sys; sys.path.insert(0, sys.argv[1]); from mpslab import supervisor; supervisor.{step}(sys.argv[2])"
    )
    return [sys.executable, "-I", "-S", "-c", script, str(SOURCE), name]


def enter(name: str) -> None:
    """Become ``unshare``, whose only child is the supervisor, the first process of its PID namespace.

    The kernel ends all processes of such a namespace with its first one, and ``--kill-child`` ends that one with
    ``unshare``. So the recorded process stands for all of the host: nspawn alone would leave the host's systemd.
    """
    processes.record(hosts.folder(lab_places(), name) / RECORD)
    os.execvp(processes.CONTAINED[0], [*processes.CONTAINED, *command("main", name)])


def main(name: str) -> None:
    """Boot the host, again and again while it reboots."""
    places = lab_places()
    base = hosts.folder(places, name)
    os.umask(0o022)
    host = hosts.find(places, name)
    _mount(base, host)
    boot = 0
    code = REBOOT
    while code == REBOOT:
        boot += 1
        cgroups.remove(places, name)
        group = cgroups.create(places, name, boot)
        code = _boot(base, group, nspawn_command(host, base))
    cgroups.remove(places, name)


def _mount(base: Path, host: hosts.Host) -> None:
    """The overlay, and two mounts that hide the machine: its /run, and an old cgroup layout that systemd has left.

    What is shared is bound aside before the overlay is there: it may be the machine's whole tree, and a host shall not
    find its own root in it a second time, where its mounts are not read-only. A disk of a size of its own has what the
    host was made with, and is gone with the supervisor.
    """
    disk = hosts.disk(base, host)
    options = f"lowerdir={':'.join(host.lower)},upperdir={disk}/upper,workdir={disk}/work"
    commands = []
    if host.disk_mib is not None:
        disk.mkdir(exist_ok=True)
        commands.append(["mount", "-t", "tmpfs", "-o", f"mode=0755,size={host.disk_mib}m", "lab", str(disk)])
        commands.append(["cp", "-a", f"{base}/upper", f"{base}/work", str(disk)])
    if _file_system(b"/sys/fs/cgroup") != _CGROUP2_MAGIC:
        commands.append(["mount", "-t", "cgroup2", "lab", "/sys/fs/cgroup"])
    commands.append(["mount", "-t", "tmpfs", "-o", "mode=0755", "lab", "/run"])
    for (source, _), aside in zip(host.shares, _aside(base, host)):
        aside.mkdir(parents=True, exist_ok=True)
        commands.append(["mount", "--rbind", source, str(aside)])
    commands.append(["mount", "-t", "overlay", "-o", options, f"lab-{host.name}", str(base / "root")])
    for command in commands:
        subprocess.run(command, check=True, env=processes.ENVIRONMENT)


def _aside(base: Path, host: hosts.Host) -> list[Path]:
    """Where in the supervisor's namespace each share is bound."""
    return [base / "shares" / str(index) for index in range(len(host.shares))]


def _file_system(path: bytes) -> int:
    buffer = (ctypes.c_long * 32)()
    ctypes.CDLL(None).statfs(path, buffer)
    return int(buffer[0])


def _boot(base: Path, group: Path, command: list[str]) -> int:
    console = base / CONSOLE
    if console.exists() and console.stat().st_size > _CONSOLE_MAX_BYTES:
        console.unlink()
    move = 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"'
    with console.open("ab") as log:
        return subprocess.run(
            ["sh", "-c", move, "sh", str(group), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=processes.ENVIRONMENT,
            cwd="/",
        ).returncode
