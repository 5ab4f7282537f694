"""The verb evict."""

from __future__ import annotations

import argparse
import os
import re
import sys

from mpsctl.adapters import procfs
from mpsctl.checks import words
from mpsctl.cli import checked, output
from mpsctl.lifecycle import evict as lifecycle
from mpsctl.lifecycle.evict import Evicted
from mpsctl.lifecycle.whose_processes import OfContainer, OfProcess, OfUnit, Target
from mpsctl.model.checked_values import check_timeout_s
from mpsctl.model.client_unit import check_unit
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.model.foreign import quoted, shown
from mpsctl.store.world import World

_CONTAINER = r"[A-Za-z0-9][A-Za-z0-9_.-]{11,127}"


def evict(world: World, options: argparse.Namespace) -> int:
    """Take the clients of a unit, a container or a process off their GPUs, and with ``--end`` end its processes; 0 if
    none is connected any more.

    :raises NotReady: for others than root.
    :raises BadValue: for what names no unit, container or process.
    """
    bound_s = checked.option("--timeout", check_timeout_s, options.timeout)
    target = _target(options)
    if os.geteuid() != 0:
        raise NotReady("the daemons take clients off for root alone; run it as root")
    found = lifecycle.evict(world, target, bound_s, options.end)
    code = _code(found)
    if options.json:
        output.say_json({**found.as_json(), "exit_code": code})
    else:
        _show(found)
    for line in _amiss(found, bound_s):
        output.say(f"mpsctl evict: {line}", stream=sys.stderr)
    return code


def _code(found: Evicted) -> int:
    if found.left or found.alive:
        return NotInForce.exit_code
    if found.unknown:
        return NotReady.exit_code
    return 0 if found.settled else NotInForce.exit_code


def _target(options: argparse.Namespace) -> Target:
    if options.user is not None and options.unit is None:
        raise BadValue("--user without --unit", "both", "name the unit of the user's manager")
    if options.unit is not None:
        unit = checked.option("--unit", _unit, options.unit)
        return OfUnit(unit, None if options.user is None else _uid(options.user))
    if options.container is not None:
        if not re.fullmatch(_CONTAINER, options.container):
            raise BadValue(
                f"--container {quoted(options.container)}", "its id, 12 letters at least", "take it from the engine"
            )
        return OfContainer(options.container)
    if not re.fullmatch(r"[1-9][0-9]{0,9}", options.pid) or int(options.pid) == 1:
        raise BadValue(f"--pid {quoted(options.pid)}", "a process id above 1", "see `mpsctl clients`")
    return OfProcess(int(options.pid))


def _unit(value: object) -> str:
    unit = check_unit(value)
    if "@." in unit:
        one = unit.replace("@.", "@1.")
        raise BadValue(quoted(unit), "a unit that runs, and no template", f"name each by itself, for example {one}")
    return unit


def _uid(text: str) -> int:
    uid = procfs.uid_of(text)
    if uid is None:
        raise BadValue(f"--user {quoted(text)}", "a user of this host", "name it, or write its number")
    return uid


def _show(found: Evicted) -> None:
    if not (found.taken_off or found.left or (found.unknown and found.runs)):
        nobody = "" if found.runs else "no process of it runs, so "
        output.say(f"{shown(str(found.target))}: {nobody}no client is connected")
    for name, one in found.taken_off:
        output.say(f"{shown(name)}: {words.client(one.client)}: {'; '.join(one.steps)}")
    if found.ended:
        output.say(f"{shown(str(found.target))}: ended {words.number(len(found.ended), 'process')}")


def _amiss(found: Evicted, bound_s: int) -> list[str]:
    lines = [f"{shown(name)}: {words.client(one)} is connected still, after {bound_s} s" for name, one in found.left]
    lines += [f"{shown(name)}: who is connected cannot be told: {why}" for name, why in found.unknown.items()]
    if not (found.settled or found.left or found.unknown):
        lines.append(f"after {bound_s} s there were new clients still: its processes start others")
    if found.alive:
        lines.append(f"still there after SIGKILL: pid {', '.join(map(str, found.alive))}")
    return lines
