"""What this program wrote down for itself, as JSON. A file that is damaged counts as none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpsctl.adapters import files
from mpsctl.model.errors import NoRight, Unreadable


def load(path: Path) -> Any:
    """What the file holds, or None where there is none, or what is there is no file, no JSON, or far too large.

    :raises NoRight: if this user may not read it: then there may be one.
    """
    try:
        return parsed(files.read_text(path) or "null")
    except NoRight:
        raise
    except (Unreadable, ValueError):
        return None


def parsed(text: str) -> Any:
    """:raises ValueError: if it is no JSON, or JSON that is nested without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
