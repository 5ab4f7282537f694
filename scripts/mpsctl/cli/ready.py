"""The verb ready."""

from __future__ import annotations

import argparse
import sys

from mpsctl.adapters import procfs
from mpsctl.checks import ready as judging
from mpsctl.checks import words
from mpsctl.cli import checked, named, output
from mpsctl.model.checked_values import check_timeout_s
from mpsctl.model.errors import NotReady
from mpsctl.model.foreign import shown
from mpsctl.store.world import World

_AGAIN_S = 0.5


def ready(world: World, options: argparse.Namespace) -> int:
    """Say whether a client of this user would come in now, at the latest within the time that is given; 0 if so.

    :raises BadValue: as ``named.instance``, or if the instance's file is refused.
    """
    wait_s = 0 if options.wait is None else checked.option("--wait", check_timeout_s, options.wait)
    name = named.instance(world, options)
    end_s = world.now_s() + wait_s
    found = judging.of_caller(world, name)
    while found.why_not is not None and world.now_s() < end_s:
        world.sleep_s(min(_AGAIN_S, max(0.0, end_s - world.now_s())))
        found = judging.of_caller(world, name)
    who = words.who(procfs.user(found.uid), found.uid)
    code = 0 if found.why_not is None else NotReady.exit_code
    if options.json:
        output.say_json({**found.as_json(), "exit_code": code})
    elif found.why_not is None:
        nothing = "by what this user is told, " if found.untold else ""
        output.say(f"{shown(name)}: {nothing}a client of {who} would come in now")
    if found.why_not is not None:
        output.say(f"mpsctl ready: {shown(name)}: not ready for {who}: {found.why_not}", stream=sys.stderr)
    elif found.untold:
        told = "; ".join(found.untold)
        output.say(f"mpsctl ready: {shown(name)}: not told to {who}: {told}", stream=sys.stderr)
    return code
