"""What a client of an instance must export.

No memory limit stands in it: the daemon's is in force without, and one entry that does not parse or names a
GPU the client cannot see would drop every limit, the daemon's included (driver 580, H200). GPUs are named by
UUID, because the daemon numbers its own from 0 (NVIDIA's documentation).
"""

from __future__ import annotations

import json
import shlex
from typing import Mapping

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


def render(variables: Mapping[str, str], kind: str) -> str:
    """The variables for a ``shell``, a ``systemd`` EnvironmentFile, ``docker`` run, or as ``json``."""
    if kind == "json":
        return json.dumps(variables)
    if kind == "systemd":
        return "\n".join(f"{key}={value}" for key, value in variables.items())
    if kind == "docker":
        directory = variables[PIPE_DIRECTORY]
        gpus = f'"device={variables[VISIBLE_DEVICES]}"'
        words = ["--gpus", gpus, "--ipc", "host", "--volume", f"{directory}:{directory}"]
        # In the container only the instance's GPUs exist, whatever the host calls them.
        words += ["--env", f"{PIPE_DIRECTORY}={directory}"]
        return shlex.join(words)
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
