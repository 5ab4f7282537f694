"""What the lab needs of the machine, and a refusal in one line where it is not there."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Iterable

from mpslab import processes
from mpslab.errors import LabError
from mpslab.places import Places

_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "gcc": "gcc libc6-dev",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
ROOT_TOOLS = ("mmdebstrap", "systemd-nspawn", "apt-get")
"""What builds and boots a host root; the others are for simulated hosts, or for every lab as these:"""
_NAMESPACE_TOOLS = ("unshare", "nsenter", "setpriv", "mount")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def multiarch() -> str:
    """The folder of shared libraries in a Debian of this machine's kind."""
    return _MULTIARCH[platform.machine()]


def missing_packages(tools: Iterable[str] = tuple(_TOOLS)) -> list[str]:
    """The packages to install for these tools, by Debian's and Ubuntu's names."""
    wanted: list[str] = []
    for tool in tools:
        if shutil.which(tool, path=processes.ENVIRONMENT["PATH"]) is None:
            wanted += _TOOLS[tool].split()
    if "mmdebstrap" in tools and not _KEYRING.exists():
        wanted.append("debian-archive-keyring")
    return sorted(set(wanted))


def check(places: Places, with_parts: bool = True) -> None:
    """See that the lab can run here.

    :param with_parts: whether it has to build what hosts are made of, and to boot them with tools of this machine.
    :raises LabError: with what is missing and what to do.
    """
    if platform.system() != "Linux" or platform.machine() not in _MULTIARCH:
        raise LabError(
            f"found {platform.system()} on {platform.machine()}, the lab runs on Linux on x86_64 or aarch64 (NVIDIA's "
            "daemon comes for these)"
        )
    check_root()
    packages = missing_packages() if with_parts else missing_packages(_NAMESPACE_TOOLS)
    if packages:
        raise LabError(
            f"not installed on this machine: {' '.join(packages)}; run `apt-get install -y --no-install-recommends "
            f"{' '.join(packages)}`"
        )
    if not Path("/etc/machine-id").exists() and with_parts:
        raise LabError("found no /etc/machine-id, systemd-nspawn needs one; run `systemd-machine-id-setup`")
    _check_mounts(places)


def check_root() -> None:
    """:raises LabError: without root."""
    if os.geteuid() != 0:
        raise LabError(f"found user id {os.geteuid()}, the lab needs root to mount and boot hosts; run it with sudo")


def _check_mounts(places: Places) -> None:
    """A trial of what the supervisor will do, in a mount namespace of its own that vanishes with the trial."""
    places.base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=places.base, prefix="trial-") as trial:
        script = (
            'mount -t tmpfs lab /run || exit 3; cd "$1" && mkdir lower upper work root && '
            "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work lab root || exit 4; "
            '[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || mount -t cgroup2 lab /sys/fs/cgroup || exit 5; '
            "mkdir -p /sys/fs/cgroup/mps-lab || exit 5; rmdir /sys/fs/cgroup/mps-lab 2>/dev/null; :"
        )
        try:
            processes.run([*processes.CONTAINED, "sh", "-c", script, "sh", trial])
        except LabError as error:
            reasons = {
                "3": "mounting is not permitted here; run it on a machine or in a privileged container",
                "4": f"overlay mounts do not work on {places.base}; load the kernel's overlay module, or name a "
                "directory on ext4, xfs or tmpfs in MPS_LAB_DIR",
                "5": "there is no writable cgroup2 hierarchy; run it on a machine or in a privileged container",
            }
            for code, reason in reasons.items():
                if f"ended with {code}:" in str(error):
                    raise LabError(reason) from None
            raise LabError(
                f"namespaces do not work here ({error}); run it on a machine or in a privileged container"
            ) from None
