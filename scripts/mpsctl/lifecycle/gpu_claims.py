"""Which instance has which GPU: what its last start took, as the environment of its daemon says, while its unit runs.

Two control daemons on one GPU fight for it. By their files two instances may have the same one for a while: where a
GPU moves from one to the other, or an instance gets another name, and the former one still has clients; and where
GPUs change their indices under running daemons.
"""

from __future__ import annotations

import os
from typing import Iterable

from mpsctl.adapters import files, locks
from mpsctl.model import daemon_environment
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import NotReady, Unreadable
from mpsctl.observe import units
from mpsctl.observe.asked import unit_of
from mpsctl.store import record
from mpsctl.store.world import World

_LOCK_S = 10
_ENDED = ("inactive", "failed")


def take(world: World, name: str, environment: DaemonEnvironment) -> None:
    """Write the environment of the daemon that is about to be started: from now on the instance has its devices.

    :raises NotReady: if another instance has one of them, or that cannot be told.
    """
    try:
        lock = locks.take(world.places.gpus_lock, world.now_s() + _LOCK_S, world.now_s, world.sleep_s)
    except locks.Taken:
        raise NotReady(f"another start has had {world.places.gpus_lock} for {_LOCK_S} s; see who in `ps`") from None
    try:
        others = of_others(world, name, environment.devices)
        if others:
            raise NotReady("; ".join(f"{unit_of(other)} still has {uuid}" for uuid, other in others.items()))
        files.write(world.places.daemon_environment(name), environment.as_file(), 0o600, lasting=False)
    finally:
        os.close(lock)


def give_back(world: World, name: str) -> None:
    """The instance has nothing any more: its daemon has ended."""
    files.remove(world.places.daemon_environment(name))


def of(world: World, name: str) -> tuple[str, ...]:
    """The devices that an instance took at its last start, by UUID; none where it gave them back."""
    try:
        text = files.read_text(world.places.daemon_environment(name))
    except Unreadable:
        return ()
    found = daemon_environment.of_file(text or "")
    return found.devices if found is not None else ()


def of_others(world: World, name: str, uuids: Iterable[str]) -> dict[str, str]:
    """Which of these devices another instance has, with its name. One whose unit ends or starts anew has them still.

    :raises NotReady: if systemd does not tell which units run.
    """
    wanted = set(uuids)
    taken = {one: wanted.intersection(of(world, one)) for one in record.instances(world) if one != name}
    taken = {one: common for one, common in taken.items() if common}
    shown = units.look(world, [unit_of(one) for one in taken]) if taken else {}
    return {
        uuid: one
        for one, common in taken.items()
        if shown[unit_of(one)].active_state not in _ENDED
        for uuid in sorted(common)
    }
