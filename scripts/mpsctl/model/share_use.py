"""What shares come to on a GPU: their memory and percentage, whether they fit, and whether they add up to too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from mpsctl.model import fit
from mpsctl.model.fit import Demand, Place
from mpsctl.model.shares import UNIT, USER, Share, Shares

_HOLDS_SERVICES = "system.slice"
"""The slice of every service that is given no other (systemd.special(7))."""


@dataclass(frozen=True)
class ShareUse:
    """What the clients of one share may take together. ``thread_percentage`` None: each may use the whole GPU;
    ``most`` is how many clients fit."""

    share: Share
    limit_mib: int
    memory_mib: int
    thread_percentage: Optional[float]
    most: int

    @property
    def fits(self) -> bool:
        return self.share.clients <= self.most

    @property
    def memory_share_mib(self) -> int:
        return self.share.clients * self.limit_mib

    @property
    def memory_percent(self) -> float:
        return round(100 * self.memory_share_mib / self.memory_mib, 1)

    @property
    def threads_percent(self) -> Optional[float]:
        """The percentages of its clients together. Above 100 they compete for the GPU."""
        return None if self.thread_percentage is None else round(self.share.clients * self.thread_percentage, 1)

    def __str__(self) -> str:
        memory = (
            f"{self.share.clients} x {self.limit_mib} MiB = {self.memory_share_mib} MiB,"
            f" {self.memory_percent:g} % of the memory"
        )
        threads = "each may use all multiprocessors"
        if self.thread_percentage is not None:
            percent = f"{self.share.clients} x {self.thread_percentage:g} % = {self.threads_percent:g} %"
            threads = f"{percent} of the multiprocessors"
        return f"{self.share}: {memory}; {threads}; {'fits' if self.fits else f'does not fit: at most {self.most}'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.share.kind,
            "name": self.share.name,
            "clients": self.share.clients,
            "memory_mib": self.memory_share_mib,
            "memory_percent": self.memory_percent,
            "thread_percentage": self.threads_percent,
            "fits": self.fits,
        }


def of(place: Place, demand: Demand, shares: Shares) -> list[ShareUse]:
    """What each share comes to on a GPU. ``demand`` has the limit, and the percentage."""
    card, _ = place
    limit_mib, most = demand.limit_on(card), fit.most_clients([place], demand)
    assert limit_mib is not None  # a plan has one
    return [ShareUse(share, limit_mib, card.memory_mib, demand.thread_percentage, most) for share in shares]


def crowded(shares: Shares, expected: Optional[int], places: Sequence[Place], demand: Demand) -> list[str]:
    """A line for the shares of units, and of users, that add up to more than all clients, or than fit where nothing
    holds all clients."""
    found = []
    most = fit.most_clients(places, demand) if expected is None and places else expected
    for what, clients in (("units", _of_units(shares)), ("users", _of(shares, USER))):
        if most is None or clients <= most:
            continue
        said = (
            f"{most} fit, and nothing holds them all together: set mps_expected_clients"
            if expected is None
            else f"and {most} come in at once: who comes first has the places"
        )
        found.append(f"the shares of {what} add up to {fit.counted(clients)}, {said}")
    return found


def _of(shares: Shares, kind: str) -> int:
    return sum(share.clients for share in shares if share.kind == kind and share.name is not None)


def _of_units(shares: Shares) -> int:
    """The sum for units, as far as their names tell without those that lie in another's slice."""
    named = {share.name: share.clients for share in shares if share.kind == UNIT and share.name is not None}
    return sum(clients for name, clients in named.items() if not any(_lies_in(name, one) for one in named))


def _lies_in(name: str, one: str) -> bool:
    if not name.endswith(".slice"):
        return one == _HOLDS_SERVICES
    return name != one and one.endswith(".slice") and name.startswith(f"{one[: -len('.slice')]}-")
