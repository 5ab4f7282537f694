"""Steps that tidy what interrupted runs and earlier desired states left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from mpsctl.adapters import pipe
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.file_steps import RemovePartialFile, remove_empty
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.model.errors import Untrusted
from mpsctl.observe import remains
from mpsctl.observe.remains import Remains
from mpsctl.store import public_directories


@dataclass(eq=False, repr=False)
class RemoveFormerDirectory(Step):
    """Remove a public directory where clients found an instance before, with what is ours in it."""

    kind = "remove-former-directory"
    live = True
    path: Path
    of: str
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"remove {self.path}: clients of {self.of} found it there before"

    def differences(self) -> list[Difference]:
        return [state(str(self.path), "present", "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.REMAINS_REMOVED, name=str(self.path)),)

    @classmethod
    def act(cls, steps: Sequence[RemoveFormerDirectory], context: Context) -> None:
        for step in steps:
            if pipe.daemons_on(step.path):
                continue
            try:
                pipe.remove_public(step.path)
                remove_empty(step.path.parent)
            except Untrusted as error:  # it is not ours alone any more, and stays; the rest of the run does not wait
                context.world.say(str(error))
            public_directories.forget(context.world, step.of, step.path)


@dataclass(eq=False, repr=False)
class RemoveTransport(RemovePartialFile):
    """Remove a folder in which a run of an earlier release, that was killed, had the program."""

    kind = "remove-transport"

    @classmethod
    def act(cls, steps: Sequence[RemovePartialFile], _: Context) -> None:
        for step in steps:
            remains.remove_transport(step.path)


def of(found: Remains) -> Iterator[Step]:
    """A step for each thing that is left."""
    yield from map(RemovePartialFile, found.partial)
    yield from (RemoveFormerDirectory(path, name) for name, path in found.public)
    yield from map(RemoveTransport, found.transports)
