"""The environment with which systemd starts a control daemon, as ``prepare`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional, Sequence

PIPE_DIRECTORY, VISIBLE_DEVICES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"
DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
"""Where a client or daemon without the variable goes (control daemons 550, 555; NVIDIA's documentation)."""


@dataclass(frozen=True)
class DaemonEnvironment:
    """``devices`` are full UUIDs; their order gives the ordinals by which limits are set and clients count.

    Without that variable a daemon offers every GPU of the host; with one that matches none it ends with
    100 at once (driver 580, H200).
    """

    pipe_directory: Path
    devices: tuple[str, ...]
    path: Sequence[str] = ()
    flags: str = ""

    def as_file(self) -> str:
        """An EnvironmentFile of systemd."""
        lines = [
            "# written by mpsctl prepare at every start",
            f"{PIPE_DIRECTORY}={self.pipe_directory}",
            f"{VISIBLE_DEVICES}={','.join(self.devices)}",
            f"PATH={':'.join(self.path)}",
            f"MPS_CONTROL_FLAGS={self.flags}",
        ]
        return "\n".join(lines) + "\n"


def of_file(text: str) -> Optional[DaemonEnvironment]:
    """What ``as_file`` made, or None if it does not tell."""
    return of_process(dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#"))


def of_process(environment: Optional[Mapping[str, str]]) -> Optional[DaemonEnvironment]:
    """What a running daemon was started with, or None if it does not tell."""
    if not environment or PIPE_DIRECTORY not in environment:
        return None
    devices = tuple(part for part in environment.get(VISIBLE_DEVICES, "").split(",") if part)
    return DaemonEnvironment(Path(environment[PIPE_DIRECTORY]), devices)
