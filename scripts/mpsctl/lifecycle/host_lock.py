"""One at a time: whatever changes a host as a whole takes one lock. The commands of the units never do."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from mpsctl.adapters import bytecode, files, locks, procfs
from mpsctl.lifecycle import admit
from mpsctl.model.errors import MpsctlError, NotReady, Unreadable
from mpsctl.store import record
from mpsctl.store.world import World

BOUND_S = 180
"""How long another run is waited for. One that waits for a driver takes 90 s by default."""


class Busy(NotReady):
    """Another run changes this host."""


@contextmanager
def taken(world: World, wait: bool = True) -> Iterator[list[str]]:
    """Have the host to ourselves, other calls of this function apart; the instances whose directories were opened
    because an earlier run, that was killed, had closed them.

    A systemctl that we start has the lock as well: should we be killed, its jobs come to their end before the next
    run looks at the host.

    :raises Busy: if another run does not end within BOUND_S, or with ``wait`` False is at work now.
    """
    path = world.places.host_lock
    try:
        try:
            descriptor = locks.take(path, world.now_s(), world.now_s, world.sleep_s)
        except locks.Taken:
            if not wait:
                raise
            bytecode.load_all()  # the other run may be a removal
            descriptor = locks.take(path, world.now_s() + BOUND_S, world.now_s, world.sleep_s)
    except locks.Taken:
        raise _busy(path) from None
    try:
        with files.named(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        os.set_inheritable(descriptor, True)
        yield [name for name in record.instances(world) if _settled(world, name)]
    finally:
        path.unlink(missing_ok=True)
        if not world.places.program.exists():  # a host without us; with us, units start in there at any time
            with suppress(OSError):
                path.parent.rmdir()
        os.close(descriptor)


def _settled(world: World, name: str) -> bool:
    with suppress(OSError, MpsctlError):  # what cannot be written stays as it is, and is told by a check
        return admit.settle(world, name)
    return False


def wait_for_others(world: World) -> None:
    """Wait until no run changes the host: what is seen of it meanwhile may be otherwise a moment later.

    The run of a playbook that was killed goes on on its hosts, unseen by who starts the next one.

    :raises Busy: if it does not end within BOUND_S.
    """
    lock = world.places.host_lock
    try:
        try:
            locks.wait_until_free(lock, world.now_s(), world.now_s, world.sleep_s)
        except locks.Taken:
            bytecode.load_all()  # the other run may be a removal
            locks.wait_until_free(lock, world.now_s() + BOUND_S, world.now_s, world.sleep_s)
    except locks.Taken:
        raise _busy(world.places.host_lock) from None
    except PermissionError:
        return  # others than root may look, and cannot tell


def _busy(path: Path) -> Busy:
    return Busy(
        f"another run of mpsctl has been changing this host for {BOUND_S} s or more: {_holders(path)}; nothing was"
        " changed, run it again when that has ended"
    )


def _holders(path: Path) -> str:
    """Who has the lock: the process that took it or, where that was killed, what it started."""
    try:
        text = (files.read_text(path) or "").strip()
    except Unreadable:
        text = ""
    pid = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
    if pid is not None and procfs.alive(pid):
        return f"pid {pid} ({procfs.command(pid)})"
    left = [one for one in procfs.pids() if one != os.getpid() and procfs.has_open(one, path)]
    if not left:
        return f"who has {path} cannot be told"
    was = f"pid {pid} was interrupted, and what it started is at work: " if pid is not None else ""
    return was + ", ".join(f"pid {one} ({procfs.command(one)})" for one in left)
