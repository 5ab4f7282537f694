"""The file of metrics, and where it is: /var/lib/mps-fleet/metrics.json says so.

A node exporter tells what it finds in its folder until somebody takes it away. So a file that no look writes any more
is removed by this record, and by no name: by the next look, once metrics go elsewhere or nowhere, and by a removal.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, others_folder
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.model.places import FINGERPRINT, Places
from mpsctl.store import remembered

NAME = "mps.prom"
HEAD = f"{FINGERPRINT}: written by mpsctl health at each look\n"


@dataclass(frozen=True)
class Written:
    """Where the metrics were written last, and why they could not be, in one line; empty where they were."""

    folder: str
    problem: str = ""


def record(places: Places) -> Path:
    return places.state / "metrics.json"


def read(places: Places) -> Optional[Written]:
    """What is on record, None where metrics never were to be written."""
    found = remembered.load(record(places))
    try:
        known = Written(**found)
    except TypeError:
        return None
    texts = isinstance(known.folder, str) and isinstance(known.problem, str)
    return known if texts and known.folder.startswith("/") else None


def write(places: Places, folder: Path, text: str) -> str:
    """Write the metrics into a folder, and take away what was written elsewhere; the problem, or an empty text."""
    known = read(places)
    if known is not None and known.folder != str(folder):
        _take_away(places, known)
        known = None
    if known is None:
        known = Written(str(folder))
        _note(places, known)  # first: nothing of ours lies where no record leads
    try:
        with others_folder.opened(_below(places, folder)) as opened:
            others_folder.write(opened, NAME, HEAD + text)
        problem = ""
    except (OSError, MpsctlError) as error:
        problem = one_line(error)
    if problem != known.problem:
        _note(places, Written(str(folder), problem))
    return problem


def take_away(places: Places) -> None:
    """Remove the file that is on record, where it is ours, and the record.

    :raises OSError: if that cannot be done.
    """
    known = read(places)
    if known is not None:
        _take_away(places, known)
        files.remove(record(places))


def _take_away(places: Places, known: Written) -> None:
    try:
        with others_folder.opened(_below(places, Path(known.folder))) as opened:
            if others_folder.begins_with(opened, NAME, HEAD):
                others_folder.remove(opened, NAME)
    except (FileNotFoundError, MpsctlError):  # the folder has gone, or is another one's by now
        pass


def _below(places: Places, folder: Path) -> Path:
    return Path(os.path.abspath(places.root)) / folder.relative_to("/")


def _note(places: Places, written: Written) -> None:
    files.write(record(places), json.dumps(asdict(written)) + "\n")
