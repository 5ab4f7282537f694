"""Where the lab keeps what: everything lies under one directory, so that nothing else can be left over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mpslab.errors import LabError

SOURCE = Path(__file__).resolve().parents[1]
"""The folder ``lab/`` of the project."""


@dataclass(frozen=True)
class Places:
    """The lab's directory: ``cache`` outlives ``down``, the rest does not."""

    base: Path

    @property
    def roots(self) -> Path:
        return self.base / "cache/roots"

    @property
    def bundles(self) -> Path:
        return self.base / "cache/bundles"

    @property
    def daemons(self) -> Path:
        return self.base / "cache/daemons"

    @property
    def layers(self) -> Path:
        return self.base / "cache/layers"

    @property
    def packages(self) -> Path:
        return self.base / "cache/packages"

    @property
    def hosts(self) -> Path:
        return self.base / "hosts"

    @property
    def ssh(self) -> Path:
        return self.base / "ssh"

    @property
    def builds(self) -> Path:
        """What is being built; whatever lies here without a lab command running was left by a crash."""
        return self.base / "building"


def places() -> Places:
    """The lab's directory: ``MPS_LAB_DIR``, else ``.lab`` of the project.

    :raises LabError: if overlay mounts could not name it.
    """
    base = Path(os.environ.get("MPS_LAB_DIR") or SOURCE.parent / ".lab").resolve()
    if set(str(base)) & set(':,\\"'):
        raise LabError(f"the lab's directory {base} has one of : , \\ \" in its path; name another in MPS_LAB_DIR")
    return Places(base)
