"""The service of one front door: its parts put together, for as long as somebody comes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Callable, Optional

from mpsctl.adapters import stop_request
from mpsctl.front_door import activation, loop
from mpsctl.front_door.policy import InstanceJudge
from mpsctl.front_door.worker import Worker
from mpsctl.model import foreign
from mpsctl.store.world import World


def run(world: World, instance: str) -> None:
    """Serve who comes to the socket that systemd hands over, until nobody did for a minute or a signal asks to stop.

    :raises NotReady: if systemd handed no socket over.
    """
    listener = activation.listener(instance, os.environ, os.getpid())
    with suppress(OSError):  # from here on it serves: the next one that fails is back soon
        (world.places.runtime(instance) / "front-door.pause").unlink(missing_ok=True)
    worker, scribe = Worker(world.now_s, _say_fault), Worker(world.now_s, _say_fault)
    judge = InstanceJudge(world, instance, worker, scribe)
    judge.look_back()
    worker.start()
    scribe.start()
    try:
        with stop_request.on_signals() as stop:
            loop.serve(world.places, instance, listener, judge, stop, _changes(world.places.program))
    finally:
        worker.end()
        scribe.end()
        judge.close()


def _changes(program: Path) -> Callable[[], bool]:
    """A question: is another file installed as the program than when this was called?"""

    def installed() -> Optional[tuple[int, int, int]]:
        try:
            about = program.stat()
        except OSError:
            return None
        return about.st_dev, about.st_ino, about.st_mtime_ns

    first = installed()
    return lambda: installed() != first


def _say_fault(what: str, error: Exception) -> None:
    """A look or a write that failed is tried again when it is ordered again."""
    with suppress(OSError, ValueError):
        text = f"front door: {what}: {type(error).__name__}: {error}"
        print(foreign.line(text), file=sys.stderr, flush=True)
