"""Steps that systemd takes: each kind is one call of systemctl for all units that stand behind each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import bytecode, pipe, systemd
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.file_steps import remove_empty
from mpsctl.converge.statement import Statement, of_unit
from mpsctl.converge.step import Context, Occupied, Step
from mpsctl.lifecycle import compute_modes
from mpsctl.model.gpu import EXCLUSIVE_PROCESS
from mpsctl.model.instance import Instance
from mpsctl.model.names import door_service, door_unit
from mpsctl.store import admission, public_directories, saved_compute_modes
from mpsctl.store.world import World

_FORGOTTEN = ("mps-control@*.service", "mps-front-door@*", "mps-health.service")


def call(context: Context, verb: str, units: Sequence[str]) -> None:
    """Have systemd do something with units; what it says against it is a problem of the run."""
    if not units:
        return
    problem = context.world.systemd.act(verb, units)
    if problem is None:
        return
    shown = context.world.systemd.show(units)
    masked = [unit for unit in units if shown.get(unit, {}).get("LoadState") == "masked"]
    more = f"; masked: run `systemctl unmask {' '.join(masked)}`" if masked else ""
    context.problems.append(f"{problem}{more}")


def why_masked(unit: str) -> str:
    """The line for a unit that somebody masked: nothing starts or enables it."""
    return f"found {unit} masked, expected a unit that can be started; run `systemctl unmask {unit}`"


@dataclass(eq=False, repr=False)
class Enable(Step):
    """Have a unit start at boot. It takes effect by the reload of systemd's units behind it."""

    kind = "enable"
    unit: str
    instance: Optional[str] = None
    blocked: Optional[str] = None

    @property
    def text(self) -> str:
        return f"enable {self.unit}"

    def differences(self) -> list[Difference]:
        return [state(self.unit, "not started at boot", "started at boot")]

    def statements(self) -> tuple[Statement, ...]:
        return (of_unit(statement.ENABLED, self.unit, self.instance),)

    @classmethod
    def act(cls, steps: Sequence[Enable], context: Context) -> None:
        call(context, "enable", [step.unit for step in steps])


@dataclass(eq=False, repr=False)
class ReloadSystemd(Step):
    """Have systemd read its units anew. ``after_removal``: failures of units that are gone are forgotten as well, and
    nothing depends on whether it works."""

    kind = "reload-systemd"
    live = True
    after_removal: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "reload systemd's units"

    def differences(self) -> list[Difference]:
        return [state("systemd", "older units loaded", "units as on disk")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.SYSTEMD_RELOADED),)

    @classmethod
    def act(cls, steps: Sequence[ReloadSystemd], context: Context) -> None:
        problem = context.world.systemd.act("daemon-reload")
        if any(step.after_removal for step in steps):
            context.world.systemd.act("reset-failed", _FORGOTTEN)
        else:
            systemd.ensure(problem, "systemctl daemon-reload")


@dataclass(eq=False, repr=False)
class Start(Step):
    """Start a unit. ``anew`` is the instance whose unit systemd is starting with what its files said before: to start
    the unit would be to join that, so the attempt is ended, unless somebody came in by it meanwhile. ``modes`` are the
    compute modes that change by it."""

    kind = "start"
    unit: str
    before: str
    instance: Optional[str] = None
    anew: Optional[Instance] = None
    needs: Mapping[str, str] = field(default_factory=dict)
    blocked: Optional[str] = None
    modes: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        return f"start {self.unit}"

    def differences(self) -> list[Difference]:
        return [state(self.unit, self.before, "active")]

    def statements(self) -> tuple[Statement, ...]:
        return (*self.modes, of_unit(statement.STARTED, self.unit, self.instance))

    @classmethod
    def act(cls, steps: Sequence[Start], context: Context) -> None:
        bytecode.keep(context.world.places)  # before systemd calls the program many times at once
        call(context, "start", [step.unit for step in steps if step.anew is None])
        anew = [step.anew for step in steps if step.anew is not None]
        # Nobody comes in before a daemon's limits are in force.
        up = {one.name: one for one in anew if admission.open_directory(context.world.places, one.name) is not None}
        withhold_where_somebody_came(up, context)
        call(context, "restart", [step.unit for step in steps if step.anew is not None and step.due])


@dataclass(eq=False, repr=False)
class RestartUnit(Step):
    """Restart a unit that is no instance's, and has no clients."""

    kind = "restart-unit"
    unit: str
    why: str

    @property
    def text(self) -> str:
        return f"restart {self.unit}: {self.why}"

    def differences(self) -> list[Difference]:
        return [state(self.unit, "as before", "as its file says")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.RESTARTED, name=self.unit),)

    @classmethod
    def act(cls, steps: Sequence[RestartUnit], context: Context) -> None:
        call(context, "restart", [step.unit for step in steps])


@dataclass(eq=False, repr=False)
class Restart(Step):
    """Restart the daemon of an instance, once nobody is connected to it.

    ``frees`` are the UUIDs of GPUs that it serves and that no instance has afterwards: they get back the compute modes
    from before the first start. ``moves_from`` is the public directory at which its clients find it, where another one
    is desired; ``door_goes`` whether its front door stands, and none is desired. ``modes`` as in ``Start``.
    """

    kind = "restart"
    noun = "a restart"
    ends_clients = True
    ends_instance = True
    desired: Instance
    why: str
    needs: Mapping[str, str] = field()
    frees: tuple[str, ...] = ()
    moves_from: Optional[Path] = None
    door_goes: bool = False
    blocked: Optional[str] = None
    modes: tuple[Statement, ...] = ()

    @property
    def instance(self) -> str:  # type: ignore[override]  # mypy: an attribute of Step, here derived
        return self.desired.name

    @property
    def text(self) -> str:
        return f"restart {self.desired.unit}: {self.why}"

    def differences(self) -> list[Difference]:
        return [state(self.desired.unit, self.why, "restarted")]

    def statements(self) -> tuple[Statement, ...]:
        return (*self.modes, Statement(statement.RESTARTED, self.instance))

    @classmethod
    def act(cls, steps: Sequence[Restart], context: Context) -> None:
        bytecode.keep(context.world.places)
        withhold_where_somebody_came({step.desired.name: step.desired for step in steps}, context)
        due = [step for step in steps if step.due]
        moved = [step for step in due if step.moves_from is not None]
        restart_doors(context, [step.desired.name for step in moved if step.desired.front_door])
        going = [step for step in due if step.door_goes]
        take_doors_away(
            context.world, {one.desired.name: one.moves_from or Path(one.desired.pipe_directory) for one in going}
        )
        call(context, "restart", [step.desired.unit for step in due])
        for step in moved:
            if step.moves_from is not None:
                leave_directory(context.world, step.desired.name, step.moves_from)
        give_back_modes(context.world, [uuid for step in due for uuid in step.frees])


def restart_doors(context: Context, instances: Sequence[str]) -> None:
    """Stand front doors up anew, where their units say: who waits there is refused."""
    if instances:
        call(context, "stop", [door_service(name) for name in instances])
        call(context, "restart", [door_unit(name) for name in instances])


def move_doors(context: Context, moves_from: Mapping[str, Path]) -> None:
    """Stand the front doors of instances that are down up where their units say now; who waits is refused."""
    restart_doors(context, list(moves_from))
    for name, path in moves_from.items():
        leave_directory(context.world, name, path)


def leave_directory(world: World, name: str, public: Path) -> None:
    """Remove a public directory where clients find an instance no more, and the pipe root with the last one."""
    pipe.remove_public(public)
    remove_empty(public.parent)
    public_directories.forget(world, name, public)


def take_doors_away(world: World, publics: Mapping[str, Optional[Path]]) -> None:
    """Remove the front doors of instances that are stopped, or about to be, by their public directories as far as these
    are known: first their names, so that nobody new comes, then those who came are answered, then the sockets."""
    if not publics:
        return
    for public in publics.values():
        if public is not None:
            pipe.remove_name(public)
    sockets = [door_unit(name) for name in publics]
    world.systemd.act("disable", sockets)
    for socket in sockets:
        (world.places.units / "sockets.target.wants" / socket).unlink(missing_ok=True)
    world.systemd.act("stop", [*map(door_service, publics), *sockets])


def withhold_where_somebody_came(instances: Mapping[str, Instance], context: Context) -> None:
    """Close the front doors of instances that are about to end. A client may have come since the look: nobody's work is
    ended by a step that was planned without him."""
    from mpsctl.lifecycle import drain  # seldom needed, and a look has to be quick

    unsure = [instance for name, instance in instances.items() if name not in context.drained]
    found = drain.close_where_empty(context.world, unsure) if unsure else []
    occupied = {
        one.instance: Occupied(tuple(client for _, client in one.left), one.unknown) for one in found if not one.empty
    }
    context.withhold(occupied)


def give_back_modes(world: World, uuids: Sequence[str]) -> None:
    """Bring back the compute modes from before the first start, and forget them: whoever sets one from now on is left
    alone."""
    if not uuids:
        return
    with world.nvml() as nvml:
        for gpu in nvml.gpus():
            if gpu.uuid in uuids:
                compute_modes.restore(world, nvml, gpu, EXCLUSIVE_PROCESS)
                saved_compute_modes.forget(world, gpu)


@dataclass(eq=False, repr=False)
class Reload(Step):
    """Put the limits of a running daemon in force, live. ``modes`` as in ``Start``."""

    kind = "reload"
    live = True
    unit: str
    why: str
    instance: Optional[str] = None
    instead_of: Optional[Step] = None
    blocked: Optional[str] = None
    modes: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        return f"reload {self.unit}: {self.why}"

    def differences(self) -> list[Difference]:
        return [state(self.unit, self.why, "in force")]

    def statements(self) -> tuple[Statement, ...]:
        return (*self.modes, Statement(statement.RELOADED, self.instance))

    @classmethod
    def act(cls, steps: Sequence[Reload], context: Context) -> None:
        bytecode.keep(context.world.places)
        call(context, "reload", [step.unit for step in steps])
