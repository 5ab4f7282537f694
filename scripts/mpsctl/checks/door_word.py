"""Whether an instance lets clients in, by the word that everyone on the host may read."""

from __future__ import annotations

from typing import Optional

from mpsctl.model.foreign import shown
from mpsctl.store.admission import OPEN, Admission


def closed(told: Optional[Admission]) -> Optional[str]:
    """Why nobody is let in, by what the front door was told last; None where clients come in."""
    if told is None:
        return "its daemon was not started since boot"
    if told.state != OPEN:
        return shown(told.why) if told.why else f"it is {told.state}"
    if told.daemon is None or not told.daemon.lives:
        return "its daemon is down"
    return None
