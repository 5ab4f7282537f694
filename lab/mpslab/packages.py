"""Debian's packages beyond the root, as an overlay layer: real daemons of the world around MPS.

No daemon of them starts by itself: all hosts share the machine's loopback, so whoever starts one says where it listens.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Mapping

from mpslab import apt, processes, removal, roots
from mpslab.places import Places
from mpslab.progress import step

GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "monitoring": {
        "bookworm": ("prometheus", "prometheus-node-exporter", "prometheus-alertmanager", "sudo"),
        "trixie": ("prometheus", "promtool", "prometheus-node-exporter", "prometheus-alertmanager", "sudo"),
    },
    "podman": dict.fromkeys(("bookworm", "trixie"), ("podman", "crun", "uidmap", "busybox-static")),
    "docker": {
        "bookworm": ("docker.io", "docker-compose", "busybox-static"),
        "trixie": ("docker.io", "docker-cli", "docker-compose", "busybox-static"),
    },
    "slurm": dict.fromkeys(("bookworm", "trixie"), ("slurmctld", "slurmd", "slurm-client", "munge")),
}
"""What a group is made of, by Debian's release."""

NSPAWN: Mapping[str, tuple[str, ...]] = {
    "docker": ("--system-call-filter=@keyring bpf", "--capability=CAP_NET_ADMIN,CAP_BPF"),
}
"""What a host with a group may do beyond others: dockerd and runc ask the kernel for keyrings and BPF programs. With
CAP_NET_ADMIN it reaches the machine's network, so whoever starts dockerd tells it to leave that alone."""

_INSTALL = """\
set -eu
root=$1 upper=$2 work=$3 merged=$4 archives=$5
mount -t overlay overlay -o "lowerdir=$root,upperdir=$upper,workdir=$work" "$merged"
mount -t proc proc "$merged/proc"
mount -t tmpfs tmpfs "$merged/run"
printf '#!/bin/sh\\nexit 101\\n' >"$merged/usr/sbin/policy-rc.d"
chmod 0755 "$merged/usr/sbin/policy-rc.d"
mkdir "$merged/run/archives"
mount --bind "$archives" "$merged/run/archives"
before=$(ls "$merged/etc/systemd/system/multi-user.target.wants" 2>/dev/null || :)
chroot "$merged" sh -c 'dpkg --force-unsafe-io -i /run/archives/*.deb'
rm "$merged/usr/sbin/policy-rc.d"
for unit in $(ls "$merged/etc/systemd/system/multi-user.target.wants" 2>/dev/null || :); do
  case " $before " in *"$unit"*) ;; *) rm "$merged/etc/systemd/system/multi-user.target.wants/$unit" ;; esac
done
rm -rf "$merged/var/log/apt" "$merged/var/log/dpkg.log"
umount "$merged/run/archives" "$merged/run" "$merged/proc" "$merged"
"""


def layer_path(places: Places, group: str, root: Path) -> Path:
    """Where the layer of a group over a root lies, made or not."""
    release = root.name.partition("-")[0]
    digest = hashlib.sha256(" ".join((*GROUPS[group][release], _INSTALL)).encode()).hexdigest()[:8]
    return places.packages / f"{root.name}-{group}-{digest}"


def current(places: Places) -> list[Path]:
    """All layers that hosts could have over the roots that are there."""
    return [layer_path(places, group, root) for group in GROUPS for root in places.roots.glob("*")]


def layer(places: Places, group: str, root: Path) -> Path:
    """The layer of a group over a root, fetched and installed if it is not there yet.

    :raises LabError: if the archive does not give a package, or it does not install.
    """
    ready = layer_path(places, group, root)
    if not ready.is_dir():
        with step(f"installing the packages of {group} over {root.name} (once)"):
            _make(places, group, root, ready)
    return ready


def _make(places: Places, group: str, root: Path, ready: Path) -> None:
    release = root.name.partition("-")[0]
    work = places.builds / f"packages-{ready.name}"
    removal.remove(work)
    for folder in ("upper", "work", "merged", "archives"):
        (work / folder).mkdir(parents=True)
    shutil.copy(root / "var/lib/dpkg/status", work / "status")
    log = places.base / f"cache/logs/packages-{ready.name}.log"
    environment = apt.private(work, roots.source_line(roots.archive(root), release))
    processes.run(["apt-get", "update"], env=environment, log=log)
    processes.run(["apt-get", "install", "--yes", "--download-only", *GROUPS[group][release]], env=environment, log=log)
    for package in (work / "cache/archives").glob("*.deb"):
        package.rename(work / "archives" / package.name)
    folders = [work / folder for folder in ("upper", "work", "merged", "archives")]
    processes.run(
        [*processes.CONTAINED, "--mount", "sh", "-c", _INSTALL, "sh", root, *folders],
        log=log,
    )
    ready.parent.mkdir(parents=True, exist_ok=True)
    os.rename(work / "upper", ready)
    removal.remove(work)
