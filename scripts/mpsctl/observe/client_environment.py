"""What a client of an instance must export.

No memory limit stands in it: the daemon's is in force without, and one entry that does not parse or names a
GPU the client cannot see would drop every limit, the daemon's included (driver 580, H200). GPUs are named by
UUID, because the daemon numbers its own from 0 (NVIDIA's documentation).
"""

from __future__ import annotations

import json
import shlex
from typing import Mapping

from mpsctl.model import container_words
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.store import configuration
from mpsctl.store.world import World


def of(world: World, name: str) -> dict[str, str]:
    """The variables for clients of an instance.

    :raises BadValue: if there is no such instance, or its GPUs are not on this host.
    :raises NotReady: if NVML does not answer.
    """
    instance = configuration.load(world, name)
    with world.nvml() as nvml:
        devices = configuration.resolve(instance, nvml.gpus())
    return {
        PIPE_DIRECTORY: instance.pipe_directory,
        VISIBLE_DEVICES: ",".join(device.uuid for device in devices),
    }


def for_container(world: World, name: str, kind: str) -> str:
    """What a container engine is given for clients of an instance, in one of ``container_words.FORMATS``.

    :raises BadValue: as ``of``, and if the form has no place for the instance's name.
    :raises NotReady: if NVML does not answer.
    """
    instance = configuration.load(world, name)
    with world.nvml() as nvml:
        devices, driver = configuration.resolve(instance, nvml.gpus()), nvml.driver_version()
    uuids = tuple(device.uuid for device in devices)
    way = container_words.Way(instance, uuids, configuration.gid_of(instance), driver)
    return container_words.FORMATS[kind](way)


def render(variables: Mapping[str, str], kind: str) -> str:
    """The variables for a ``shell``, a ``systemd`` EnvironmentFile, or as ``json``."""
    if kind == "json":
        return json.dumps(variables)
    if kind == "systemd":
        return "\n".join(f"{key}={value}" for key, value in variables.items())
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
