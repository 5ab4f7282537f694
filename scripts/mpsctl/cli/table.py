"""A table of text under its head."""

from __future__ import annotations

from typing import Optional, Sequence


def lines(head: Sequence[str], rows: Sequence[Sequence[str]], left: Optional[int] = None) -> list[str]:
    """A line for the head and each row; nothing where there are no rows.

    The first ``left`` columns stand to the left, the others to the right; None: all to the left.
    """
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    last = len(head) if left is None else left
    return [
        "  ".join(
            cell.ljust(width) if column < last else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in (head, *rows)
    ]
