"""What has to hold on a host after a run was interrupted, and after the whole run that follows.

Each function takes what interrupted_probe.py found, and yields what is a violation, as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional

GPUS = 2
IN, OUTSIDE, ENDED = "client", "outside-mps", "ended"
Found = dict[str, Any]


def shown(limit_mib: int) -> str:
    """As a daemon shows a limit."""
    return f"{limit_mib >> 10}G"


@dataclass(frozen=True)
class Expected:
    """Of a host on which a run was interrupted: the limits before and as desired by it (MiB), whether the run removes
    or installs, and whether it, or a reboot, may have ended clients."""

    limits_mib: tuple[int, int]
    may_be_outside: bool
    ends_clients: bool


def between(one: Found, expected: Expected) -> Iterator[str]:
    """Nothing is as nobody desired it without a word of it."""
    code, told = one["status"], set(one["unusable"])
    if not set(one["unserved"]) <= told or (told and code != 1):
        yield f"GPUs are exclusive, without a daemon, unnoticed: {one}"
    if not one["lock_is_free"] and not one["at_work"]:
        yield f"it is locked, and nothing is at work there: {one}"
    if one["partial_files"] and not one["remains_told"]:
        yield f"verify says nothing of {one['partial_files']}"
    if one["at_work"]:  # and may change it meanwhile
        return
    limits = [*map(shown, expected.limits_mib), ""]
    for number, (limit, outcome) in enumerate(zip(one["limits"], one["newcomers"])):
        name = str(number)
        if f"/etc/mps/{name}.conf" not in one["files"]:
            continue
        if limit not in limits:
            yield f"the limit of {name} is neither the old nor the new one: {limit}"
        if outcome != IN and not one["amiss"].get(name, []):
            yield f"a client of {name} met {outcome}, and status says well: {one}"
        if outcome == OUTSIDE and not expected.may_be_outside:
            yield f"a client of {name} was outside MPS: {one}"
    for name, state in one["clients"].items():
        if state.startswith(ENDED) and not expected.ends_clients:
            yield f"the client of {name} {state}"


def files(old: Found, one: Found, new: Optional[Found]) -> Iterator[str]:
    """Every file is the old or the new one. ``new`` is None where the files were on their way out."""
    before, after = old["files"], new["files"] if new else {}
    for path in {*before, *one["files"], *after}:
        if one["files"].get(path) not in (before.get(path), after.get(path)):
            yield f"{path} was neither the old nor the new file"


def desired(one: Found, limit_mib: int) -> Iterator[str]:
    amiss = {name: lines for name, every in one["amiss"].items() for lines in [_worse(every)] if lines}
    wrong = {
        "status": amiss or None,
        "limits": one["limits"] if one["limits"] != [shown(limit_mib)] * GPUS else None,
        "modes": one["modes"] if set(one["modes"].values()) != {"exclusive_process"} else None,
        "served": one["served"] if one["served"] != sorted(one["modes"]) else None,
        "clients that come": one["newcomers"] if one["newcomers"] != [IN] * GPUS else None,
        "halves of files": one["partial_files"] or None,
        "enabled": one["enabled"] if len(one["enabled"]) != 2 * GPUS + 1 else None,
        "older units loaded": one["stale"] if one["stale"] != "no" else None,
        "runs that go on": one["at_work"] or None,
    }
    return _told(wrong)


def removed(one: Found) -> Iterator[str]:
    wrong = {
        "files": one["files"] or None,
        "halves of files": one["partial_files"] or None,
        "directories": one["directories"] or None,
        "enabled": one["enabled"] or None,
        "units": one["units"] or None,
        "daemons": one["served"] or None,
        "modes": one["modes"] if set(one["modes"].values()) != {"default"} else None,
        "runs that go on": one["at_work"] or None,
    }
    return _told(wrong)


def _worse(every: list[list[str]]) -> list[list[str]]:
    """What is more than a warning."""
    return [found for found in every if found[0] != "warning"]


def _told(wrong: dict[str, Any]) -> Iterator[str]:
    return (f"{what}: {found}" for what, found in wrong.items() if found is not None)
