"""The file of variables of an instance, for its clients: written by a run, kept true by every start, since an index may
have become the name of another GPU. A file of that name that is not ours is left alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Sequence

from mpsctl.adapters import files
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.places import FINGERPRINT
from mpsctl.observe import client_environment
from mpsctl.store.world import World


def keep(world: World, instance: Instance, devices: Sequence[Device]) -> None:
    """Write it where it says something else. What keeps it from being written is told, and keeps no daemon down."""
    path = world.places.client_environment(instance.name)
    variables = client_environment.variables(instance.pipe_directory, [device.uuid for device in devices])
    desired = client_environment.file(instance.name, variables)
    try:
        found = files.read_text(path)
        if found == desired:
            return
        if found is not None and not found.startswith(FINGERPRINT):
            world.say(f"{path} is not ours and stays as it is; clients need what `mpsctl env {instance.name}` says")
            return
        files.write(path, desired)
    except (OSError, MpsctlError) as error:
        world.say(f"what clients export could not be written: {one_line(error)}")


def forget(world: World, name: str) -> None:
    """Remove it, where it is ours."""
    path = world.places.client_environment(name)
    with suppress(MpsctlError):  # what cannot be read is not ours
        if (files.read_text(path) or "").startswith(FINGERPRINT):
            files.remove(path)
