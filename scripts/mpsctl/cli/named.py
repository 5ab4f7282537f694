"""The instance that a command line means: by its name, or by the GPU that it serves."""

from __future__ import annotations

import argparse

from mpsctl.model.errors import BadValue
from mpsctl.store.world import World


def instance(world: World, options: argparse.Namespace) -> str:
    """The name of the instance.

    :raises BadValue: if neither or both were given, or the GPU is of no instance, or of several.
    :raises NotReady: if NVML does not answer.
    """
    if (options.instance is None) == (options.gpu is None):
        found = "neither INSTANCE nor --gpu" if options.instance is None else "INSTANCE and --gpu"
        raise BadValue(found, "one of them", "name the instance, or a GPU of it")
    if options.gpu is None:
        return str(options.instance)
    from mpsctl.observe import gpus

    return gpus.instance_of(world, options.gpu)
