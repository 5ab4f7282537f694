"""File systems, by /proc/self/mountinfo: whether sockets of this host's can stand on the one that a path lies on."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

_MOUNTINFO = Path("/proc/self/mountinfo")

_OF_SEVERAL_HOSTS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "ncp",
        "coda",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "glusterfs",
        "pvfs2",
        "orangefs",
        "panfs",
        "wekafs",
        "ocfs2",
        "gfs",
        "gfs2",
        "9p",
        "virtiofs",
        "vboxsf",
        "prl_fs",
        "davfs",
        "autofs",
    ]
)
_OF_NO_SOCKETS = frozenset(
    [
        "vfat",
        "msdos",
        "exfat",
        "ntfs",
        "ntfs3",
        "iso9660",
        "udf",
        "squashfs",
        "erofs",
        "cramfs",
        "romfs",
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "devpts",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "bpf",
        "mqueue",
        "hugetlbfs",
        "pstore",
        "efivarfs",
        "binfmt_misc",
        "rpc_pipefs",
        "nsfs",
        "fusectl",
    ]
)
_BY_A_PROGRAM = "fuse"
_READ_ONLY, _ON_DEMAND = "ro", "autofs"


@dataclass(frozen=True)
class Mount:
    """What is mounted at ``place``: its kind by the kernel's name, and the options of the mount and the file system."""

    place: str
    kind: str
    options: frozenset[str]


def under(path: Path) -> Optional[Mount]:
    """The mount on which a path lies, or will lie once it is made; None where the kernel does not tell.

    Links are followed, but not on a file system that is refused by its kind: one whose server is gone holds up whoever
    looks at a path on it.
    """
    mount = nearest(str(path), _table())
    if mount is None or (mount.kind != _ON_DEMAND and why_no_sockets(mount) is not None):
        return mount
    with suppress(OSError):  # what is mounted on demand is mounted by this
        os.stat(path)
    return nearest(os.path.realpath(path), _table())


def nearest(path: str, table: str) -> Optional[Mount]:
    """The mount of the kernel's table on which an absolute path lies that has no links."""
    best: Optional[Mount] = None
    for mount in filter(None, map(_parsed, table.splitlines())):
        inside = mount.place == "/" or path == mount.place or path.startswith(f"{mount.place}/")
        if inside and (best is None or len(mount.place) >= len(best.place)):  # of two on one place the later hides
            best = mount
    return best


def _table() -> str:
    try:
        return _MOUNTINFO.read_text(errors="replace")
    except OSError:
        return ""


def why_no_sockets(mount: Mount) -> Optional[str]:
    """Why an instance's sockets cannot stand there, in a few words behind "which is"; None where they can.

    That it cannot be written now is not meant, see ``read_only``: most file systems are mounted so after an error.
    """
    if mount.kind in _OF_SEVERAL_HOSTS:
        return f"a network file system ({mount.kind}): a socket there is one host's, and its name is everyone's"
    if mount.kind.partition(".")[0] in (_BY_A_PROGRAM, "fuseblk"):
        return f"served by a program ({mount.kind}), with which a start would hang"
    if mount.kind in _OF_NO_SOCKETS:
        return f"a file system without sockets ({mount.kind})"
    return None


def read_only(mount: Mount) -> bool:
    """Whether nothing can be written there."""
    return _READ_ONLY in mount.options


def _parsed(line: str) -> Optional[Mount]:
    """A row of the table: proc_pid_mountinfo(5)."""
    before, dash, after = line.partition(" - ")
    fields, of_system = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(of_system) < 3:
        return None
    place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(place, of_system[0], frozenset((*fields[5].split(","), *of_system[-1].split(","))))
