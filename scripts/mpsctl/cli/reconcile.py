"""The verb reconcile."""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path
from typing import Optional

from mpsctl.cli import output
from mpsctl.model import build
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.store.world import World

INPUT_S = 60
"""How long the sender of a request may be silent: the connection may be dead."""


def reconcile(world: World, options: argparse.Namespace) -> int:
    """Bring the host into the state that the request on standard input asks for; 1 where that was not brought about."""
    from mpsctl.converge import reconcile
    from mpsctl.converge.request import FORMAT, Request, parse

    try:
        text = _request()
    except ValueError as error:
        raise BadValue(f"no text ({error})", "a request on standard input", "see docs/reconcile.md") from None
    wanted = parse(text)
    if isinstance(wanted, dict) and wanted.get("build") not in (None, build.ID):
        # The transport then sends the program it wants and asks that one.
        output.say_json({"format": FORMAT, "program_differs": True, "build": build.ID})
        return 0
    request = Request.from_json(wanted)
    answer = reconcile.reconcile(world, request, options.check, _own_file())
    output.say_json({"program_differs": False, **answer.as_json()})
    withheld = answer.pending and not options.check
    return 1 if answer.error or answer.refused or answer.missing or withheld else 0


def _request() -> str:
    """All of standard input.

    :raises NotReady: if nothing comes for INPUT_S, and it does not end either.
    """
    if sys.stdin is None:
        return "{}"
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # no file of the system's
        return sys.stdin.read()
    data = bytearray()
    while True:
        if not select.select([descriptor], [], [], INPUT_S)[0]:
            raise NotReady(f"found {len(data)} bytes of a request and then nothing for {INPUT_S} s; send it again")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return data.decode("utf-8", "surrogateescape")
        data += chunk


def _own_file() -> Optional[Path]:
    """The one file this program runs from, or None when it runs from its sources."""
    path = Path(sys.argv[0])
    return path if path.is_file() and path.suffix != ".py" else None
