"""The desired state by which an instance was last started or reloaded, in /run/mps-fleet/<instance>/last-good.conf.

Where the instance's file is damaged or gone since, its clients still get their grace, a drain can be ended, and its
GPUs get back the compute modes from before. Nothing is started by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mpsctl.adapters import files
from mpsctl.model import daemon_environment
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import BadValue, Unreadable
from mpsctl.model.gpu import EXCLUSIVE_PROCESS
from mpsctl.model.instance import Instance
from mpsctl.model.instance_file import parse_conf
from mpsctl.store import configuration
from mpsctl.store.world import World


def _path(world: World, name: str) -> Path:
    return world.places.runtime(name) / "last-good.conf"


def keep(world: World, name: str) -> None:
    """Remember what the instance's file says now, where it can be read."""
    try:
        text = files.read_text(world.places.conf(name))
        if text is None:
            return
        parse_conf(text, name)
    except BadValue:
        return
    if _text(world, name) != text:
        files.write(_path(world, name), text, lasting=False)


def read(world: World, name: str) -> Optional[Instance]:
    """What was kept last; else what the daemon's own environment tells, if one was started since boot."""
    text = _text(world, name)
    if text is not None:
        try:
            return parse_conf(text, name)
        except BadValue:
            pass
    return _of_environment(world, name)


def load(world: World, name: str, running: Optional[DaemonEnvironment] = None) -> Instance:
    """What the instance's file says or, where that is refused, the last good desired state; which of both is said.

    ``running`` is what its daemon runs with, where the caller knows it.

    :raises BadValue: as ``configuration.load``, if there is neither.
    """
    try:
        return configuration.load(world, name)
    except BadValue as error:
        found = read(world, name) or _of_daemon(world, name, running)
        if found is None:
            raise
        world.say(f"{error}; meanwhile the instance is taken as it was started last")
        return found


def forget(world: World, name: str) -> None:
    files.remove(_path(world, name))


def _text(world: World, name: str) -> Optional[str]:
    try:
        return files.read_text(_path(world, name))
    except Unreadable:
        return None


def _of_environment(world: World, name: str) -> Optional[Instance]:
    try:
        text = files.read_text(world.places.daemon_environment(name)) or ""
    except Unreadable:
        return None
    return _of_daemon(world, name, daemon_environment.of_file(text))


def _of_daemon(world: World, name: str, served: Optional[DaemonEnvironment]) -> Optional[Instance]:
    """An instance of the GPUs that its daemon was started for, all else as by default.

    Of a daemon that an earlier release started nothing else is kept. The saved compute mode of a GPU is brought back,
    where the present one is ours.
    """
    if served is None or not served.devices:
        return None
    own = served.pipe_directory == world.places.pipe(name)
    public = world.places.default_public(name) if own else served.pipe_directory
    return Instance(name, served.devices, str(public), EXCLUSIVE_PROCESS, front_door=own)
