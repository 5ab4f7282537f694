"""The verb version."""

from __future__ import annotations

import argparse
import sys

from mpsctl import __version__
from mpsctl.adapters import hardware
from mpsctl.cli import output
from mpsctl.model import build
from mpsctl.store.world import World


def version(world: World, options: argparse.Namespace) -> int:
    """Show the version of this program, its build, and of what it talks to."""
    del world
    known = {
        "version": __version__,
        "build": build.ID,
        "python": sys.version.split()[0],
        "driver": hardware.driver_version(),
        "simulated": hardware.simulated(),
        "control_daemon": str(hardware.binary(hardware.CONTROL_DAEMON) or "") or None,
    }
    if options.json:
        output.say_json(known)
        return 0
    output.say(f"mpsctl {known['version']} (build {known['build']}, Python {known['python']})")
    output.say(f"driver: {known['driver'] or 'not loaded'}{' (simulated)' if known['simulated'] else ''}")
    output.say(f"control daemon: {known['control_daemon'] or 'not installed'}")
    return 0
