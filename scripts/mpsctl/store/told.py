"""What health told the journal last, in /run/mps-fleet/.told.json: it tells what is new, and now and then what stays.

The look comes each minute. A fault that lasts a night would be 500 lines, and what is new would stand between them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from mpsctl.adapters import files
from mpsctl.model.errors import MpsctlError
from mpsctl.model.places import Places
from mpsctl.store import remembered

AGAIN_S = 3600.0
"""How often what stays amiss is told again."""


@dataclass(frozen=True)
class Told:
    """The level that a check had when it was told last, ``at_s`` seconds after boot; amiss it has been since
    ``since_s``."""

    level: str
    at_s: float
    since_s: float


Key = tuple[str, str]
"""An instance, empty for the host, and the id of a check."""


def path(places: Places) -> Path:
    return places.host_lock.parent / ".told.json"


def read(places: Places) -> dict[Key, Told]:
    """What was told and stays amiss, as far as it can be read."""
    found: object = None
    with suppress(MpsctlError):
        found = remembered.load(path(places))
    known: dict[Key, Told] = {}
    for entry in found if isinstance(found, list) else []:
        with suppress(TypeError, ValueError):
            instance, check, level, at_s, since_s = entry
            known[str(instance), str(check)] = Told(str(level), float(at_s), float(since_s))
    return known


def write(places: Places, known: Mapping[Key, Told]) -> None:
    """:raises OSError: if the disk takes no more."""
    entries = [[*key, told.level, told.at_s, told.since_s] for key, told in known.items()]
    files.write(path(places), json.dumps(entries) + "\n", lasting=False)


def due(before: Optional[Told], level: str, now_s: float) -> bool:
    """Whether a check that is amiss is to be told: it was not, or not at this level, or long ago."""
    return before is None or before.level != level or now_s - before.at_s >= AGAIN_S
