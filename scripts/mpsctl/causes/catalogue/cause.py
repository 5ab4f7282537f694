"""The form of a cause."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """What is the matter, and what to do. ``INSTANCE`` in a remedy stands for the instance's name."""

    cause: str
    remedy: str
