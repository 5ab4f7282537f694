"""Every cause that the doctor knows, by its name, with what to do about it; a module for each subject.

What is said of MPS here was seen on an H200 with driver 580 or with the control daemons 535, 550 and 555, or stands
in NVIDIA's documentation; where it is only told by others, the cause says so.
"""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue import clients, containers, daemons, gpus, limits, others, servers, units
from mpsctl.causes.catalogue.cause import Cause

__all__ = ["CAUSES", "Cause"]

_EVERY = (daemons, gpus, clients, containers, servers, limits, units, others)

CAUSES: Mapping[str, Cause] = {name: cause for module in _EVERY for name, cause in module.CAUSES.items()}
