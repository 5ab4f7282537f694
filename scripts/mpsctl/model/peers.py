"""Who is connected to a listening socket; ``adapters.unix_peers`` finds it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peers:
    """Who is at the other end, by process id: ``holds`` was accepted, ``waits`` is in the backlog.

    ``unnamed`` counts accepted connections that are open and whose process is not known: of another user, or not
    found in time. ``untold`` says why it cannot be told whether anybody else is connected; empty where it can.
    """

    holds: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    unnamed: int = 0
    untold: str = ""

    @property
    def held(self) -> bool:
        """Whether somebody is connected, named or not."""
        return bool(self.holds or self.unnamed)
