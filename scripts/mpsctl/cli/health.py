"""The verb health: a line for each instance, what is amiss below it, and what was done about it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mpsctl.cli import output
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.lifecycle.health import Health


def health(world: World, options: argparse.Namespace) -> int:
    """Judge every instance that has a file, and act where its file says so."""
    begun = Asked(world)
    from mpsctl.lifecycle import health as lifecycle  # read while NVML and systemd are at work

    done = lifecycle.health(world, begun)
    if options.json:
        answer = done.report.as_json()
        for name, one in answer["instances"].items():
            one["actions"] = [action.as_json() for action in done.actions.get(name, ())]
        output.say_json(answer)
    else:
        _show(done)
    return done.report.exit_code


def _show(done: Health) -> None:
    """Show it short, as it stands in the journal every minute."""
    from mpsctl.cli import render

    render.host(done.report, brief=True)
    if not done.report.instances:
        output.say("no instance has a file on this host")
    for name, checks in done.report.instances.items():
        output.say(f"instance {name}: ", render.word(done.report.word(name)))
        render.amiss(checks, "  ", brief=True)
        for action in done.actions.get(name, ()):
            output.say(f"  > {action.line}")
