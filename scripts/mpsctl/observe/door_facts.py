"""A unit as systemd shows it, the front door of an instance, who waits and who has which place, as typed facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from mpsctl.store.admission import OPEN, Admission
from mpsctl.store.front_door_notes import Notes


@dataclass(frozen=True)
class UnitFacts:
    """A unit as systemd shows it. Moments are seconds since boot, None where systemd does not tell."""

    name: str
    load_state: str = "not-found"
    active_state: str = "unknown"
    sub_state: str = "unknown"
    result: str = ""
    main_pid: int = 0
    restarts: int = 0
    enabled: bool = False
    needs_daemon_reload: bool = False
    invocation: str = ""
    active_since_s: Optional[float] = None
    clock_set_s: float = 0
    """how far the host's clock was set since then, forward or (below 0) back; 0 where that is not told"""
    listens_on: Optional[Path] = None
    """of a socket unit: its path"""

    @property
    def active(self) -> bool:
        """Up, whether or not its limits are just being set anew."""
        return self.active_state in ("active", "reloading")


@dataclass(frozen=True)
class DoorFacts:
    """The front door of an instance: the units of its socket and of the ``service`` behind it, and whether the name
    that clients look for leads to the socket (``leads``). ``admission`` is what the door was told last, None where
    nothing that can be read was; ``notes`` is what the door wrote down."""

    unit: UnitFacts
    leads: bool
    admission: Optional[Admission] = None
    daemon_stands: bool = False
    """whether a daemon's own socket has the name that clients look for: there is no front door"""
    notes: Notes = field(default_factory=Notes)
    service: UnitFacts = UnitFacts("")
    listens: bool = True
    """whether the socket is open: systemd closes it under an active unit that somebody masked (systemd 252)"""
    amiss: tuple[str, ...] = ()
    """the fields of ``admission`` that say something else than is desired"""
    desired: Optional[Admission] = None
    """what it is to be told in the state that it was told; None where that is not known"""

    @property
    def stands(self) -> bool:
        """Whether somebody listens where clients look."""
        return self.leads and self.unit.active and self.listens

    @property
    def lets_in_to(self) -> int:
        """The pid of the daemon to which clients are passed on; 0 while they are not."""
        told = self.admission
        return told.daemon.pid if told is not None and told.state == OPEN and told.daemon is not None else 0

    @property
    def directory(self) -> Optional[Path]:
        """The daemon's own directory, as the door was told."""
        told = self.admission
        return Path(told.daemon.pipe_directory) if told is not None and told.daemon is not None else None


PENDING, ANOTHER_USER = "pending", "another-user"
"""What one waits for: in the daemon's own list, and the front door's word for another user's clients. The door's other
words are read in ``checks/waits.py``."""


@dataclass(frozen=True)
class Waiting:
    """A client that waits and lives, before the front door or in the daemon's pending list.

    ``why`` is what for, as a word, and ``place`` which place is taken where it is for one. ``behind`` are the users
    whose clients are served, or came first, where it waits for those. ``waited_s`` is None where it is not told.
    """

    pid: int
    uid: int
    command: str
    user: Optional[str] = None
    unit: Optional[str] = None
    container: Optional[str] = None
    why: str = PENDING
    place: str = ""
    behind: tuple[int, ...] = ()
    waited_s: Optional[float] = None

    @property
    def at_door(self) -> bool:
        return self.why != PENDING


@dataclass(frozen=True)
class Place:
    """How many clients count in a place, named as in ``shares.places``, and how many it takes. ``pids`` are those that
    do, None where nobody knows, and ``waiting`` how many wait for it."""

    name: str
    most: int
    pids: Optional[tuple[int, ...]]
    waiting: int = 0

    @property
    def has(self) -> Optional[int]:
        return None if self.pids is None else len(self.pids)

    @property
    def full(self) -> bool:
        return self.has is not None and self.has >= self.most

    @property
    def above(self) -> bool:
        """Whether more are in than it takes: it was lowered under them, and nobody is ended for that."""
        return self.has is not None and self.has > self.most


@dataclass(frozen=True)
class RoomFacts:
    """The places that the front door holds; who finds none waits, or is refused at once (``refuse``). Where its notes
    are not ``whole``, somebody may have been let in who is not counted."""

    places: tuple[Place, ...]
    refuse: bool
    whole: bool = True
