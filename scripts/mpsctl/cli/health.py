"""The verb health: a line for each instance, what is amiss below it, and what was done about it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mpsctl.adapters import journal
from mpsctl.cli import checked, output
from mpsctl.model import checked_values
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.lifecycle.health import Health


def health(world: World, options: argparse.Namespace) -> int:
    """Judge every instance that has a file, act where its file says so, and write metrics where that is asked for.

    :raises BadValue: for a directory that metrics cannot be in.
    """
    began_s = world.now_s()
    folder, by = options.metrics_directory, options.metrics_by
    if folder is not None:
        folder = checked.option("--metrics-directory", checked_values.check_metrics_directory, folder)
    begun = Asked(world)
    from mpsctl.lifecycle import health as lifecycle  # read while NVML and systemd are at work
    from mpsctl.metrics import keep

    done = lifecycle.health(world, begun)
    problem = keep.keep(world, done.report, began_s, folder, by)
    if problem:
        output.say(f"mpsctl health: the metrics could not be written: {problem}", stream=sys.stderr)
    if options.json:
        answer = done.report.as_json()
        for name, one in answer["instances"].items():
            one["actions"] = [action.as_json() for action in done.actions.get(name, ())]
        output.say_json(answer)
    else:
        _show(world, done)
    return done.report.exit_code


def _show(world: World, done: Health) -> None:
    if journal.is_stdout():
        from mpsctl.lifecycle import health_journal

        health_journal.tell(world, done)
        return
    from mpsctl.cli import render

    render.host(done.report, brief=True)
    if not done.report.instances:
        output.say("no instance has a file on this host")
    for name, checks in done.report.instances.items():
        output.say(f"instance {name}: ", render.word(done.report.word(name)))
        render.amiss(checks, "  ", brief=True)
        for action in done.actions.get(name, ()):
            output.say(f"  > {action.line}")
