"""One look of top as lines of text, as many and as wide as a screen takes. What is not told is a question mark."""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.checks import words
from mpsctl.cli import render
from mpsctl.cli.output import colour
from mpsctl.cli.top_view import ClientRow, DeviceRow, InstanceRow, Limit, View
from mpsctl.model.finding import OK
from mpsctl.model.foreign import line, shown

Line = tuple[str, ...]
"""The parts of a line, as ``output.say`` takes them."""
_WIDE = 110
"""From here on there is room for what a GPU is called and how busy it is."""
_LEAST_ROWS = 4
_LONGEST = 200
_HEAD = ("GPU", "INSTANCE", "STATE", "CLIENTS", "WAIT", "USED/TOTAL MIB", "LIMIT", "IN FORCE", "THREADS")
_WIDE_HEAD = (*_HEAD, "BUSY", "DEVICE")
_TO_LEFT = {"INSTANCE", "STATE", "DEVICE", "USER", "COMMAND"}
_CLIENTS = ("PID", "USER", "INSTANCE", "MIB", "LIMIT MIB", "COMMAND")


def lines(view: View, columns: Optional[int] = None, rows: Optional[int] = None, note: str = "") -> list[Line]:
    """At most ``rows`` lines, each for a screen of ``columns``; without either all there is. ``note`` is added to the
    first line."""
    head = _head(view, note)
    table = _table(view, columns is None or columns >= _WIDE)
    amiss = _amiss(view)
    waiting: list[Line] = [(f"waits for {shown(name)}: {what}",) for name, what in view.waiting]
    clients = _clients(view)
    if rows is not None:
        table = _cut(table, max(_LEAST_ROWS, rows * 2 // 5))
        amiss, waiting = _cut(amiss, max(2, rows // 8)), _cut(waiting, max(2, rows // 8))
        clients = _cut(clients, max(0, rows - len(head) - len(table) - len(amiss) - len(waiting) - 1))
    found = [*head, *table, *amiss, *waiting, *([("",), *clients] if clients else [])]
    return found if rows is None else found[:rows]


def _head(view: View, note: str) -> list[Line]:
    found: list[Line] = [
        (f"{shown(view.host, 40)}  {view.looked_at}  ", render.word(view.worst), f"  {note}" if note else "")
    ]
    if view.simulated:
        found.append((colour(words.SIMULATED, "33"),))
    if view.word_of_host != OK:
        found.append((colour("!", render.COLOURS[view.word_of_host]), f" host: {view.amiss}"))
    if view.gpus_unread:
        found.append((colour("?", "35"), f" GPUs: {view.gpus_unread}"))
    return found


def _amiss(view: View) -> list[Line]:
    return [
        (colour("!", render.COLOURS[one.word]), f" {shown(one.name)}: {one.amiss}")
        for one in view.instances
        if one.amiss
    ]


def _table(view: View, wide: bool) -> list[Line]:
    """A row for each device of each instance, the instance named in its first; then what no instance has."""
    body: list[tuple[list[str], Optional[str]]] = []
    longest = 24 if wide else 14
    for one in view.instances:
        for number, device in enumerate(one.devices or (None,)):
            body.append((_row(one, device, number == 0, longest), one.word if number == 0 else None))
    for device in view.free:
        body.append(([_gpu(device), "-", "-", "-", "-", _used(device), "-", "-", "-", *_more(device)], None))
    head = _WIDE_HEAD if wide else _HEAD
    if not body:
        return [("no instance has a file on this host",)]
    return _aligned(head, [cells[: len(head)] for cells, _ in body], [word for _, word in body])


def _row(one: InstanceRow, device: Optional[DeviceRow], first: bool, longest: int) -> list[str]:
    threads = _limit(one.threads)
    of_instance = [
        _short(one.name, longest),
        one.word if one.word == OK else one.word.upper(),
        _count(one),
        str(one.waiting),
    ]
    if device is None:
        return ["?", *of_instance, "?", "?", "?", threads, "?", "?"]
    limit = device.limit or Limit("", None)
    cells = [*(of_instance if first else [""] * 4), _used(device), limit.desired.replace(" MiB", "M") or "-"]
    return [_gpu(device), *cells, _in_force(limit), threads if first else "", *_more(device)]


def _count(one: InstanceRow) -> str:
    count = "?" if one.clients is None else str(one.clients)
    return count if one.places is None else f"{count}/{one.places}"


def _gpu(device: DeviceRow) -> str:
    return "?" if device.gpu is None else f"{device.gpu}{'m' if device.mig else ''}"


def _used(device: DeviceRow) -> str:
    return "/".join("?" if mib is None else str(mib) for mib in (device.used_mib, device.memory_mib))


def _more(device: DeviceRow) -> list[str]:
    busy = "?" if device.utilisation_percent is None else f"{device.utilisation_percent}%"
    return [busy, _short(device.name, 40)]


def _in_force(limit: Limit) -> str:
    if limit.in_force is None:
        return "?"
    return limit.in_force.replace(" MiB", "M") or "-"


def _limit(limit: Limit) -> str:
    """A percentage, beside what is in force where that is something else."""
    desired = limit.desired.replace(" %", "%") or "-"
    return desired if limit.holds else f"{desired}, is {_in_force(limit)}"


def _clients(view: View) -> list[Line]:
    rows = [_client(one) for one in view.clients]
    return _aligned(_CLIENTS, rows, [None] * len(rows)) if rows else []


def _client(one: ClientRow) -> list[str]:
    limits = ",".join("?" if mib is None else str(mib) for mib in one.limits_mib) or "?"
    command = shown(one.command, _LONGEST) or "?"
    return [
        str(one.pid),
        _short(one.user, 12),
        _short(one.instance, 14),
        "?" if one.memory_mib is None else str(one.memory_mib),
        "NONE" if one.unlimited else limits,
        f"[{shown(one.container[:12])}] {command}" if one.container else command,
    ]


def _short(text: str, most: int) -> str:
    text = line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], levels: Sequence[Optional[str]]) -> list[Line]:
    """The head and the rows in columns one blank apart; the word for an instance in its colour."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    found: list[Line] = []
    for cells, level in zip((head, *rows), (None, *levels)):
        parts = []
        for name, cell, width in zip(head, cells, widths):
            text = str(cell).ljust(width) if name in _TO_LEFT else str(cell).rjust(width)
            parts += [colour(text, render.COLOURS[level]) if name == "STATE" and level else text, " "]
        found.append(tuple(parts[:-1]))
    return found


def _cut(some: list[Line], most: int) -> list[Line]:
    """At most so many lines; the last says how many more there are."""
    if len(some) <= most:
        return some
    return [*some[: max(0, most - 1)], (f"… and {len(some) - max(0, most - 1)} more",)][:most]
