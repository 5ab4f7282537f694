"""NVIDIA's own control daemon in three versions, each as an overlay layer that fits any of the roots."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mpslab import apt, processes, removal, roots
from mpslab.errors import LabError
from mpslab.places import Places
from mpslab.progress import step

PACKAGE = "nvidia-cuda-mps"
SUITES = {"535": "bookworm", "550": "trixie", "555": "experimental"}
"""Which of Debian's suites has which version: versions are found there, never named here."""


@dataclass(frozen=True)
class Daemon:
    """An unpacked daemon: its folder, and its full version such as 550.163.01."""

    layer: Path
    version: str


def daemon(places: Places, label: str, root: Path) -> Daemon:
    """The daemon of that label, fetched if it is not there yet.

    :param root: says where Debian's archive is.
    """
    for ready in sorted(places.daemons.glob(f"{label}.*")):
        return Daemon(ready, ready.name)
    with step(f"fetching {PACKAGE} {label} from Debian's {SUITES[label]} (once)"):
        return _fetch(places, label, root)


def _fetch(places: Places, label: str, root: Path) -> Daemon:
    work = places.builds / f"daemon-{label}"
    removal.remove(work)
    (work / "layer").mkdir(parents=True)
    environment = apt.private(work, roots.source_line(roots.archive(root), SUITES[label]))
    processes.run(["apt-get", "update"], env=environment, log=places.base / f"cache/logs/daemon-{label}.log")
    processes.run(
        ["sh", "-c", f'cd "$1" && apt-get download {PACKAGE}', "sh", work],
        env=environment,
        log=places.base / f"cache/logs/daemon-{label}.log",
    )
    package = next(work.glob(f"{PACKAGE}_*.deb"))
    full = processes.run(["dpkg-deb", "--field", package, "Version"]).strip()
    version = re.sub(r"^\d+:|[-~+].*$", "", full)
    if not version.startswith(f"{label}."):
        raise LabError(
            f"Debian's {SUITES[label]} has {PACKAGE} {version} by now, expected {label}; correct SUITES in {__file__}"
        )
    processes.run(["dpkg-deb", "--extract", package, work / "layer"])
    ready = places.daemons / version
    ready.parent.mkdir(parents=True, exist_ok=True)
    os.rename(work / "layer", ready)
    removal.remove(work)
    return Daemon(ready, version)
