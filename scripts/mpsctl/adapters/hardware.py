"""What says "there is a GPU here" besides NVML, where the daemon's binaries lie, and what host this is.

This is the one place that looks at the PCI bus and at /proc/driver/nvidia. A lab without silicon stands
in for both by naming another root in ``MPSCTL_SYSROOT``; every report then says "simulated".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, procfs
from mpsctl.model import foreign
from mpsctl.model.errors import Unreadable

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
SEARCH_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/nvidia/bin",
    "/opt/nvidia/bin",
)
"""Debian keeps the server in /usr/sbin; driver roots of container systems lie under the last two."""

CONTROL_DAEMON, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"


def _sysroot() -> Path:
    return Path(os.environ.get("MPSCTL_SYSROOT") or "/")


def simulated() -> bool:
    """Whether the PCI bus and the driver are a lab's."""
    return _sysroot() != Path("/")


def nvidia_on_bus() -> bool:
    """Whether an NVIDIA display device is on the PCI bus; bridges and audio functions do not count.

    A host with no PCI bus to look at (some virtual and ARM systems) has one if the driver says so.
    """
    devices = _sysroot() / "sys/bus/pci/devices"
    for vendor in devices.glob("*/vendor"):
        try:
            display = vendor.with_name("class").read_text().startswith(_DISPLAY)
            if display and vendor.read_text().strip() == _NVIDIA:
                return True
        except OSError:
            continue
    return not devices.is_dir() and driver_version() is not None


def driver_version() -> Optional[str]:
    """The loaded driver's version by /proc/driver/nvidia, or None while no driver is loaded."""
    try:
        text = (_sysroot() / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def device_minor(pci_address: str) -> Optional[int]:
    """N of the device file /dev/nvidiaN of a GPU, which is not its index everywhere; None where the driver does not
    tell it (NVIDIA's README of the driver: /proc/driver/nvidia/gpus/*/information)."""
    try:
        text = (_sysroot() / "proc/driver/nvidia/gpus" / pci_address / "information").read_text()
    except OSError:
        return None
    match = re.search(r"^Device Minor:\s*(\d+)\s*$", text, re.MULTILINE)
    return int(match[1]) if match else None


def binary(name: str) -> Optional[Path]:
    """Where an executable of the MPS package lies, or None."""
    for directory in SEARCH_PATH:
        path = Path(directory) / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def mps_program(pid: int) -> Optional[str]:
    """CONTROL_DAEMON or SERVER where the process runs one of them, by its command line or else its file; or None.

    The kernel cuts both names to the same 15 characters (comm is ``nvidia-cuda-mps``). It is asked first all the same:
    to read the command line of a process that hangs may hang.
    """
    if procfs.name(pid) != CONTROL_DAEMON[:15]:
        return None
    # The second word is the program where the first one is an interpreter.
    names = [Path(word).name for word in procfs.title(pid).split()[:2]]
    executable = procfs.executable(pid)
    names += [] if executable is None else [executable.name.partition(" (deleted)")[0]]
    return next((name for name in names if name in (CONTROL_DAEMON, SERVER)), None)


def of_roots_daemon(pid: int) -> bool:
    """Whether root's daemon started a process that has a server's name, by what its user cannot choose: a server keeps
    root's group, whatever its user (control daemons 535, 550, 555; driver 580). In a container that group is nothing
    special."""
    return procfs.has_roots_group(pid) and procfs.container(pid) is None


def is_server(pid: int) -> bool:
    """Whether the process is an MPS server of root's daemon, or of one that this process's user runs. Its name alone is
    no evidence."""
    if mps_program(pid) != SERVER:
        return False
    parent = procfs.parent(pid)
    return of_roots_daemon(pid) or (mps_program(parent) == CONTROL_DAEMON and procfs.uid(parent) == os.geteuid())


def replaced(pid: int) -> Optional[str]:
    """Why a control daemon does not run the installed file, in a few words; None where it does or that cannot be told.

    Packages put a new file in the old one's place, so a running daemon keeps the old one until its restart. A daemon
    behind a wrapper of another name is not judged.
    """
    running, installed = procfs.executable(pid), binary(CONTROL_DAEMON)
    if running is None or installed is None:
        return None
    if running.name == f"{CONTROL_DAEMON} (deleted)":
        gone = foreign.shown(str(running).rpartition(" ")[0])
        return f"the daemon's file {gone} was replaced after its start"
    if running.name == CONTROL_DAEMON and running != installed.resolve():
        return f"the daemon runs {foreign.shown(str(running))}, installed is {installed.resolve()}"
    return None


def os_release() -> dict[str, str]:
    """The distribution, by os-release(5): ID, ID_LIKE, VERSION_ID."""
    found = {}
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            text = files.read_text(Path(path))
        except Unreadable:
            continue
        if text is None:
            continue
        for line in text.splitlines():
            key, separator, value = line.partition("=")
            if separator:
                found[key] = value.strip().strip("\"'")
        break
    return {key: found.get(key, "") for key in ("ID", "ID_LIKE", "VERSION_ID")}


def multi_user_flag() -> Optional[str]:
    """How this host's control daemon is told to serve several users at once, or None if it cannot.

    Asked of the binary itself: 555 knows ``-multiuser-server``, driver 580 ``-M`` as well, 535 and 550
    neither. Given a flag that it does not know, an old one becomes a front-end and ends (control daemons 535,
    550, 555).
    """
    path = binary(CONTROL_DAEMON)
    try:
        content = path.read_bytes() if path else b""
    except OSError:
        return None
    if b"--multiuser-server" in content:
        return "-M"
    return "-multiuser-server" if b"-multiuser-server" in content else None


def serves_several_users(title: str) -> bool:
    """Whether a control daemon with this ``procfs.title`` was told to."""
    return any(word in ("-M", "-multiuser-server", "--multiuser-server") for word in title.split())
