"""Steps for the file by which container engines know the instances (CDI)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence, Union

from mpsctl.converge.file_steps import WriteFile, differs, remove_with_folder
from mpsctl.converge.ours import is_others, is_ours
from mpsctl.converge.removal_steps import RemoveFile
from mpsctl.converge.request import File
from mpsctl.model import cdi
from mpsctl.model.instance import Instance
from mpsctl.store import configuration
from mpsctl.store.world import World


def steps(
    world: World, desired: bool, instances: Sequence[Instance]
) -> Iterator[Union[WriteFile, RemoveSpecification]]:
    """What brings the file about, or takes it away where it is not desired or no instance has a device."""
    path = world.places.cdi
    content = cdi.specification(_in_order(instances)) if desired else None
    if content is None:
        yield from removal(world, {})
        return
    file = File(path, content)
    if is_others(path):
        yield WriteFile(file, blocked=_foreign(path))
    elif differs(file):
        yield WriteFile(file)


def _in_order(instances: Sequence[Instance]) -> list[Instance]:
    """In whatever order they are desired, the file is the same."""
    return sorted(instances, key=lambda one: configuration.natural(one.name))


def removal(world: World, needs: Mapping[str, str]) -> Iterator[RemoveSpecification]:
    """The step that takes the file away where it is ours."""
    path = world.places.cdi
    if is_ours(path):
        yield RemoveSpecification(path, needs)


def without_device(desired: bool, instances: Sequence[Instance]) -> Optional[str]:
    """The line for instances that no container can have by CDI, or None."""
    names = [one.name for one in instances if desired and cdi.device(one.name) is None]
    if not names:
        return None
    return (
        f"found the instance names {', '.join(names)}, expected a letter or digit at their end for a CDI device; they"
        " have none: rename them, or use `mpsctl env INSTANCE --format docker`"
    )


def _foreign(path: Path) -> str:
    return f"found a file {path} that is not ours, expected none or one of ours; move it away, or set mps_cdi to false"


@dataclass(eq=False, repr=False)
class RemoveSpecification(RemoveFile):
    """Remove the file, and its folder where nothing else is in it. Containers that run keep what they were given."""

    @classmethod
    def act(cls, steps: Sequence[RemoveFile], context: object) -> None:
        del context
        for step in steps:
            remove_with_folder(step.path)
