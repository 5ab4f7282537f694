"""`mpsctl front-door`: the service behind an instance's socket.

Everything that it needs is imported here: the program may be replaced while it runs.
"""

from __future__ import annotations

import argparse

from mpsctl.front_door import service
from mpsctl.store.world import World


def front_door(world: World, options: argparse.Namespace) -> int:
    """Serve the clients of an instance for as long as some come: 0."""
    service.run(world, options.instance)
    return 0
