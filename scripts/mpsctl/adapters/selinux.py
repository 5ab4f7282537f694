"""SELinux: whether it is there and enforces, the label of a path, and the one policy module that is ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional

from mpsctl.model.errors import NotInForce

MODULE = "mps_fleet"
_TIMEOUT_S = 180
"""To build a policy anew takes a minute on a small machine."""


def enabled(root: Path = Path("/")) -> bool:
    """Whether the kernel has a policy, enforced or not."""
    return (root / "sys/fs/selinux/enforce").exists()


def loaded(root: Path = Path("/")) -> bool:
    """Whether our module is among those of a policy on this host, whatever priority it was given."""
    return any((root / "var/lib/selinux").glob(f"*/active/modules/*/{MODULE}"))


def load(module: Path) -> None:
    """Put our module into the policy, or in the place of the one there.

    :raises NotInForce: with semodule's words, if it does not take it.
    """
    _semodule("--install", str(module))


def unload() -> None:
    """Take our module out of the policy.

    :raises NotInForce: with semodule's words.
    """
    _semodule("--remove", MODULE)


def _semodule(*arguments: str) -> None:
    command = ["semodule", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInForce(f"`{' '.join(command)}`: {error}; set mps_selinux_module to false, or see why") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-500:]
        raise NotInForce(f"`{' '.join(command)}` ended with {done.returncode}: {said}")


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
