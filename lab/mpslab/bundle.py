"""The parts of a host in one archive (`make gpu-bundle`), for machines without mmdebstrap and systemd-nspawn."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from mpslab import machine, removal, roots
from mpslab.errors import LabError
from mpslab.places import SOURCE, Places
from mpslab.progress import step

_EXPECTED = "expected what `make gpu-bundle` makes; make it anew, or copy it whole"
_DEFAULT = SOURCE.parent / "build/gpu-bundle.tar.xz"


@dataclass(frozen=True)
class Parts:
    """A bundle, unpacked: a host root, and systemd-nspawn with the libraries it needs outside of that root."""

    root: Path
    nspawn: Path
    release: str


def wanted() -> Optional[Path]:
    """The archive to use: the one in ``MPS_LAB_BUNDLE``, else that of the project where no root can be built.

    :raises LabError: if there is none where one is needed.
    """
    named = os.environ.get("MPS_LAB_BUNDLE")
    if named:
        if not Path(named).is_file():
            raise LabError(f"found no file {named} (MPS_LAB_BUNDLE), expected the archive that `make gpu-bundle` makes")
        return Path(named)
    missing = machine.missing_packages(machine.ROOT_TOOLS)
    if not missing:
        return None
    if _DEFAULT.is_file():
        return _DEFAULT
    raise LabError(
        f"found no {_DEFAULT} and not installed: {' '.join(missing)}; install these, or make the archive "
        "elsewhere with `make gpu-bundle` and copy it there or name it in MPS_LAB_BUNDLE"
    )


def unpack(places: Places, archive: Path) -> Parts:
    """The bundle's parts, unpacked if they are not there yet.

    :raises LabError: if it is cut short, or no such archive at all; nothing of it is kept then.
    """
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    ready = places.bundles / digest
    if not ready.is_dir():
        for old in places.bundles.glob("*"):
            if not roots.in_use(places, old):
                removal.remove(old)
        with step(f"unpacking {archive}"):
            building = places.builds / digest
            removal.remove(building)
            building.mkdir(parents=True)
            try:
                _extract(archive, building)
            except Exception as error:  # tarfile passes on what each of the decompressors has for errors
                removal.remove(building)
                why = next(iter(str(error).splitlines()), type(error).__name__)
                raise LabError(f"{archive} cannot be unpacked ({why.rstrip(':')}), {_EXPECTED}") from None
            if not (building / "root/usr/sbin/sshd").exists():
                removal.remove(building)
                raise LabError(f"found no sshd in {archive}, {_EXPECTED}")
            building.chmod(0o755)
            for folder in ("dev", "mnt"):
                (building / "root" / folder).mkdir(exist_ok=True)
            ready.parent.mkdir(parents=True, exist_ok=True)
            os.rename(building, ready)
    root = ready / "root"
    release = re.search(r"^VERSION_CODENAME=(\w+)", (root / "etc/os-release").read_text(), re.M)
    return Parts(root, ready / "nspawn", release[1] if release else "unknown")


def _extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        # the whole truth of a root: owners, modes, links to whole paths
        if hasattr(tarfile, "fully_trusted_filter"):
            packed.extractall(folder, filter="fully_trusted")
        else:
            packed.extractall(folder)
