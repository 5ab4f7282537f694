"""The lab's own key, and a client configuration by which hosts are reached by name, with their keys known."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Optional, Sequence

from mpslab import hosts, keys, removal
from mpslab.places import Places


def client() -> Optional[str]:
    """This machine's ssh, if it has one."""
    return shutil.which("ssh")


def key(places: Places) -> Path:
    """The private key that every host lets in."""
    return places.ssh / "id_ed25519"


def make_key(places: Places, root: Path) -> None:
    """Make the key once for the life of the lab.

    :param root: a host root.
    """
    if not (places.ssh / "id_ed25519.pub").exists():
        removal.remove(places.ssh)
        places.ssh.mkdir(mode=0o700)
        keys.make(key(places), "lab", root)


def config(places: Places) -> Path:
    """For ``ssh -F``: nothing of the user's or the machine's configuration applies."""
    return places.ssh / "config"


def write_config(places: Places, all_hosts: Sequence[hosts.Host]) -> None:
    """Write the client configuration and the hosts' keys."""
    known, lines = [], ["# Written by the lab: ssh -F this HOST", ""]
    for host in all_hosts:
        public = (hosts.folder(places, host.name) / "upper/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        where = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
        known.append(f"{where} {public[0]} {public[1]}\n")
        lines += [f"Host {host.name} {host.address}", f"    HostName {host.address}", f"    Port {host.port}", ""]
    lines += [
        "Host *",
        f"    User {hosts.USER}",
        f"    IdentityFile {key(places)}",
        "    IdentitiesOnly yes",
        f"    UserKnownHostsFile {places.ssh}/known_hosts",
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        "    LogLevel ERROR",
        "",
    ]
    _replace(places.ssh / "known_hosts", "".join(known))
    _replace(config(places), "\n".join(lines))


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: connections to other hosts of the lab are begun meanwhile."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.rename(path)
