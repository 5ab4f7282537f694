"""The compute modes of GPUs from before this program first changed them, one file for each GPU: kept over reboots."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Iterable, Optional, Sequence

from mpsctl.adapters import files
from mpsctl.model.errors import BadValue, NoRight, Unreadable
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED, Gpu
from mpsctl.store import configuration, last_good
from mpsctl.store.world import World


def directory(world: World) -> Path:
    """The folder of the records; it has the name that 0.2.0 gave it, as hosts have such records already."""
    return world.places.state / "former-compute-modes"


def read(world: World, gpu: Gpu) -> Optional[str]:
    """The compute mode of a GPU as it was before this program first changed it, or None if it never did.

    What is damaged, or no file, counts as none.
    """
    try:
        mode = (files.read_text(directory(world) / gpu.uuid) or "").strip()
    except NoRight:
        raise
    except Unreadable:
        return None
    return mode if mode in (DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED) else None


def record(world: World, gpu: Gpu) -> None:
    """Record the present mode, once: it is never overwritten by ours."""
    if gpu.compute_mode is not None and read(world, gpu) is None:
        # One file for each GPU: instances start side by side.
        files.write(directory(world) / gpu.uuid, f"{gpu.compute_mode}\n")


def to_bring_back(world: World, gpu: Gpu) -> Optional[str]:
    """The saved compute mode of a GPU that is in one of ours, or None where there is nothing to bring back."""
    mode = read(world, gpu)
    ours = gpu.compute_mode in (EXCLUSIVE_PROCESS, PROHIBITED)
    return mode if ours and mode != gpu.compute_mode else None


def forget(world: World, gpu: Gpu) -> None:
    """For a GPU that is ours no longer: whoever sets its mode from now on is left alone."""
    files.remove(directory(world) / gpu.uuid)
    files.remove(_mark(world, gpu.uuid))


def note_set(world: World, uuid: str) -> None:
    """Note that we set a GPU's mode; gone at a reboot, at which the driver forgets the mode."""
    files.write(_mark(world, uuid), "", lasting=False)


def was_set(world: World, uuid: str) -> bool:
    """Whether we set a GPU's mode since boot. One that somebody else may have set is left to him."""
    return _mark(world, uuid).is_file()


def _mark(world: World, uuid: str) -> Path:
    return world.places.runtime(f"compute-mode-was-set-{uuid}")


def had_by(world: World, names: Iterable[str], gpus: Sequence[Gpu]) -> set[str]:
    """The UUIDs of the GPUs that instances have by their files or, where one is damaged, had last."""
    found: set[str] = set()
    for name in names:
        try:
            instance = configuration.load(world, name)
        except BadValue:  # `status` says what is wrong with it
            kept = last_good.read(world, name)
            if kept is None:
                continue
            instance = kept
        with suppress(BadValue):
            found.update(device.gpu.uuid for device in configuration.resolve(instance, gpus))
    return found


def left_behind(world: World, gpus: Sequence[Gpu], in_use: Iterable[str]) -> list[tuple[Gpu, str]]:
    """GPUs that are in a mode of ours though no instance has them, each with the mode to bring back.

    An interrupted run leaves them. ``in_use`` are UUIDs of GPUs that are served or desired, whatever files say.
    """
    found = [(gpu, mode) for gpu in gpus if (mode := to_bring_back(world, gpu))]
    if not found:
        return []
    kept = {*in_use, *had_by(world, configuration.names(world), gpus)}
    return [(gpu, mode) for gpu, mode in found if gpu.uuid not in kept]


def recorded(world: World) -> set[str]:
    """The UUIDs of the GPUs whose saved compute mode is on record."""
    place = directory(world)
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def all_recorded(world: World) -> dict[str, str]:
    """The modes from before the first start, by the UUID of each GPU whose mode is on record."""
    found: dict[str, str] = {}
    for uuid in recorded(world):
        with suppress(OSError, Unreadable):  # a look tells others' folders by a check of its own
            found[uuid] = (files.read_text(directory(world) / uuid) or "").strip()
    return {uuid: mode for uuid, mode in found.items() if mode}
