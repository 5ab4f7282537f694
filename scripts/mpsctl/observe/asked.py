"""What is asked of NVML and of systemd before anything else: both answer while the rest of the program is read.

Of the modules of this room this one alone is cheap to import.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Iterable, Mapping, Optional, Sequence

from mpsctl.adapters import nvml
from mpsctl.adapters.bounded import Call
from mpsctl.model.names import HEALTH, TIMER, door_service, door_unit

if TYPE_CHECKING:
    from mpsctl.store.world import World

NVML_TIMEOUT_S = 20.0
"""What NVML may take for all that it is asked: longer than the 10 s after which a GPU that hangs is left out, and its
neighbours are not."""
OF_HOST = (TIMER, HEALTH)
"""The units of the look each minute."""


def begin_nvml(world: World, timeout_s: float = NVML_TIMEOUT_S) -> Call[nvml.Snapshot]:
    """Ask NVML in a process of its own: a hung driver holds whoever asks."""
    return Call(partial(nvml.snapshot, world.nvml), timeout_s, "NVML")


class Asked:
    """Both questions, begun."""

    def __init__(self, world: World, names: Sequence[str] = ()) -> None:
        """``names`` are instances that may have no file."""
        self.nvml = begin_nvml(world)
        from mpsctl.store import configuration  # NVML works meanwhile

        instances = dict.fromkeys([*configuration.names(world), *names])
        self._units = [*units_of(instances), *OF_HOST]
        self._shown = world.systemd.begin_show(self._units)

    def shown(self, units: Sequence[str]) -> Optional[Mapping[str, Mapping[str, str]]]:
        """What systemd shows of these units, or None where it was not asked about one of them.

        :raises NotReady: if systemd does not answer.
        """
        return self._shown() if set(units) <= set(self._units) else None


def units_of(names: Iterable[str]) -> list[str]:
    """The units of instances: the daemons' and the front doors'."""
    return [unit for name in names for unit in (unit_of(name), door_unit(name), door_service(name))]


def unit_of(name: str) -> str:
    """The unit of an instance by its name."""
    return f"mps-control@{name}.service"
