"""The verb env."""

from __future__ import annotations

import argparse
import sys

from mpsctl.checks import door_word
from mpsctl.cli import named, output
from mpsctl.model import container_words
from mpsctl.model.foreign import pasted, shown
from mpsctl.observe import client_environment
from mpsctl.store import admission
from mpsctl.store.world import World


def env(world: World, options: argparse.Namespace) -> int:
    """Show what a client of an instance must export. What a client would meet now goes to standard error, where it
    would not come in."""
    name = named.instance(world, options)
    kind = "json" if options.json else options.format
    if kind in container_words.FORMATS:
        text = client_environment.for_container(world, name, kind)
    else:
        text = client_environment.render(client_environment.of(world, name), kind)
    if options.hints:
        from mpsctl.cli import fitting

        text = fitting.with_hints(world, name, kind, text)
    output.say_lines(text)
    meets = door_word.closed(admission.read(world.places, name))
    if meets:
        see = f"see `mpsctl status {pasted(name)}`"
        output.say(f"mpsctl env: instance {shown(name)} lets no client in: {meets}; {see}", stream=sys.stderr)
    return 0
