"""The verbs drain and undrain."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

from mpsctl.cli import checked, output
from mpsctl.lifecycle import drain as lifecycle
from mpsctl.model.checked_values import check_reason, check_timeout_s
from mpsctl.model.errors import NotReady
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, drains, last_good
from mpsctl.store.world import World


def drain(world: World, options: argparse.Namespace) -> int:
    """Close instances to new clients and wait for the others; the exit code."""
    timeout_s = checked.option("--timeout", check_timeout_s, options.timeout)
    why = checked.option("--reason", check_reason, options.reason)
    instances = _instances(world, options.instances)
    reasons = {one.name: why for one in instances}
    for instance in instances:
        if not instance.front_door:
            what = "there is no front door: clients that come now run outside MPS, and root's come in all the same"
            output.say(f"mpsctl drain: {instance.name}: {what}", stream=sys.stderr)
    drained = lifecycle.drain(world, instances, timeout_s, options.terminate, why=reasons, refuse=options.refuse)
    if options.json:
        output.say_json({"instances": {found.instance: found.as_json(world.now_s()) for found in drained}})
    elif not drained:
        output.say("no instance is on this host: there is nothing to drain")
    code = 0
    for found in drained:
        if found.unknown:
            what = f"no new client gets in; who is still connected cannot be told: {found.unknown}"
            code = NotReady.exit_code
        elif found.left:
            what = f"no new client gets in, and after {timeout_s} s {lifecycle.told(found.left, world.now_s())}"
            code = code or 1
        else:
            if not options.json:
                name = found.instance
                output.say(f"{name}: drained since {found.since}; `mpsctl undrain {name}` lets clients in again")
            continue
        output.say(f"mpsctl drain: {found.instance}: {what}", stream=sys.stderr)
    return code


def undrain(world: World, options: argparse.Namespace) -> int:
    """Let clients in again; the exit code."""
    was_drained, changes = [], {}
    for instance in _instances(world, options.instances):
        if drains.read(world, instance.name) is not None:
            was_drained.append(instance.name)
        changes[instance.name] = lifecycle.undrain(world, instance.name)
        if not options.json:
            for change in changes[instance.name]:
                output.say(change)
            output.say(f"{instance.name}: {'no longer' if instance.name in was_drained else 'was not'} drained")
    if options.json:
        output.say_json({"was_drained": was_drained, "changes": changes})
    return 0


def _instances(world: World, names: Sequence[str]) -> list[Instance]:
    """The named instances, or all that have a file; nothing is done where one of them is not known."""
    return [last_good.load(world, name) for name in names or configuration.names(world)]
