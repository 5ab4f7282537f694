"""The verb remove."""

from __future__ import annotations

import argparse
import sys

from mpsctl.cli import output
from mpsctl.store.world import World


def remove(world: World, options: argparse.Namespace) -> int:
    """Take everything of ours off the host; 1 where something stays."""
    from mpsctl.converge import remove

    answer = remove.remove(world, options.check)
    if options.json:
        output.say_json(answer.as_json())
        return 1 if answer.error else 0
    for line in [*answer.actions, *(f"warning: {warning}" for warning in answer.warnings)]:
        output.say(f"would {line}" if options.check and line in answer.actions else line)
    if answer.error:
        output.say(f"mpsctl remove: {answer.error}", stream=sys.stderr)
    elif not answer.changed:
        output.say("nothing of ours is on this host")
    return 1 if answer.error else 0
