"""Facts as plain data for JSON: the same fields under the same names, with foreign text escaped and cut."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Mapping

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import line, shown
from mpsctl.model.gpu import Device
from mpsctl.model.quantity import Quantity
from mpsctl.observe.door_facts import Place, UnitFacts
from mpsctl.observe.facts import Answer, GpuFacts, InstanceFacts, Value
from mpsctl.observe.process_facts import GpuProcess

_LEFT_OUT: Mapping[type, tuple[str, ...]] = {InstanceFacts: ("log",), GpuProcess: ("variables",)}
"""A journal has no bound, and others' environments are not ours to spread: what matters of them stands in other facts
and in checks."""
_MOST = 100
"""How many characters of a foreign text stand in a fact: a host may have hundreds of clients, with a few texts each."""
_ADDED: Mapping[type, tuple[str, ...]] = {
    InstanceFacts: ("active", "serves", "clients_unknown", "unresponsive"),
    UnitFacts: ("active",),
    Place: ("has",),
    Answer: ("holders",),
    Device: ("uuid", "memory_mib"),
    Value: ("in_force",),
}
"""Properties that stand beside the fields."""


def instance(found: InstanceFacts, gpus: GpuFacts) -> dict[str, Any]:
    """The facts of an instance; its devices in the order of their ordinals, each with how full and how busy it is."""
    data: dict[str, Any] = of(found)
    for device, one in zip(found.devices, data["devices"]):
        load = gpus.load(device.uuid)
        one.update(used_mib=load.used_mib, free_mib=load.free_mib, utilisation_percent=load.utilisation_percent)
    return data


def of(value: object) -> Any:
    """A value as plain data. A dataclass becomes an object of its fields; what has no form of its own becomes text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Quantity):
        return str(value)
    if isinstance(value, BadValue):
        return {"found": shown(value.found), "expected": shown(value.expected), "remedy": shown(value.remedy)}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        names = [one.name for one in fields(value) if one.name not in _LEFT_OUT.get(kind, ())]
        return {name: of(getattr(value, name)) for name in (*names, *_ADDED.get(kind, ()))}
    if isinstance(value, Mapping):
        return {shown(str(key), _MOST): of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [of(one) for one in value]
    return line(str(value)) if isinstance(value, Path) else shown(str(value), _MOST)
