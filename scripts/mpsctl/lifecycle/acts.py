"""What this program did to an instance or to the host, one line each in the journal: who, what and why.

A line stands in the journal of the instance's unit, so that `journalctl -u mps-control@INSTANCE` tells the whole
story. It carries the unit as ``OBJECT_SYSTEMD_UNIT``, which journalctl believes of root alone.
"""

from __future__ import annotations

from typing import Optional

from mpsctl.adapters import journal, login
from mpsctl.model import foreign
from mpsctl.model.names import HEALTH
from mpsctl.observe.asked import unit_of
from mpsctl.store.world import World

DRAIN, UNDRAIN, END_CLIENT, END_DAEMON, CONTROL, CONVERGE, REFUSE = (
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
    subject = f"{instance}: " if instance is not None else ""
    fields = {
        "MESSAGE": foreign.line(f"{subject}{what}, by {by}{reason}"),
        "PRIORITY": priority,
        "SYSLOG_IDENTIFIER": _IDENTIFIER,
        "OBJECT_SYSTEMD_UNIT": HEALTH if instance is None else unit_of(instance),
        "MPS_EVENT": event,
        "MPS_INSTANCE": instance or "",
        "MPS_BY": by,
        "MPS_WHY": why,
    }
    journal.send(world.places, {name: foreign.line(value) for name, value in fields.items() if value})
