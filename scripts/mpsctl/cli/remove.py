"""The verb remove."""

from __future__ import annotations

import argparse
import sys

from mpsctl.cli import checked, output
from mpsctl.model.checked_values import check_on_clients, check_timeout_s
from mpsctl.store.world import World


def remove(world: World, options: argparse.Namespace) -> int:
    """Take everything of ours off the host; 1 where something stays."""
    from mpsctl.converge import removal

    on_clients = checked.option("--on-clients", check_on_clients, options.on_clients)
    timeout_s = checked.option("--drain-timeout", check_timeout_s, options.drain_timeout)
    answer = removal.remove(world, options.check, on_clients, timeout_s)
    if options.json:
        output.say_json(answer.as_json())
        return 1 if answer.error else 0
    for line in answer.actions:
        output.say(f"would {line}" if options.check else line)
    for line in answer.progress:
        output.say(line)
    for warning in answer.warnings:
        output.say(f"warning: {warning}")
    if answer.error:
        output.say(f"mpsctl remove: {answer.error}", stream=sys.stderr)
    elif not answer.changed:
        output.say("nothing of ours is on this host")
    return 1 if answer.error else 0
