"""Units as systemd shows them."""

from __future__ import annotations

import calendar
import time
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.observe.door_facts import UnitFacts
from mpsctl.store.world import World

UNKNOWN = "unknown"
"""The load state of a unit of which systemd tells nothing."""
_MICROSECONDS = 1_000_000
_DRIFT_WINDOW_S = 30
"""By less than this a clock is corrected without being set; what is known since then is read with more room."""


def look(
    world: World, names: Sequence[str], shown: Optional[Mapping[str, Mapping[str, str]]] = None
) -> dict[str, UnitFacts]:
    """The named units; one that systemd does not know is among them. ``shown`` is what systemd told already.

    :raises NotReady: if systemd does not answer.
    """
    if shown is None:
        shown = world.systemd.show(names)
    return {name: _facts(world, name, shown.get(name, {})) for name in names}


def unknown(world: World, name: str) -> UnitFacts:
    """A unit of which systemd tells nothing."""
    return UnitFacts(name, load_state=UNKNOWN, enabled=world.systemd.enabled(name))


def _facts(world: World, name: str, shown: Mapping[str, str]) -> UnitFacts:
    since = shown.get("ActiveEnterTimestampMonotonic", "")
    active_since_s = int(since) / _MICROSECONDS if since.isdigit() and since != "0" else None
    return UnitFacts(
        name=name,
        load_state=shown.get("LoadState", UNKNOWN),
        active_state=shown.get("ActiveState", "unknown"),
        sub_state=shown.get("SubState", "unknown"),
        result=shown.get("Result", ""),
        main_pid=_number(shown.get("MainPID")),
        restarts=_number(shown.get("NRestarts")),
        enabled=world.systemd.enabled(name),
        needs_daemon_reload=shown.get("NeedDaemonReload") == "yes",
        invocation=shown.get("InvocationID", ""),
        listens_on=_path(shown.get("Listen", "")),
        active_since_s=active_since_s,
        clock_set_s=_clock_set_s(world, active_since_s, shown.get("ActiveEnterTimestamp", "")),
    )


def _clock_set_s(world: World, since_boot_s: Optional[float], by_clock: str) -> float:
    """How far the clock was set since a moment that systemd noted by both clocks: ``Tue 2026-12-01 01:59:15 UTC``."""
    words = by_clock.split()
    if since_boot_s is None or len(words) < 3:
        return 0
    try:
        then_s = calendar.timegm(time.strptime(f"{words[1]} {words[2]}", "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return 0
    set_s = (world.wall_s() - world.now_s()) - (then_s - since_boot_s)
    return set_s if abs(set_s) > _DRIFT_WINDOW_S else 0


def _path(listen: str) -> Optional[Path]:
    """The path of a socket unit: ``/run/x (SequentialPacket)`` (systemd 252, 257)."""
    path = listen.partition(" (")[0]
    return Path(path) if path.startswith("/") else None


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0
