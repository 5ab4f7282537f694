"""Steps that only a removal takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.converge import own_folders, statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.file_steps import remove_empty, text_of
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.store import metrics_file


@dataclass(eq=False, repr=False)
class StopHelpers(Step):
    """Stop the look each minute, and have it start at boot no more. ``link`` is what starts its timer."""

    kind = "stop-helpers"
    units: tuple[str, ...]
    link: Path
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"stop and disable {', '.join(self.units)}"

    def differences(self) -> list[Difference]:
        return [state(unit, "as systemd has it", "stopped, not started at boot") for unit in self.units]

    def statements(self) -> tuple[Statement, ...]:
        return tuple(Statement(statement.STOPPED, name=unit) for unit in self.units)

    @classmethod
    def act(cls, steps: Sequence[StopHelpers], context: Context) -> None:
        for step in steps:
            context.world.systemd.act("disable", [unit for unit in step.units if unit.endswith(".timer")])
            context.world.systemd.act("stop", step.units)
            # Whatever became of the command, no link stays behind without its file.
            step.link.unlink(missing_ok=True)


@dataclass(eq=False, repr=False)
class RemoveFile(Step):
    """Remove a file of ours."""

    kind = "remove-file"
    path: Path
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"remove {self.path}"

    def differences(self) -> list[Difference]:
        return [Difference(str(self.path), text_of(self.path) or "", None)]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.FILE_REMOVED, name=str(self.path)),)

    @classmethod
    def act(cls, steps: Sequence[RemoveFile], context: Context) -> None:
        for step in steps:
            step.path.unlink(missing_ok=True)
            if step.path.parent == context.world.places.configuration:
                remove_empty(step.path.parent)


@dataclass(eq=False, repr=False)
class RemoveScript(RemoveFile):
    """Remove a script of ours that others run, with its folder where nothing else is in it."""

    kind = "remove-script"

    @classmethod
    def act(cls, steps: Sequence[RemoveFile], context: Context) -> None:
        RemoveFile.act(steps, context)
        for folder in {step.path.parent for step in steps}:
            remove_empty(folder)


@dataclass(eq=False, repr=False)
class RemoveMetrics(RemoveFile):
    """Remove the file of metrics where a node exporter finds it, with its record; its numbers are no difference to
    print."""

    kind = "remove-metrics"

    def differences(self) -> list[Difference]:
        return [state(str(self.path), "present", "absent")]

    @classmethod
    def act(cls, steps: Sequence[RemoveFile], context: Context) -> None:
        del steps  # there is one
        try:
            metrics_file.take_away(context.world.places)
        except (MpsctlError, OSError) as error:
            context.problems.append(one_line(error))


@dataclass(eq=False, repr=False)
class RemoveDirectory(Step):
    """Remove a directory of ours with what is ours in it, but for ``keeps``, which its user removes."""

    kind = "remove-directory"
    path: Path
    needs: Mapping[str, str] = field(default_factory=dict)
    keeps: Optional[Path] = None

    @property
    def text(self) -> str:
        return f"remove {self.path}"

    def differences(self) -> list[Difference]:
        return [state(str(self.path), "present", "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.FILE_REMOVED, name=str(self.path)),)

    @classmethod
    def act(cls, steps: Sequence[RemoveDirectory], context: Context) -> None:
        for step in steps:
            try:
                own_folders.remove(context.world.places, step.path, step.keeps)
            except (MpsctlError, OSError) as error:  # what stays is told by the look at the end
                context.problems.append(str(error))


@dataclass(eq=False, repr=False)
class RemoveProgram(RemoveFile):
    """Remove this program, whose content is no difference to print."""

    kind = "remove-program"

    def differences(self) -> list[Difference]:
        return [state(str(self.path), "present", "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.PROGRAM_REMOVED),)
