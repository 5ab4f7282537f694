"""Steps for the SELinux module that lets confined clients reach the front door, on hosts that have SELinux."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence, Union

from mpsctl.adapters import files, selinux
from mpsctl.converge import statement
from mpsctl.converge.answer import Difference, state
from mpsctl.converge.statement import Statement
from mpsctl.converge.step import Context, Step
from mpsctl.model.errors import MpsctlError, NotReady, Unreadable
from mpsctl.store.world import World


def record(world: World) -> Path:
    """Which module a run of ours loaded, written once it was: what somebody else has under its name is left alone."""
    return world.places.state / "selinux-module"


def steps(world: World, desired: Optional[bytes]) -> Iterator[Union[LoadPolicy, UnloadPolicy]]:
    """What the module needs; ``desired`` is its file, None where none is desired."""
    if desired is None:
        if record(world).exists():
            yield unload(world, {})
        return
    if not selinux.enabled(world.places.root):
        return
    try:
        mine, others = _sorted(world, {_digest(desired), _recorded(world)})
    except MpsctlError as error:
        yield LoadPolicy(desired, str(error))
        return
    if others:
        yield LoadPolicy(desired, _FOREIGN)
    elif not mine or _recorded(world) != _digest(desired):
        yield LoadPolicy(desired, selinux.why_no_change())


def unload(world: World, needs: Mapping[str, str]) -> UnloadPolicy:
    """The step that takes out what a run of ours loaded. What somebody else has there since stays."""
    try:
        mine, _ = _sorted(world, {_recorded(world)})
    except NotReady:  # without a policy there is nothing to take out
        return UnloadPolicy(False, needs)
    except MpsctlError as error:
        return UnloadPolicy(False, needs, str(error))
    return UnloadPolicy(mine, needs, selinux.why_no_change() if mine else None)


def not_as_desired(world: World, desired: Optional[bytes]) -> list[str]:
    """What the run had to bring about and did not, in one line each."""
    return [f"{one.text}: not done" for one in steps(world, desired) if one.blocked is None]


def _sorted(world: World, known: set[Optional[str]]) -> tuple[bool, bool]:
    """Whether the policy has a module of ours, and whether it has one of others under its name.

    What it has at our priority is ours by its content: a package by one of the ``known`` digests. Where the store keeps
    no packages our record alone can tell.

    :raises MpsctlError: as ``selinux.installed``.
    """
    found = selinux.installed(world.places.root)
    mine = selinux.PRIORITY in found and _is_ours(world, found[selinux.PRIORITY], known)
    return mine, len(found) > mine


def _is_ours(world: World, package: Optional[bytes], known: set[Optional[str]]) -> bool:
    return _recorded(world) is not None if package is None else _digest(package) in known


def _recorded(world: World) -> Optional[str]:
    try:
        return (files.read_text(record(world)) or "").strip() or None
    except Unreadable:
        return None


def _digest(module: bytes) -> str:
    return hashlib.sha256(module).hexdigest()


_FOREIGN = (
    f"found a SELinux module {selinux.MODULE} that no run loaded, expected none; see whose it is"
    " (`semodule -lfull`) and take it out, or set mps_selinux_module to false"
)


@dataclass(eq=False, repr=False)
class LoadPolicy(Step):
    """Load the module, and note that it is ours. What goes wrong is a problem of the run, whose other steps do not
    depend on it; the look at its end tells that it is not loaded."""

    kind = "load-selinux-module"
    module: bytes
    blocked: Optional[str] = None

    @property
    def text(self) -> str:
        return f"load the SELinux module {selinux.MODULE}"

    def differences(self) -> list[Difference]:
        return [state(f"SELinux module {selinux.MODULE}", "absent or another", f"sha256 {_digest(self.module)}")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.POLICY_LOADED),)

    @classmethod
    def act(cls, steps: Sequence[LoadPolicy], context: Context) -> None:
        for step in steps:
            try:
                step._load(context.world)
            except (MpsctlError, OSError) as error:
                context.problems.append(str(error))

    def _load(self, world: World) -> None:
        file = world.places.host_lock.with_name(f"{selinux.MODULE}.pp")  # semodule names a module by its file
        try:
            files.write(file, self.module, 0o600, lasting=False)
            selinux.load(file)
        finally:
            files.remove(file)
        files.write(record(world), f"{_digest(self.module)}\n")


@dataclass(eq=False, repr=False)
class UnloadPolicy(Step):
    """Take the module out again that a run of ours loaded, where the policy still has it. A run takes it last: what is
    on record stays on record until that is done.

    :raises NotInForce: (``act``) if semodule does not take it out.
    """

    kind = "unload-selinux-module"
    loaded: bool
    needs: Mapping[str, str] = field(default_factory=dict)
    blocked: Optional[str] = None

    @property
    def text(self) -> str:
        return f"remove the SELinux module {selinux.MODULE}"

    def differences(self) -> list[Difference]:
        return [state(f"SELinux module {selinux.MODULE}", "loaded by a run", "absent")]

    def statements(self) -> tuple[Statement, ...]:
        return (Statement(statement.POLICY_REMOVED),)

    @classmethod
    def act(cls, steps: Sequence[UnloadPolicy], context: Context) -> None:
        for step in steps:
            if step.loaded:
                selinux.unload()
            files.remove(record(context.world))
