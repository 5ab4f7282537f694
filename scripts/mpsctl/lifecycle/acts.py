"""What this program did to an instance or to the host, one line each in the journal: who, what and why.

A line stands in the journal of the instance's unit, so that `journalctl -u mps-control@INSTANCE` tells the whole
story. It carries the unit as ``OBJECT_SYSTEMD_UNIT``, which journalctl believes of root alone.
"""

from __future__ import annotations

from typing import Mapping, Optional

from mpsctl.adapters import journal, login
from mpsctl.model import foreign
from mpsctl.model.names import HEALTH
from mpsctl.observe.asked import unit_of
from mpsctl.store.world import World

HEALTH_LOOK, DRAIN, UNDRAIN, END_CLIENT, END_DAEMON, CONTROL, CONVERGE, REFUSE = (
    "health",
    "drain",
    "undrain",
    "end-client",
    "end-daemon",
    "control",
    "converge",
    "refuse",
)
"""The values of the field MPS_EVENT."""
_IDENTIFIER = "mpsctl"


def tell(
    world: World, event: str, what: str, instance: Optional[str] = None, why: str = "", priority: str = journal.NOTICE
) -> None:
    """Write one act; ``why`` is what it was done for, empty where nobody said."""
    by = login.user()
    reason = f" ({why})" if why else ""
    more = {"MPS_BY": by, "MPS_WHY": why}
    write(world, _IDENTIFIER, event, f"{what}, by {by}{reason}", instance, priority, more)


def write(
    world: World,
    identifier: str,
    event: str,
    text: str,
    instance: Optional[str],
    priority: str,
    more: Mapping[str, str],
) -> None:
    """Write one line of an instance, or where that is None of the host, under its unit. ``more`` are further fields;
    those without a value are left out."""
    fields = {
        "MESSAGE": text if instance is None else f"{instance}: {text}",
        "PRIORITY": priority,
        "SYSLOG_IDENTIFIER": identifier,
        "OBJECT_SYSTEMD_UNIT": HEALTH if instance is None else unit_of(instance),
        "MPS_EVENT": event,
        "MPS_INSTANCE": instance or "",
        **more,
    }
    journal.send(world.places, {name: foreign.line(value) for name, value in fields.items() if value})
