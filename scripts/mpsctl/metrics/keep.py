"""The metrics of the look each minute, where a node exporter finds them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Optional

from mpsctl.checks.report import Report
from mpsctl.metrics import of_host
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.store import metrics_file
from mpsctl.store.world import World


def keep(world: World, report: Report, began_s: float, folder: Optional[str], by: Optional[str] = None) -> str:
    """Write the metrics of a look that began ``began_s`` seconds after boot into a folder, or where that is None take
    away those of earlier looks. The problem, empty where there is none; nothing is raised."""
    if folder is None:
        with suppress(OSError, MpsctlError):
            metrics_file.take_away(world.places)
        return ""
    found = of_host.samples(report, world.wall_s(), world.now_s() - began_s, by)
    try:
        return metrics_file.write(world.places, Path(folder), found.text())
    except (OSError, MpsctlError) as error:
        return one_line(error)
