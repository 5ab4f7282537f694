"""Steps that write and remove files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Sequence

from mpsctl.adapters import bytecode, files, trusted
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.request import File
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.model.errors import TooLarge
from mpsctl.store.world import World

_MOST_PROGRAM_BYTES = 64 << 20
"""Far above the size of any build of this program."""


@dataclass(eq=False, repr=False)
class InstallProgram(Step):
    """Put this program in its place on the host. ``program`` is the file that it runs from."""

    kind = "install-program"
    program: Path
    place: Path

    @classmethod
    def where_it_differs(cls, world: World, program: Optional[Path]) -> list[Step]:
        """The step, where the host has no program or another; ``program`` None: it runs from its sources."""
        place = world.places.program
        return [cls(program, place)] if program is not None and not _same(program, place) else []

    @property
    def text(self) -> str:
        return f"install {self.place}"

    def differences(self) -> list[Difference]:
        before, after = _digest(self.place), _digest(self.program)
        return [Difference(str(self.place), before, after)]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.PROGRAM_INSTALLED),)

    @classmethod
    def act(cls, steps: Sequence[InstallProgram], context: Context) -> None:
        for step in steps:
            content = files.read_bytes(step.program, _MOST_PROGRAM_BYTES, believed=False)  # it runs already
            files.write(step.place, content or b"", 0o755)
        bytecode.keep(context.world.places)  # before anybody calls it


def _same(program: Path, place: Path) -> bool:
    """Whether the program is in its place, where nobody but root can change it.

    :raises NotAFile: if there is something else: what is not ours is not replaced.
    """
    try:
        contents = [files.read_bytes(path, _MOST_PROGRAM_BYTES, believed=False) for path in (program, place)]
    except TooLarge:
        return False
    return contents[0] == contents[1] and trusted.weak_point(place) is None


def _digest(path: Path) -> Optional[str]:
    import hashlib  # a look has to be quick, and most of them find the same program

    try:
        content = files.read_bytes(path, _MOST_PROGRAM_BYTES, believed=False)
    except TooLarge as error:
        return f"larger than {error.most_bytes} bytes\n"
    return None if content is None else f"sha256 {hashlib.sha256(content).hexdigest()}\n"


@dataclass(eq=False, repr=False)
class WriteFile(Step):
    """Write a file whole. ``beyond_limits`` is what of an instance's file is more than a limit, empty where nothing is:
    limits alone are brought about by a live reload. ``changes`` are its settings that change; none of another file."""

    kind = "write-file"
    file: File
    instance: Optional[str] = None
    live: bool = False
    beyond_limits: str = ""
    blocked: Optional[str] = None
    changes: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        return f"write {self.file.path}"

    @property
    def more_than_live(self) -> str:
        return self.beyond_limits or self.text

    def differences(self) -> list[Difference]:
        what, before = str(self.file.path), text_of(self.file.path)
        if before == self.file.content:
            about = self.file.path.stat()
            return [state(what, _owned(about.st_uid, about.st_gid, about.st_mode), _owned(0, 0, self.file.mode))]
        return [Difference(what, before, self.file.content)]

    def statements(self) -> tuple[Statement, ...]:
        return self.changes or (Statement(statement.FILE_WRITTEN, self.instance, name=self._called),)

    @property
    def _called(self) -> str:
        """Its name, of a drop-in with the unit's: those of ours are all called alike."""
        path = self.file.path
        return f"{path.parent.name}/{path.name}" if path.parent.suffix == ".d" else path.name

    @classmethod
    def act(cls, steps: Sequence[WriteFile], _: Context) -> None:
        for step in steps:
            files.write(step.file.path, step.file.content, step.file.mode)


def _owned(uid: int, gid: int, mode: int) -> str:
    return f"mode {mode & 0o7777:04o}, user {uid}, group {gid}"


def differs(file: File) -> bool:
    """Whether a file of the host is another than what is desired."""
    try:
        mode = file.path.stat().st_mode & 0o7777
    except (FileNotFoundError, NotADirectoryError):
        return True
    return mode != file.mode or text_of(file.path) != file.content or trusted.weak_point(file.path) is not None


def text_of(path: Path) -> Optional[str]:
    """The text of a file that is about to be written or removed, as far as a diff can show it.

    :raises NotAFile: if it is none: what is not ours is not replaced.
    """
    try:
        return files.read_text(path, believed=False)
    except TooLarge as error:
        return f"(larger than {error.most_bytes} bytes)\n"


def masked(path: Path) -> bool:
    """Whether somebody masked the unit of this file: a link to nowhere stands in its place (systemd 249 to 257)."""
    return path.is_symlink() and os.readlink(path) == os.devnull


@dataclass(eq=False, repr=False)
class RemovePartialFile(Step):
    """Remove what an interrupted run left beside a file of ours."""

    kind = "remove-partial-file"
    live = True
    path: Path
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"remove {self.path}: a run was interrupted"

    def differences(self) -> list[Difference]:
        return [state(str(self.path), "present", "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.REMAINS_REMOVED, name=str(self.path)),)

    @classmethod
    def act(cls, steps: Sequence[RemovePartialFile], context: Context) -> None:
        for step in steps:
            step.path.unlink(missing_ok=True)
            places = context.world.places
            if step.path.parent in (places.configuration, places.cdi.parent):
                remove_empty(step.path.parent)


def remove_empty(directory: Path) -> None:
    """Remove a directory that nothing is in."""
    with suppress(OSError):  # somebody else's files are in it, or it is gone
        directory.rmdir()


def remove_with_folder(path: Path) -> None:
    """Remove a file of ours that lies in a folder for files of others, and the folder where nothing else is in it.

    :raises Untrusted: if others can change the folder.
    """
    files.remove(path)
    remove_empty(path.parent)
