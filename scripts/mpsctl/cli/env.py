"""The verb env."""

from __future__ import annotations

import argparse

from mpsctl.cli import output
from mpsctl.model import container_words
from mpsctl.observe import client_environment
from mpsctl.store.world import World


def env(world: World, options: argparse.Namespace) -> int:
    """Show what a client of an instance must export."""
    kind = "json" if options.json else options.format
    if kind in container_words.FORMATS:
        text = client_environment.for_container(world, options.instance, kind)
    else:
        text = client_environment.render(client_environment.of(world, options.instance), kind)
    if options.hints:
        from mpsctl.cli import fitting

        text = fitting.with_hints(world, options.instance, kind, text)
    output.say_lines(text)
    return 0
