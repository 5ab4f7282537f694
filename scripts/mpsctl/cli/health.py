"""The verb health: a line for each instance, what is amiss below it, and what was done about it."""

from __future__ import annotations

import argparse

from mpsctl.checks import document, verbs
from mpsctl.checks.judgement import HEALTH
from mpsctl.cli import output, render
from mpsctl.cli.output import say
from mpsctl.lifecycle import health as acts
from mpsctl.lifecycle.health import Health
from mpsctl.store.world import World


def health(world: World, options: argparse.Namespace) -> int:
    """Judge every instance that has a file, and act where its file says so."""
    done = acts.health(world)
    code = verbs.exit_code(HEALTH, done.report.worst)
    if options.json:
        answer = document.of(done.host, done.report, code)
        for name, one in answer["instances"].items():
            one["actions"] = [action.as_json() for action in done.actions.get(name, ())]
        output.say_json(answer)
    else:
        _show(done)
    return code


def _show(done: Health) -> None:
    """It stands in the journal every minute: what is ok takes no more than its line."""
    render.amiss(done.report.host)
    if not done.report.instances:
        say("no instance has a file on this host")
    for name, checks in done.report.instances.items():
        say(f"instance {name}: ", render.word(done.report.word(name)))
        render.amiss(checks, "  ")
        for action in done.actions.get(name, ()):
            say(f"  > {action.line}")
