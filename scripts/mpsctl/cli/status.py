"""The verb status."""

from __future__ import annotations

import argparse

from mpsctl.cli import output
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World


def status(world: World, options: argparse.Namespace) -> int:
    """Show the named instances, or all that have a file.

    :raises BadValue: if one that is named has no file.
    """
    begun = Asked(world, options.instances)
    # These are read while NVML and systemd are at work.
    from mpsctl.checks.judgement import STATUS
    from mpsctl.checks.report import report
    from mpsctl.observe.host import look
    from mpsctl.store import configuration

    configuration.require(world, options.instances)
    found = report(look(world, options.instances or None, begun=begun), STATUS)
    if options.json:
        output.say_json(found.as_json())
    else:
        from mpsctl.cli import instances

        instances.show(found)
    return found.exit_code
