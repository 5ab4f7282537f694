"""Steps for the SELinux module that lets confined clients reach the front door, on hosts that have SELinux."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import files, selinux
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.step import Context, Step
from mpsctl.model.errors import Unreadable
from mpsctl.store.world import World


def record(world: World) -> Path:
    """Which module a run of ours loaded: what somebody else loaded under its name is left alone."""
    return world.places.state / "selinux-module"


def steps(world: World, desired: Optional[bytes]) -> Iterator[Step]:
    """What the module needs; ``desired`` is its file, None where none is desired."""
    if desired is None:
        if record(world).exists():
            yield UnloadPolicy()
    elif selinux.enabled(world.places.root) and not _is_loaded(world, desired):
        yield LoadPolicy(desired)


def _is_loaded(world: World, module: bytes) -> bool:
    try:
        known = (files.read_text(record(world)) or "").strip()
    except Unreadable:
        return False
    return known == _digest(module) and selinux.loaded(world.places.root)


def _digest(module: bytes) -> str:
    return hashlib.sha256(module).hexdigest()


@dataclass(eq=False, repr=False)
class LoadPolicy(Step):
    """Load the module, and note that it is ours."""

    kind = "load-selinux-module"
    module: bytes

    @property
    def text(self) -> str:
        return f"load the SELinux module {selinux.MODULE}"

    def differences(self) -> list[Difference]:
        return [state(f"SELinux module {selinux.MODULE}", "absent or another", f"sha256 {_digest(self.module)}")]

    @classmethod
    def act(cls, steps: Sequence[LoadPolicy], context: Context) -> None:
        world = context.world
        for step in steps:
            file = world.places.host_lock.with_name(f"{selinux.MODULE}.pp")  # semodule names a module by its file
            files.write(file, step.module, 0o600, lasting=False)
            try:
                files.write(
                    record(world), f"{_digest(step.module)}\n"
                )  # first: an interrupted run is taken back as well
                selinux.load(file)
            finally:
                files.remove(file)


@dataclass(eq=False, repr=False)
class UnloadPolicy(Step):
    """Take the module out again that a run of ours loaded."""

    kind = "unload-selinux-module"
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"remove the SELinux module {selinux.MODULE}"

    def differences(self) -> list[Difference]:
        return [state(f"SELinux module {selinux.MODULE}", "loaded by a run", "absent")]

    @classmethod
    def act(cls, steps: Sequence[UnloadPolicy], context: Context) -> None:
        for _ in steps:
            if selinux.loaded(context.world.places.root):
                selinux.unload()
            files.remove(record(context.world))
