"""Steps that end what an instance has on a host: its clients, itself, and the modes of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from mpsctl.adapters import files, pipe, systemd
from mpsctl.checks import words
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.file_steps import remove_empty, text_of
from mpsctl.converge.ours import is_ours
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Occupied, Step
from mpsctl.converge.unit_steps import give_back_modes, take_doors_away, withhold_where_somebody_came
from mpsctl.lifecycle import client_file, stop
from mpsctl.model.errors import Untrusted
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import ClientFacts
from mpsctl.store import admission, drains, front_door_notes, last_good, public_directories
from mpsctl.store.world import World


@dataclass(eq=False, repr=False)
class Drain(Step):
    """Let no new client in and wait for those that are connected; with ``end_clients`` those that are left are ended.

    ``purpose`` and ``why`` are what it is done for, in a noun and in full, ``clients`` are those of the look. An
    instance that still has clients then gets its front door back, and what would have ended them is withheld.
    """

    kind = "drain"
    desired: Instance
    purpose: str
    why: str
    clients: tuple[ClientFacts, ...]
    ages_s: tuple[Optional[int], ...]
    timeout_s: int
    end_clients: bool

    @property
    def instance(self) -> str:  # type: ignore[override]  # mypy: an attribute of Step, here derived
        return self.desired.name

    @property
    def ends_clients(self) -> bool:  # type: ignore[override]  # mypy: an attribute of Step, here derived
        return self.end_clients

    @property
    def text(self) -> str:
        then = " and end those that are left" if self.end_clients else ""
        count = words.number(len(self.clients), "client")
        return f"drain {self.desired.unit}, wait up to {self.timeout_s} s for its {count}{then}: {self.why}"

    def differences(self) -> list[Difference]:
        lines = "".join(f"{words.client(client)}\n" for client in self.clients)
        return [Difference(self.desired.unit, lines, "no client\n")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.DRAINED, self.instance, count=len(self.clients)),)

    def details(self) -> dict[str, Any]:
        return {"why": self.why, "clients": clients_as_json(self.clients, self.ages_s)}

    @classmethod
    def act(cls, steps: Sequence[Drain], context: Context) -> None:
        from mpsctl.lifecycle import drain  # seldom needed, and a look has to be quick

        world, by_name = context.world, {step.instance: step for step in steps}
        drained = drain.drain(
            world,
            [step.desired for step in steps],
            max(step.timeout_s for step in steps),
            end_clients=any(step.end_clients for step in steps),
            of_this_run=True,
            why={step.instance: f"{step.purpose}: {step.why}" for step in steps},
        )
        occupied = {}
        for one in drained:
            step = by_name[one.instance]
            lines = [f"drain {step.desired.unit}: {line}" for line in one.progress]
            # A wait for nothing changes nothing; an end of clients does.
            (context.progress if one.empty or one.ended else context.warnings).extend(lines)
            if one.empty:
                drains.forget_of_this_run(world, one.instance)  # the front door stays closed until the restart opens it
                context.drained.add(one.instance)
                continue
            drain.give_up(world, one)
            occupied[one.instance] = Occupied(tuple(client for _, client in one.left), one.unknown)
            if not one.ended:
                context.in_vain.append(step)
        context.withhold(occupied)


def clients_as_json(clients: Sequence[ClientFacts], ages_s: Sequence[Optional[int]]) -> list[dict[str, Any]]:
    """Clients in the way, each with its age in seconds."""
    return [
        {"pid": client.pid, "uid": client.uid, "user": client.user, "command": client.command, "age_s": age_s}
        for client, age_s in zip(clients, ages_s)
    ]


@dataclass(eq=False, repr=False)
class StopAndRemoveInstance(Step):
    """Stop an instance and remove what it has here, once nobody is connected to it.

    Its own stop brings the compute mode back.

    ``desired`` is what its file says, None where that is gone or refused; ``frees`` as in ``Restart``, ``modes`` as in
    ``Start``.
    """

    kind = "stop-and-remove"
    noun = "a removal"
    ends_clients = True
    ends_instance = True
    name: str
    unit: UnitFacts
    desired: Optional[Instance]
    conf: Path
    needs: Mapping[str, str] = field()
    frees: tuple[str, ...] = ()
    modes: tuple[Statement, ...] = ()

    @property
    def instance(self) -> str:  # type: ignore[override]  # mypy: an attribute of Step, here derived
        return self.name

    @property
    def text(self) -> str:
        return f"stop and remove {self.unit.name}"

    def differences(self) -> list[Difference]:
        variables = self.conf.with_suffix(".env")
        return [
            state(self.unit.name, self.unit.active_state, "absent"),
            Difference(str(self.conf), text_of(self.conf) or "", None),
            *([Difference(str(variables), text_of(variables) or "", None)] if is_ours(variables) else []),
        ]

    def statements(self) -> tuple[Statement, ...]:
        return (*self.modes, Statement(statement.INSTANCE_REMOVED, self.name))

    @classmethod
    def act(cls, steps: Sequence[StopAndRemoveInstance], context: Context) -> None:
        known = {step.name: step.desired or last_good.read(context.world, step.name) for step in steps}
        withhold_where_somebody_came({name: one for name, one in known.items() if one is not None}, context)
        world, due = context.world, [step for step in steps if step.due]
        if not due:
            return
        units = [step.unit.name for step in due]
        systemd.ensure(world.systemd.act("disable", units), f"systemctl disable {' '.join(units)}")
        for unit in units:  # of a masked unit it leaves the link, and ends with 0 (systemd 252)
            (world.places.units / "multi-user.target.wants" / unit).unlink(missing_ok=True)
        systemd.ensure(world.systemd.act("stop", units), f"systemctl stop {' '.join(units)}")
        take_doors_away(world, {step.name: step._public(world) for step in due})
        for step in due:
            step._remove(world)

    def _public(self, world: World) -> Optional[Path]:
        """Where its clients find it, as far as that is known."""
        known = self.desired or last_good.read(world, self.name)
        return Path(known.pipe_directory) if known is not None else None

    def _remove(self, world: World) -> None:
        """Remove what is left of one that is stopped."""
        if self.desired is not None:
            stop.restore_modes(world, self.desired)  # where a GPU is closed while MPS is down, the stop left it so
        public = self._public(world)
        for one in dict.fromkeys(
            [*([public] if public is not None else []), *public_directories.read(world, self.name)]
        ):
            try:
                tidy(one, world.places.pipe(self.name))
            except Untrusted as error:  # it is not ours alone any more, and stays; the rest goes
                world.say(str(error))
            public_directories.forget(world, self.name, one)
        front_door_notes.forget(world.places, self.name)
        admission.forget(world.places, self.name)
        give_back_modes(world, self.frees)
        drains.forget(world, self.name)
        last_good.forget(world, self.name)
        client_file.forget(world, self.name)
        self.conf.unlink(missing_ok=True)
        if self.conf.parent.is_dir():
            files.sync_directory(self.conf.parent)
            remove_empty(self.conf.parent)


def tidy(public: Path, own: Path) -> None:
    """Remove the directories of an instance; never under a daemon that still serves them."""
    if not pipe.daemons_on(public, own):
        pipe.remove_public(public)
        pipe.remove(own)
    remove_empty(public.parent)


@dataclass(eq=False, repr=False)
class RestoreComputeMode(Step):
    """Bring back the compute mode of a GPU that is in one of ours and that no instance has any more."""

    kind = "restore-compute-mode"
    live = True
    gpu: Gpu
    mode: str
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"bring back the compute mode of {self.gpu}: {self.mode}"

    def differences(self) -> list[Difference]:
        return [state(str(self.gpu), str(self.gpu.compute_mode), self.mode)]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.COMPUTE_MODE, gpu=self.gpu.index, before=self.gpu.compute_mode, after=self.mode),)

    @classmethod
    def act(cls, steps: Sequence[RestoreComputeMode], context: Context) -> None:
        give_back_modes(context.world, [step.gpu.uuid for step in steps])
