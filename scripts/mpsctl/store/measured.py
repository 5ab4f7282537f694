"""What was measured on this host, in /var/lib/mps-fleet/measured.json: by GPU name, driver and percentage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Iterable, Optional

from mpsctl.adapters import files
from mpsctl.model import costs
from mpsctl.model.costs import Costs, Measurement
from mpsctl.model.errors import NoRight
from mpsctl.model.shipped_costs import SHIPPED
from mpsctl.store import remembered
from mpsctl.store.world import World

_FORMAT = 1


def read(world: World) -> list[Measurement]:
    """This host's own figures. A file that cannot be read for what it is counts as none."""
    try:
        found = remembered.load(world.places.measured)
    except NoRight:
        return []
    rows = found.get("measured") if isinstance(found, dict) and found.get("format") == _FORMAT else None
    return [one for one in map(_measurement, rows if isinstance(rows, list) else ()) if one is not None]


def _measurement(row: Any) -> Optional[Measurement]:
    try:
        one = Measurement(**row)
        numbers = (one.thread_percentage, one.context_mib, one.server_mib, one.least_limit_mib, one.reserved_mib)
        good = all(number is None or (isinstance(number, (int, float)) and number >= 0) for number in numbers)
    except TypeError:
        return None
    return one if good and isinstance(one.gpu_name, str) and isinstance(one.driver, str) else None


def keep(world: World, fresh: Iterable[Measurement]) -> None:
    """Add figures; those of the same GPU model, driver and percentage are replaced."""
    by_key = {one.key: one for one in [*read(world), *fresh]}
    rows = [asdict(by_key[key]) for key in sorted(by_key)]
    files.write(world.places.measured, json.dumps({"format": _FORMAT, "measured": rows}, indent=1) + "\n")


def costs_of(world: World, gpu_name: str, driver: Optional[str], thread_percentage: Optional[float]) -> Costs:
    """The figures to reckon with for a client: this host's own before those that are shipped."""
    own = read(world)
    # Of one GPU model and driver the two never mix: a shipped figure would win where its percentage is nearer.
    mine = {(one.gpu_name, one.driver) for one in own}
    shipped = [one for one in SHIPPED if (one.gpu_name, one.driver) not in mine]
    percentage = 100.0 if thread_percentage is None else thread_percentage
    return costs.find([*own, *shipped], gpu_name, driver, percentage)


def multiprocessors_of(world: World, gpu_name: str) -> Optional[int]:
    """How many multiprocessors a whole GPU of this model has, by what was measured or shipped at 100 %."""
    known = [
        one.multiprocessors
        for one in [*read(world), *SHIPPED]
        if one.gpu_name == gpu_name and one.thread_percentage == 100
    ]
    return next((count for count in known if count), None)
