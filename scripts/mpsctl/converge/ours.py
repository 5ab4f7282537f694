"""What on a host is this project's: its files, by their first line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mpsctl.adapters import files, hardware
from mpsctl.converge.request import File
from mpsctl.model.errors import Unreadable
from mpsctl.model.places import FINGERPRINT

DAEMON_PLACE = "@NVIDIA_CUDA_MPS_CONTROL@"
"""Stands in the unit's template where the path of this host's control daemon belongs."""

USUAL_DAEMON = f"/usr/bin/{hardware.CONTROL_DAEMON}"
"""Shown where the daemon is yet to be installed."""


def is_ours(path: Path) -> bool:
    """Whether a file is this project's, by its first line; what cannot be read is not."""
    try:
        return (files.read_text(path) or "").startswith(FINGERPRINT)
    except Unreadable:
        return False


def with_binary(file: File) -> File:
    """The file with this host's daemon in it: distributions keep it in different places."""
    binary = hardware.binary(hardware.CONTROL_DAEMON) or USUAL_DAEMON
    return replace(file, content=file.content.replace(DAEMON_PLACE, str(binary)))
