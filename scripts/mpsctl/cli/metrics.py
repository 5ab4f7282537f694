"""The verb metrics: what a look counted, in Prometheus' text format."""

from __future__ import annotations

import argparse

from mpsctl.cli import output
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World

_FORMAT = 1


def metrics(world: World, options: argparse.Namespace) -> int:
    """Look as health does, change nothing, print what was counted. What is amiss stands in it, and is no error."""
    began_s = world.now_s()
    begun = Asked(world)
    from mpsctl.checks.judgement import HEALTH  # read while NVML and systemd are at work
    from mpsctl.checks.report import report
    from mpsctl.metrics import of_host
    from mpsctl.observe.host import look

    found = report(look(world, isolated=True, begun=begun), HEALTH)
    samples = of_host.samples(found, world.wall_s(), world.now_s() - began_s, options.by)
    if options.json:
        each = [{"name": one.name, "labels": dict(one.labels), "value": one.value} for one in samples]
        output.say_json({"format": _FORMAT, "samples": each})
    else:
        output.say_lines(samples.text().rstrip("\n"))
    return 0
