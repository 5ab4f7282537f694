"""A unit as systemd shows it, and the front door of an instance, as typed facts."""

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
