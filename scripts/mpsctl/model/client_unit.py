"""Units of systemd whose processes are clients of an instance: their names, and what is desired of each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from mpsctl.model import checked_values as checked
from mpsctl.model import gpu as gpus
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted, shown, written
from mpsctl.model.pattern import Pattern
from mpsctl.model.quantity import Quantity

SYSTEM, USER = "system", "user"
END, KEEP = "end", "keep"
_KEYS = (
    *("unit", "instance", "gpu", "scope", "memory_limit", "active_thread_percentage"),
    *("when_mps_stops", "end_within_s"),
)
_UNIT = Pattern(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]{0,239}\.(?:service|scope|slice)")
_OURS = ("mps-control@", "mps-front-door@", "mps-health.")
_MOST = 500
_EXAMPLE = "write for example {unit: api.service, instance: '0'}"
_LEAST_SECONDS = 5
"""Three of these seconds are kept for SIGKILL."""


@dataclass(frozen=True)
class ClientUnit:
    """A unit that is wired to an instance, named by itself or by a ``gpu`` of it. ``scope`` is whose manager has the
    unit, SYSTEM or USER (every user's). ``memory`` and ``thread_percentage`` are what each of its processes has, None:
    what the instance gives. ``when_mps_stops`` is what becomes of a system's unit then: END, and started again with
    MPS, or KEEP. With ``end_within_s`` a stop ends its processes one after the other within so many seconds, new ones
    included."""

    unit: str
    instance: Optional[str] = None
    gpu: Optional[str] = None
    scope: str = SYSTEM
    memory: Optional[Quantity] = None
    thread_percentage: Optional[float] = None
    when_mps_stops: str = END
    end_within_s: Optional[int] = None

    @property
    def is_template(self) -> bool:
        return "@." in self.unit

    @property
    def place(self) -> str:
        """It, for people: its entry in the variable."""
        return f"mps_clients[{shown(self.unit)}]"


def check_unit(value: object) -> str:
    """The whole name of a unit that can have processes.

    :raises BadValue: otherwise.
    """
    if not isinstance(value, str) or not _UNIT.fullmatch(value):
        raise BadValue(quoted(value), "the whole name of a unit", "write for example api.service")
    return value


def check_clients(value: object) -> tuple[ClientUnit, ...]:
    """The units of a list as the role's variable has it.

    :raises BadValue: if it is none, an entry is none, or one unit stands twice.
    """
    if not isinstance(value, list) or len(value) > _MOST:
        raise BadValue(quoted(value), f"a list of at most {_MOST} units", _EXAMPLE)
    found = tuple(_entry(entry) for entry in value)
    seen: set[tuple[str, str]] = set()
    for one in found:
        if (one.scope, one.unit) in seen:
            raise BadValue(f"{shown(one.unit)} twice", "each unit once in a scope", "remove one")
        seen.add((one.scope, one.unit))
    return found


def _entry(entry: Any) -> ClientUnit:
    if not isinstance(entry, Mapping) or "unit" not in entry:
        raise BadValue(quoted(entry), "a unit and its instance", _EXAMPLE)
    place = f"the unit {quoted(entry['unit'])}"
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(written(key), _KEYS, 1)
            remedy = f"did you mean {near[0]}?" if near else "remove it"
            raise BadValue(f"{quoted(key)} of {place}", f"one of {', '.join(_KEYS)}", remedy)
    try:
        return _checked(entry)
    except BadValue as error:
        raise BadValue(f"{error.found} (of {place})", error.expected, error.remedy) from None


def _checked(entry: Mapping[str, Any]) -> ClientUnit:
    unit = check_unit(entry["unit"])
    if not unit.endswith(".service") or unit.startswith(_OURS):
        raise BadValue(
            quoted(unit), "a service that is none of this project's own", "name the one that has the clients"
        )
    instance, gpu = _named(entry.get("instance")), _named(entry.get("gpu"))
    if (instance is None) == (gpu is None):
        both = "neither instance nor gpu" if gpu is None else "instance and gpu"
        raise BadValue(both, "one of them", "name the instance, or a GPU of it")
    percentage, end_s = entry.get("active_thread_percentage"), entry.get("end_within_s")
    scope = _one_of(entry, "scope", (SYSTEM, USER))
    found = ClientUnit(
        unit,
        None if instance is None else checked.check_name(instance),
        None if gpu is None else gpus.check_reference(gpu),
        scope,
        None if entry.get("memory_limit") is None else quantity.parse(entry["memory_limit"]),
        None if percentage is None else checked.check_thread_percentage(percentage),
        _one_of(entry, "when_mps_stops", (END, KEEP)),
        None if end_s is None else _end_s(end_s),
    )
    if scope == USER and (end_s is not None or entry.get("when_mps_stops") is not None):
        raise BadValue(
            "scope user with when_mps_stops or end_within_s",
            "neither there: a user's manager knows no unit of the system's, and may end no client through the daemon",
            "remove them",
        )
    return found


def _named(value: Any) -> Optional[str]:
    """A name or an index, which YAML makes a number of."""
    return None if value is None else written(value) if isinstance(value, (str, int)) else quoted(value)


def _one_of(entry: Mapping[str, Any], key: str, words: tuple[str, ...]) -> str:
    value = entry.get(key)
    if value is None:
        return words[0]
    if value not in words:
        raise BadValue(f"{key} {quoted(value)}", " or ".join(words), f"write for example {words[0]}")
    return str(value)


def _end_s(value: Any) -> int:
    seconds = checked.check_timeout_s(value)
    if seconds < _LEAST_SECONDS:
        raise BadValue(f"end_within_s {seconds}", f"at least {_LEAST_SECONDS} seconds", "write for example 30")
    return seconds
