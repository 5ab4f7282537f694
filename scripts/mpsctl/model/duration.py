"""How long something lasted, for people."""

from __future__ import annotations

from typing import Optional

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def text(seconds: Optional[float]) -> str:
    """The two greatest units of a time, as ``3 h 5 min``; ``not told`` for None."""
    if seconds is None:
        return "not told"
    left = int(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"
