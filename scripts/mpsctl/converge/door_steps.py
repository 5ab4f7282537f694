"""Steps on the front door of an instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import bytecode, files, pipe
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.step import Context, Step
from mpsctl.converge.unit_steps import call, restart_doors
from mpsctl.model.names import door_service, door_unit
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.store.world import World


@dataclass(eq=False, repr=False)
class OpenFrontDoor(Step):
    """Have somebody listen where clients look for the daemon.

    Whoever comes waits there until the daemon's limits are in force; clients that are connected notice nothing.
    """

    kind = "open-front-door"
    live = True
    door: UnitFacts
    public: Path
    instance: Optional[str] = None
    blocked: Optional[str] = None

    @property
    def text(self) -> str:
        return f"open the front door of {self.public}"

    def differences(self) -> list[Difference]:
        before = "clients find nobody" if self.door.active else self.door.active_state
        return [state(self.door.name, before, "clients find the front door")]

    @classmethod
    def act(cls, steps: Sequence[OpenFrontDoor], context: Context) -> None:
        bytecode.keep(context.world.places)
        absent = [step for step in steps if not step.door.active]
        # systemd starts no socket while its service runs.
        known = [step for step in absent if step.door.load_state == "loaded"]
        call(context, "stop", [door_service(step.instance) for step in known if step.instance])
        call(context, "start", [step.door.name for step in absent])
        for step in steps:
            if step.door.active and (step.public / pipe.DOOR).is_socket():
                files.replace_symlink(step.public / pipe.PUBLIC_NAME, pipe.DOOR)
        # Its socket was removed under it: nobody can come to those that wait there, or go from it.
        gone = [step for step in steps if step.door.active and not (step.public / pipe.DOOR).is_socket()]
        restart_doors(context, [step.instance for step in gone if step.instance])
        for step in steps:
            if not step.door.active:
                pipe.remove_former(step.public)


def take_away(world: World, name: str, public: Optional[Path]) -> None:
    """Remove the front door of an instance that is stopped: first its name, so that nobody new comes, then those who
    came are answered, then the socket."""
    if public is not None:
        pipe.remove_name(public)
    socket = door_unit(name)
    world.systemd.act("disable", [socket])
    (world.places.units / "sockets.target.wants" / socket).unlink(missing_ok=True)
    world.systemd.act("stop", [door_service(name), socket])
