"""SELinux: whether it enforces, and the label of a path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional


def enforcing(root: Path = Path("/")) -> bool:
    """Whether SELinux is there and refuses what its policy does not allow."""
    try:
        return (root / "sys/fs/selinux/enforce").read_text().strip() == "1"
    except OSError:
        return False


def label(path: Path) -> Optional[str]:
    """The label of a path, ``system_u:object_r:container_file_t:s0``, or None where it has none."""
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None


def kind(text: str) -> str:
    """The type in a label: ``container_file_t``."""
    parts = text.split(":")
    return parts[2] if len(parts) > 2 else ""
