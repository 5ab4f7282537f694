"""What a reader wants to see of an instance at a glance: its GPUs' memory, its limits, its clients. None: not told."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

_MEMORY, _THREADS = "memory limit", "active thread percentage"
"""The kinds of values in the facts of `mpsctl verify --json`."""
_ALL = "clients"
"""The place that all clients of an instance share there."""


def of(one: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """The glance at an instance of an answer of `mpsctl verify`; None where the answer has no such facts.

    A host says what it likes: an answer of another shape is one without facts.
    """
    try:
        return _of(one["facts"])
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _of(facts: Mapping[str, Any]) -> dict[str, Any]:
    desired = facts["desired"] or {}
    places = [place for place in (facts["room"] or {}).get("places", ()) if place["name"] == _ALL]
    clients = None if facts["clients_unknown"] else sum(len(server["clients"]) for server in facts["servers"])
    threads = desired.get("thread_percentage")
    return {
        "devices": [_device(device) for device in facts["devices"]],
        "clients": clients,
        "places": int(places[0]["most"]) if places else None,
        "waiting": len(facts["waiting"]),
        "limit": _limit(facts["values"], desired),
        "limit_in_force": _in_force(facts["values"], _MEMORY),
        "threads_percent": None if threads is None else float(threads),
        "threads_in_force": _in_force(facts["values"], _THREADS),
    }


def _device(device: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gpu": _number(device["gpu"]["index"]),
        "name": str((device["mig"] or device["gpu"])["name"])[:100],
        "used_mib": _number(device["used_mib"]),
        "memory_mib": _number(device["memory_mib"]),
        "utilisation_percent": _number(device.get("utilisation_percent")),
    }


def _number(value: object) -> Optional[int]:
    return None if value is None else int(str(value))


def _limit(values: Sequence[Mapping[str, Any]], desired: Mapping[str, Any]) -> Optional[str]:
    """In MiB where it is told so: each device's, once where they are alike."""
    told = [one["desired"]["desired_bytes"] for one in values if one["desired"]["kind"] == _MEMORY]
    if told and None not in told:
        return ", ".join(dict.fromkeys(f"{int(size) >> 20} MiB" for size in told))
    limit = desired.get("limit")
    return None if limit is None else str(limit)[:100]


def _in_force(values: Sequence[Mapping[str, Any]], kind: str) -> Optional[bool]:
    found = [bool(one["in_force"]) for one in values if one["desired"]["kind"] == kind]
    return all(found) if found else None
