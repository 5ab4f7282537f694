"""The verb reconcile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional

from mpsctl.cli import output
from mpsctl.model import build
from mpsctl.model.errors import BadValue
from mpsctl.store.world import World


def reconcile(world: World, options: argparse.Namespace) -> int:
    """Bring the host into the state that the request on standard input asks for; 1 where that was not brought about."""
    from mpsctl.converge import reconcile
    from mpsctl.converge.request import FORMAT, Request, parse

    try:
        text = sys.stdin.read() if sys.stdin is not None else "{}"
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


def _own_file() -> Optional[Path]:
    """The one file this program runs from, or None when it runs from its sources."""
    path = Path(sys.argv[0])
    return path if path.is_file() and path.suffix != ".py" else None
