"""Whether anybody but root can change what a path leads to: the one place that judges a path.

Everything that root reads, writes, runs or deletes is judged here, by owners and modes of every folder on the way. A
name says nothing: who can write in a folder can put another thing under any name in it. A folder like /tmp, in which
everyone can make files, counts as everyone's, sticky or not.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from mpsctl.adapters import procfs
from mpsctl.model import foreign
from mpsctl.model.errors import Untrusted

START = Path("/")
"""Where the way begins; tests have theirs in a folder of their own."""

_ROOT = 0
_MOST_LINKS = 40
"""As the kernel has it."""
_ACL = "system.posix_acl_access"


@dataclass(frozen=True)
class WeakPoint:
    """``place`` is on the way to ``path``; ``why`` says who can change it, in a few words behind "which"."""

    path: Path
    place: Path
    why: str

    @property
    def remedy(self) -> str:
        """What to do about it, for people. A folder that is meant to be shared, or somebody's own, stays as it is."""
        place = foreign.pasted(str(self.place))
        if self.place == Path("/") or self.place.is_relative_to("/home") or _is_sticky(self.place):
            return "use another place, that nobody but root can change, such as one in /root"
        return f"see what is in it, then chown root:root {place} and chmod go-w {place}, or use another place"

    def __str__(self) -> str:
        return f"{self.place}, which {self.why}" + ("" if self.place == self.path else f", on the way to {self.path}")


def weak_point(path: Path) -> Optional[WeakPoint]:
    """The first thing on the way to a path, itself included, that others than root can change, or None.

    Links are followed, and where they lead is judged alike. What does not exist yet is nobody's.
    """
    # A look judges some two hundred paths of five parts: as texts that takes a third of the time.
    path = path if path.is_absolute() else Path.cwd() / path
    place, left = _begin(os.fspath(path))
    links = 0
    why = _why_weak(place, os.lstat(place))
    while why is None and left:
        part = left.pop()
        if part == "..":
            place = os.path.dirname(place)
            continue
        place = _below(place, part)
        try:
            about = os.lstat(place)
            why = _why_weak(place, about)
            if why is None and stat.S_ISLNK(about.st_mode):
                links += 1
                place, left = _behind(place, left)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:  # a user who looks sees no further, which says nothing of what is there
            blind = WeakPoint(path, Path(place), "root itself may not look at")
            return blind if os.geteuid() == _ROOT else None
        except OSError as error:
            why = f"cannot be looked at ({error.strerror})"
        if links > _MOST_LINKS:  # it leads to nothing, as who opens it is told
            return None
    return None if why is None else WeakPoint(path, Path(place), why)


def require(path: Path) -> None:
    """Refuse a path on which others can change something, where root asks: what a user does is his own risk.

    :raises Untrusted: naming what they can change, and whose it is.
    """
    if not _is_root():
        return
    weak = weak_point(path)
    if weak is not None:
        raise Untrusted(str(weak.path), str(weak.place), weak.why, weak.remedy)


def _is_root() -> bool:
    """Whether we are the host's root: the one of a user namespace finds the host's files owned by nobody."""
    if os.geteuid() != _ROOT:
        return False
    try:
        return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return True


def _is_sticky(place: Path) -> bool:
    with suppress(OSError):
        return bool(place.lstat().st_mode & stat.S_ISVTX)
    return False


def _begin(path: str) -> tuple[str, list[str]]:
    """Where the way to an absolute path begins, and its other parts, the next one last."""
    start = os.fspath(START)
    inside = path == start or path.startswith(start.rstrip("/") + "/")
    begin = start if inside else "/"
    return begin, _parts(path[len(begin) :])


def _parts(path: str) -> list[str]:
    """The parts of a relative path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _below(place: str, part: str) -> str:
    return f"{'' if place == '/' else place}/{part}"


def _behind(link: str, left: list[str]) -> tuple[str, list[str]]:
    """Where the way goes on behind a link."""
    target = os.readlink(link)
    if target.startswith("/"):
        begin, parts = _begin(target)
        return begin, left + parts
    return os.path.dirname(link), left + _parts(target)


def _why_weak(place: str, about: os.stat_result) -> Optional[str]:
    mode = about.st_mode
    if about.st_uid != _ROOT:
        name = procfs.user(about.st_uid)
        return f"belongs to user {about.st_uid}" + (f" ({name})" if name else "")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):  # whoever may write to a socket or a link changes none
        return None
    if mode & stat.S_IWOTH:
        return "everyone can write to"
    if mode & stat.S_IWGRP:
        if about.st_gid != _ROOT:
            return f"the group {about.st_gid} can write to"
        with suppress(OSError):
            if os.getxattr(place, _ACL, follow_symlinks=False):  # the mode's bits for the group are its mask then
                return "others can write to by its access control list"
    return None
