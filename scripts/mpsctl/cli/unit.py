"""The verbs that the units call: condition, prepare, apply, stop and release."""

from __future__ import annotations

import argparse
import os
from typing import Optional

from mpsctl.cli import output
from mpsctl.store.world import World


def _main_pid() -> Optional[int]:
    """The daemon's process as systemd hands it to the commands of a unit."""
    text = os.environ.get("MAINPID", "")
    return int(text) if text.isdigit() else None


SKIP = 77
"""Nothing else ends in this code: no error of this program, of Python (1, 2, 120), of a shell (2, 126, 127, 128 and
more) or of systemd's own way to a program (200 and more). The unit's ExecCondition knows it."""


def condition(world: World, options: argparse.Namespace) -> int:
    """Say whether this host can run MPS: 0, or ``SKIP`` where its units are to be skipped."""
    from mpsctl.lifecycle import prepare

    why = prepare.condition(world, options.instance)
    if options.json:
        output.say_json({"instance": options.instance, "skipped": why})
    elif why:
        output.say(f"skipped: {why}")
    return SKIP if why else 0


def prepare(world: World, options: argparse.Namespace) -> int:
    """Make the host ready for a daemon."""
    from mpsctl.adapters import bytecode
    from mpsctl.lifecycle import prepare

    bytecode.keep(world.places)
    environment = prepare.prepare(world, options.instance)
    if options.json:
        output.say_json({"pipe_directory": str(environment.pipe_directory), "devices": environment.devices})
    return 0


def apply(world: World, options: argparse.Namespace) -> int:
    """Put the limits in force, read them back, and let clients in unless the instance is drained."""
    from mpsctl.lifecycle import apply
    from mpsctl.store import drains

    changes = apply.apply(world, options.instance, _main_pid())
    if options.json:
        output.say_json({"instance": options.instance, "changes": changes})
        return 0
    for change in changes:
        output.say(change)
    drained = drains.read(world, options.instance)
    door = f"drained since {drained.since}" if drained else "clients may connect"
    output.say(f"{options.instance}: limits in force and read back, {door}")
    return 0


def stop(world: World, options: argparse.Namespace) -> int:
    """Drain and quit a daemon: 0, or 4 where it does not end."""
    from mpsctl.lifecycle import stop

    gone = stop.stop(world, options.instance, _main_pid())
    if options.json:
        output.say_json({"instance": options.instance, "gone": gone})
    return 0 if gone else 4


def release(world: World, options: argparse.Namespace) -> int:
    """Undo what prepare did."""
    from mpsctl.lifecycle import stop

    stop.release(world, options.instance)
    if options.json:
        output.say_json({"instance": options.instance})
    return 0
