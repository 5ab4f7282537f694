"""Steps on the front door of an instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import bytecode, files, pipe, without_door
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.converge.unit_steps import call, move_doors, restart_doors, take_doors_away
from mpsctl.model.names import door_service
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.store import public_directories


@dataclass(eq=False, repr=False)
class OpenFrontDoor(Step):
    """Have somebody listen where clients look for the daemon.

    Whoever comes waits there until the daemon's limits are in force; clients that are connected notice nothing.
    ``moves_from`` is where the door of an instance that is down stands, where another place is desired.
    """

    kind = "open-front-door"
    live = True
    door: UnitFacts
    public: Path
    instance: Optional[str] = None
    blocked: Optional[str] = None
    moves_from: Optional[Path] = None

    @property
    def text(self) -> str:
        return f"open the front door of {self.public}"

    def differences(self) -> list[Difference]:
        before = "clients find nobody" if self.door.active else self.door.active_state
        return [state(self.door.name, before, "clients find the front door")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.DOOR_OPENED, self.instance),)

    @classmethod
    def act(cls, steps: Sequence[OpenFrontDoor], context: Context) -> None:
        bytecode.keep(context.world.places)
        for step in steps:
            if step.instance is not None:
                public_directories.note(context.world, step.instance, step.public)
        absent = [step for step in steps if not step.door.active]
        # systemd starts no socket while its service runs.
        known = [step for step in absent if step.door.load_state == "loaded"]
        call(context, "stop", [door_service(step.instance) for step in known if step.instance])
        for step in absent:
            if not pipe.daemons_on(step.public):  # what one left there would be in the socket's way
                without_door.leave(step.public, for_door=True)
        call(context, "start", [step.door.name for step in absent])
        move_doors(context, {str(step.instance): step.moves_from for step in steps if step.moves_from is not None})
        for step in steps:
            if step.door.active and (step.public / pipe.DOOR).is_socket():
                files.replace_symlink(step.public / pipe.PUBLIC_NAME, pipe.DOOR)
        # Its socket was removed under it: nobody can come to those that wait there, or go from it.
        active = [step for step in steps if step.door.active and step.moves_from is None]
        gone = [step for step in active if not pipe.somebody_listens(step.public)]
        restart_doors(context, [step.instance for step in gone if step.instance])
        for step in steps:
            if not step.door.active:
                pipe.remove_former(step.public)


@dataclass(eq=False, repr=False)
class TakeFrontDoorAway(Step):
    """Remove a front door that is no longer desired, where the daemon is down or stands in its place already.

    Whoever waits there is refused; whoever comes finds the daemon itself, or nobody.
    """

    kind = "take-front-door-away"
    door: UnitFacts
    public: Path
    instance: Optional[str] = None
    blocked: Optional[str] = None

    @property
    def text(self) -> str:
        return f"take the front door of {self.public} away"

    def differences(self) -> list[Difference]:
        return [state(self.door.name, self.door.active_state, "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.DOOR_REMOVED, self.instance),)

    @classmethod
    def act(cls, steps: Sequence[TakeFrontDoorAway], context: Context) -> None:
        take_doors_away(context.world, {str(step.instance): step.public for step in steps})
        for step in steps:
            if not pipe.daemons_on(step.public):
                pipe.remove_door(step.public)
