"""The names of our units. Cheap to import: whatever begins a look needs them first."""

from __future__ import annotations

DOOR_PREFIX = "mps-front-door@"

UNIT = "mps-control@.service"
DOOR_SOCKET, DOOR_SERVICE = f"{DOOR_PREFIX}.socket", f"{DOOR_PREFIX}.service"
TIMER, HEALTH = "mps-health.timer", "mps-health.service"
UNIT_FILES = (UNIT, DOOR_SOCKET, DOOR_SERVICE, TIMER, HEALTH)
"""All units of this project, by the names of their files."""


def door_unit(name: str) -> str:
    """The socket unit of an instance, by the instance's name."""
    return f"{DOOR_PREFIX}{name}.socket"


def door_service(name: str) -> str:
    """The service behind an instance's socket unit, by the instance's name."""
    return f"{DOOR_PREFIX}{name}.service"


SCRIPTS = ("slurm-prolog", "slurm-epilog", "slurm-task-prolog")
"""What Slurm runs of ours."""
SLURMD_DROP_IN = "slurmd.service.d/mps-fleet.conf"
"""What orders Slurm's daemon, among the units."""
