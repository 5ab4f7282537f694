"""Debian roots that the hosts stand on, built once by mmdebstrap and shared by overlay mounts."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Optional

from mpslab import processes, removal, sources
from mpslab.errors import LabError
from mpslab.places import Places
from mpslab.progress import step

RELEASES = ("bookworm", "trixie")
COMPONENTS = "main non-free"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "openssh-server",
    "iproute2",
    "procps",
    "libfaketime",
)
# Of the machine, or the same for every host: each host gets its own, or none.
_NOT_FOR_HOSTS = (
    "etc/resolv.conf",
    "etc/hostname",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/ssh/ssh_host_*",
    "var/log/bootstrap.log",
    "var/log/alternatives.log",
    "var/log/dpkg.log",
    "var/log/apt/*",
)


def root(places: Places, release: str) -> Path:
    """The release's root, built if it is not there yet or if this file asks for other packages by now."""
    ready = places.roots / f"{release}-{_digest()}"
    if not ready.is_dir():
        for old in places.roots.glob(f"{release}-*"):
            # hosts may stand on it; it goes with the next `down`
            if not in_use(places, old):
                removal.remove(old)
        with step(f"building the {release} root with mmdebstrap (once; about half a minute)"):
            _build(places, release, ready)
    return ready


def _digest() -> str:
    return hashlib.sha256(" ".join((*PACKAGES, COMPONENTS, *_NOT_FOR_HOSTS)).encode()).hexdigest()[:8]


def in_use(places: Places, root: Path) -> bool:
    for spec in places.hosts.glob("*/host.json"):
        with suppress(FileNotFoundError):  # another call removed the host meanwhile
            if root.name in spec.read_text():
                return True
    return False


def apt_options() -> list[str]:
    """How this machine reaches archives, in apt.conf's words."""
    return sources.network_options(processes.run(["apt-config", "dump"]))


def _build(places: Places, release: str, ready: Path) -> None:
    building = places.builds / ready.name
    temporary = places.builds / "tmp"
    removal.remove(building)
    temporary.mkdir(parents=True, exist_ok=True)
    uri = sources.machine_uri()
    command: list[str | Path] = [
        # it mounts the machine's /dev/shm and more: in namespaces that end with it, whatever ends it
        *processes.CONTAINED,
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        f"--components={COMPONENTS}",
        *(f"--aptopt={line}" for line in apt_options()),
        release,
        building,
    ]
    if uri is not None:
        command.append(source_line(uri, release))
    processes.run(command, log=places.base / f"cache/logs/root-{release}.log", env=_environment(temporary))
    for pattern in _NOT_FOR_HOSTS:
        for path in building.glob(pattern):
            path.unlink()
    ready.parent.mkdir(parents=True, exist_ok=True)
    os.rename(building, ready)


def _environment(temporary: Path) -> dict[str, str]:
    """A proxy may be known to the caller's environment alone.

    :param temporary: for what a killed mmdebstrap leaves, so that it goes with the rest of the build.
    """
    proxies = {name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy")}
    return {**processes.ENVIRONMENT, **proxies, "TMPDIR": str(temporary)}


def source_line(uri: str, suite: str) -> str:
    """A line of sources.list that trusts Debian's own keys."""
    return f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {uri} {suite} {COMPONENTS}"


def archive(root: Path) -> str:
    """Where a root was built from.

    :raises LabError: if its own sources do not say.
    """
    found: Optional[str] = next(
        (source.uri for source in sources.of_directory(root / "etc/apt") if "main" in source.components), None
    )
    if found is None:
        raise LabError(f"the root {root} names no archive in etc/apt; remove it and run `lab/lab roots`")
    return found
