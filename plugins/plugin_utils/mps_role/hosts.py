"""Many hosts on one line."""

from __future__ import annotations

import re
from typing import Any, Hashable, Iterable, Mapping, Sequence, TypeVar

_SHOWN = 12
T = TypeVar("T", bound=Hashable)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key: gpu-2 before gpu-10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdigit() else (1, 0, part) for part in parts if part]


def span(hosts: Iterable[str], among: Iterable[str], shown: int = _SHOWN) -> str:
    """Hosts by their names, with their number where they are several.

    Three and more that follow each other are written as the first and the last. They do so where nobody of ``among``,
    the hosts of the run, stands between them: a name that is not written and no part of a row is none of them.
    """
    mine = sorted(set(hosts), key=natural)
    everybody = sorted({*among, *mine}, key=natural)
    places = {name: place for place, name in enumerate(everybody)}
    rows: list[list[str]] = []
    for name in mine:
        if rows and places[name] == places[rows[-1][-1]] + 1:
            rows[-1].append(name)
        else:
            rows.append([name])
    parts = [part for row in rows for part in ([f"{row[0]} … {row[-1]}"] if len(row) > 2 else row)]
    more = f" and {len(parts) - shown} more" if len(parts) > shown else ""
    return f"{', '.join(parts[:shown])}{more}" + (f" ({len(mine)} hosts)" if len(mine) > 1 else "")


def alike(values: Mapping[str, T]) -> list[tuple[T, list[str]]]:
    """The values of hosts, each once with the hosts that have it, in the order of the first of these."""
    found: dict[T, list[str]] = {}
    for host in sorted(values, key=natural):
        found.setdefault(values[host], []).append(host)
    return list(found.items())


def listed(names: Sequence[Any], shown: int = 8) -> str:
    """Instances or GPUs: ``0``, ``0 and 1``, ``0 to 7``."""
    texts = [str(name) for name in names]
    numbers = [int(text) for text in texts if text.isdigit()]
    if len(numbers) == len(texts) > 3 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{texts[0]} to {texts[-1]}"
    if len(texts) > shown:
        return f"{', '.join(texts[:shown])} and {len(texts) - shown} more"
    return " and ".join([*([", ".join(texts[:-1])] if len(texts) > 1 else []), *texts[-1:]])
