"""One step of a plan: it describes itself, acts, says whether it is live and what it does to clients.

A plan is a list of steps. Check mode asks each for its description, a run has the same objects act; nothing else knows
what is to be done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Iterable, Mapping, Optional, Sequence

from mpsctl.converge.answer import Difference
from mpsctl.converge.statement import Statement
from mpsctl.observe.facts import ClientFacts
from mpsctl.store.world import World


@dataclass(frozen=True)
class Occupied:
    """Who is in the way of an instance's end: its clients, or why nobody can count them."""

    clients: tuple[ClientFacts, ...] = ()
    unknown: Optional[str] = None


@dataclass(frozen=True)
class Withheld:
    """Why a step is not taken, and for which clients; none where they cannot be counted."""

    why: str
    clients: tuple[ClientFacts, ...] = ()


@dataclass
class Context:
    """What steps share while they act. ``problems`` are systemctl's words, which the look afterwards explains."""

    world: World
    steps: Sequence[Step]
    problems: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    """what was said on the way to something that changed the host"""
    warnings: list[str] = field(default_factory=list)
    in_vain: list[Step] = field(default_factory=list)
    """steps that acted and changed nothing"""
    drained: set[str] = field(default_factory=set)
    """instances without clients and with a closed front door, by name"""

    def withhold(self, occupied: Mapping[str, Occupied]) -> None:
        """Withhold the steps that would end these instances, and all that need their end."""
        withhold(self.steps, occupied)


class Step(ABC):
    """A change of the host.

    ``kind`` names it for programs. ``live`` is whether a reload of a running daemon brings it about and undoes it,
    clients or not. ``ends_clients`` is whether it ends the clients of ``instance``, should it have any. ``needs`` says,
    by the name of an instance, why that one has to end, or to have ended, for this step. ``withheld`` is set where the
    step is not taken for clients, ``blocked`` where it is known that it cannot work.
    """

    kind: ClassVar[str]
    live: bool = False
    ends_clients: bool = False
    ends_instance: ClassVar[bool] = False
    """whether the daemon of ``instance`` that runs now ends by it"""
    noun: ClassVar[str] = ""
    """what such an end is called"""
    instance: Optional[str] = None
    needs: Mapping[str, str] = {}
    withheld: Optional[Withheld] = None
    blocked: Optional[str] = None
    instead_of: Optional[Step] = None
    """the step in whose place this one is taken, where that is withheld"""

    @property
    @abstractmethod
    def text(self) -> str:
        """What it does, on one line."""

    @property
    def more_than_live(self) -> str:
        """What of it goes beyond a live reload, on one line; only where ``live`` is not set."""
        return self.text

    @abstractmethod
    def differences(self) -> list[Difference]:
        """Files and states before and after, as they are at this moment."""

    @abstractmethod
    def statements(self) -> tuple[Statement, ...]:
        """What it does, as data; as ``differences`` it holds for the moment before it acts."""

    def details(self) -> dict[str, Any]:
        """What else programs want to know of it."""
        return {}

    @classmethod
    @abstractmethod
    def act(cls, steps: Sequence[Any], context: Context) -> None:
        """Take steps of this class that stand behind each other in the plan, all at once.

        :raises MpsctlError: if the plan cannot be followed any further.
        """

    @property
    def due(self) -> bool:
        """Whether it is to be taken, as far as is known by now."""
        replaced = self.instead_of is None or self.instead_of.withheld is not None
        return self.withheld is None and self.blocked is None and replaced

    def as_json(self, statements: Iterable[Statement]) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "instance": self.instance,
            "live": self.live,
            "ends_clients": self.ends_clients,
            "statements": [one.as_json() for one in statements],
            **self.details(),
        }


def withhold(steps: Sequence[Step], occupied: Mapping[str, Occupied]) -> None:
    """Mark the steps that would end occupied instances, and all that need the end of one of these, as withheld."""
    for step, found in dependent(steps, occupied).items():
        step.withheld = step.withheld or found


def dependent(steps: Sequence[Step], occupied: Mapping[str, Occupied]) -> dict[Step, Withheld]:
    """Which steps cannot be taken while these instances go on, and why. An instance whose own end is among them goes on
    as well."""
    going_on = dict(occupied)
    found: dict[Step, Withheld] = {}
    while True:
        before = len(found)
        for step in steps:
            names = () if step in found else [name for name in step.needs if name in going_on]
            for name in names:
                found.setdefault(step, _withheld(step, name, going_on[name]))
            if names and step.ends_instance and step.instance is not None:
                going_on.setdefault(step.instance, going_on[names[0]])
        if len(found) == before:
            return {step: found[step] for step in steps if step in found}


def _withheld(step: Step, name: str, occupied: Occupied) -> Withheld:
    why = step.needs[name]
    if name == step.instance and occupied.unknown is not None:
        why += f"; who is connected cannot be told: {occupied.unknown}"
    return Withheld(why, occupied.clients)
