"""What is ours in our own folders: that alone a removal takes.

It is told by its place, its name and its kind together. What else lies there somebody put there: it stays, with the
folders that it lies in, and is named. The directory of a daemon that runs stays too: without it the daemon lives on,
answers nobody and keeps its GPU (control daemon 550). And so do the notes of processes that were let in and live: where
MPS comes back before they have ended, they come in to no other server than theirs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, pipe
from mpsctl.converge.file_steps import remove_empty
from mpsctl.model.pattern import Pattern
from mpsctl.model.places import Places
from mpsctl.store import front_door_notes

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HALF = r"\.[^/]+\.[0-9]+\.new"
_OF_STATE = (
    r"(?:measured|metrics)\.json|selinux-module|former-compute-modes/[A-Z]+-[0-9a-fA-F-]+"
    r"|public-directories/[^/]+\.json"
)
_OF_INSTANCE = (
    r"(?:admission|in-force|starts|drained|silent|escapes|open-log|front-door)\.json|last-good\.conf|daemon\.env"
    r"|(?:session|quiet)\.lock|admission\.(?:entry\.)?lock|front-door\.(?:telling|pause|let-in|let-in-before)"
)


@dataclass(frozen=True)
class _Forms:
    """Paths below a folder: ``trees`` go with all that is in them, ``folders`` once nothing is in them."""

    files: Pattern
    folders: Pattern
    trees: Pattern


_NONE = Pattern(r"(?!)")
_STATE = _Forms(Pattern(rf"(?:.+/)?{_HALF}|{_OF_STATE}"), Pattern("former-compute-modes|public-directories"), _NONE)
_CACHE = _Forms(Pattern(rf"{_HALF}|mpsctl-[^/]+\.zip"), _NONE, _NONE)
_RUN = _Forms(
    Pattern(
        rf"\.turn|\.gpus|\.jobs|\.job-[0-9]+\.json|\.told\.json|compute-mode-was-set-[^/]+|mps_fleet\.pp|(?:{_NAME}/)?{_HALF}|{_NAME}/(?:{_OF_INSTANCE})"
    ),
    Pattern(_NAME),
    Pattern(rf"{_NAME}/pipe|(?:bench|loopback|measure)-[0-9]+-[^/]+"),
)


@dataclass
class Found:
    """What is ours in a folder, by how it is removed, and what is not. ``folders`` may have others' in them; ``served``
    are trees of daemons that run, ``survivors`` notes of clients that live."""

    files: list[Path] = field(default_factory=list)
    trees: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    served: list[Path] = field(default_factory=list)
    survivors: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)

    @property
    def mine(self) -> list[Path]:
        """What goes whatever else lies there."""
        kept = {path.parent for path in (*self.others, *self.served, *self.survivors)}
        return [*self.files, *self.trees, *(path for path in self.folders if path not in kept)]


def look(places: Places, folder: Path) -> Found:
    """What is in one of our folders.

    :raises OSError: if it may not be looked at.
    """
    forms = {places.state: _STATE, places.cache: _CACHE}.get(folder, _RUN)
    found = Found()
    _walk(places, folder, folder, forms, found)
    return found


def _walk(places: Places, base: Path, folder: Path, forms: _Forms, found: Found) -> None:
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        path = Path(entry.path)
        form = str(path.relative_to(base))
        if form.endswith(f"/{front_door_notes.NAME}") and front_door_notes.read(places, folder.name).let_in:
            found.survivors.append(path)
        elif entry.is_file(follow_symlinks=False):
            (found.files if forms.files.fullmatch(form) else found.others).append(path)
        elif not entry.is_dir(follow_symlinks=False):
            found.others.append(path)
        elif forms.trees.fullmatch(form):
            (found.served if pipe.daemons_on(path) else found.trees).append(path)
        elif forms.folders.fullmatch(form):
            _walk(places, base, path, forms, found)
            found.folders.append(path)
        else:
            found.others.append(path)


def remove(places: Places, folder: Path, keeps: Optional[Path] = None) -> None:
    """Remove what is ours in one of our folders but for ``keeps``, and the folder where nothing else is in it."""
    found = look(places, folder)
    for path in found.files:
        if path != keeps:
            files.remove(path)
    for path in found.trees:
        files.remove_tree(path)
    for path in (*found.folders, folder):
        remove_empty(path)
