"""What the front door of an instance wrote to the journal: whom it refused, and why.

Anybody may write an entry with any of our fields, but none with systemd's own, which say whose it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

from mpsctl.model.names import door_service
from mpsctl.store.world import World

_FIELDS = ("MESSAGE", "MPS_CLIENT_PID", "MPS_CLIENT_UID", "MPS_CLIENT_UNIT", "MPS_REASON", "MPS_WAITED_FOR")
_MOST = 200


@dataclass(frozen=True)
class Refusal:
    """A client that was refused with error 805: why, as the front door's word, and ``waited_for`` what it waited for
    before, empty where it did not. ``pid`` is None where the line stands for several. ``line`` is for people."""

    pid: Optional[int]
    reason: str
    waited_for: str
    line: str


def refusals(world: World, instance: str, last_s: float, pid: Optional[int] = None) -> list[Refusal]:
    """Who was refused within the last seconds, oldest first; of one process alone where that is given.

    Empty where nobody was, or the journal may not be read.

    :raises NotReady: if the journal does not answer.
    """
    wanted = {
        "_SYSTEMD_UNIT": door_service(instance),
        "MPS_INSTANCE": instance,
        "MPS_EVENT": "refused",
        **({"MPS_CLIENT_PID": str(pid)} if pid is not None else {}),
    }
    return [_refusal(instance, entry) for entry in world.systemd.journal_entries(wanted, _FIELDS, last_s, _MOST)]


def _refusal(instance: str, entry: Mapping[str, str]) -> Refusal:
    pid = entry.get("MPS_CLIENT_PID", "")
    return Refusal(
        int(pid) if pid.isdigit() else None,
        entry.get("MPS_REASON", ""),
        entry.get("MPS_WAITED_FOR", ""),
        entry.get("MESSAGE", "").removeprefix(f"{instance}: "),
    )
