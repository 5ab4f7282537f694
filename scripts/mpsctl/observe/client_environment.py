"""What a client of an instance must export.

No memory limit stands in it: the daemon's is in force without, and one entry that does not parse or names a
GPU the client cannot see would drop every limit, the daemon's included (driver 580, H200). GPUs are named by
UUID, because the daemon numbers its own from 0 (NVIDIA's documentation).
"""

from __future__ import annotations

import json
import shlex
from typing import Mapping, Sequence

from mpsctl.model import container_words
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.places import FINGERPRINT
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
    return variables(instance.pipe_directory, [device.uuid for device in devices])


def variables(public: str, devices: Sequence[str]) -> dict[str, str]:
    """The variables for clients that find their daemon at a public directory; ``devices`` are its own by UUID."""
    return {PIPE_DIRECTORY: public, VISIBLE_DEVICES: ",".join(devices)}


def file(name: str, found: Mapping[str, str]) -> str:
    """The text of an instance's file of variables: KEY=value lines, which systemd (EnvironmentFile=), docker, podman
    and compose (``--env-file``, ``env_file``) read alike, and a shell with ``set -a``. A container that has the
    variables and not the directory runs outside MPS, so its head names the command for containers."""
    head = (
        f"{FINGERPRINT}: what clients of instance {name} export.",
        f"# For EnvironmentFile= of systemd. A container needs the directory too: mpsctl env {name} --format docker",
        f"# Does one come in? mpsctl ready {name}",
    )
    return "\n".join([*head, render(found, "systemd")]) + "\n"


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
