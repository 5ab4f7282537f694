"""Which processes belong to a unit, a container, or a process and what it started: by control groups and parents.

A user names control groups as he likes below one that was given to him. So a system's unit is told by what root made
alone, and a user's by his own manager's: nobody can name a process of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Protocol

from mpsctl.adapters import control_groups, procfs


class Target(Protocol):
    """Some processes, whose ``str`` names them for people."""

    def has(self, pid: int) -> bool:
        """Whether a process is one of them."""


@dataclass(frozen=True)
class OfUnit:
    """The processes of a unit by its whole name, of the system's manager or (``uid``) of a user's, with those in groups
    below it."""

    unit: str
    uid: Optional[int] = None

    def __str__(self) -> str:
        return self.unit if self.uid is None else f"{self.unit} of user {self.uid}"

    def has(self, pid: int) -> bool:
        whole, made = control_groups.paths(pid)
        if self.uid is None:
            return self.unit in made
        manager = f"user@{self.uid}.service"
        return manager in made and self.unit in whole[made.index(manager) + 1 :]


@dataclass(frozen=True)
class OfContainer:
    """The processes of a container by its id, or the beginning of it. One who is no root may name a group of his own
    like a container's: that makes his own process one of it, and no other."""

    container: str

    def __str__(self) -> str:
        return f"container {self.container}"

    def has(self, pid: int) -> bool:
        found = procfs.container(pid)
        return found is not None and found.startswith(self.container)


class OfProcess:
    """A process and all that it started. Who was seen to be one of these stays one when its parent ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known = {one: procfs.started_at(one) for one in procfs.tree(pid)}

    def __str__(self) -> str:
        return f"pid {self._pid} and what it started"

    def has(self, pid: int) -> bool:
        way: list[int] = []
        while pid > 1 and pid not in way:
            way.append(pid)
            if pid in self._known and procfs.started_at(pid) == self._known[pid]:
                self._known.update((one, procfs.started_at(one)) for one in way)
                return True
            pid = procfs.parent(pid)
        return False
