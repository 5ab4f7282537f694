"""What verify found, for people and for monitoring."""

from __future__ import annotations

import argparse
from typing import Optional, Sequence

from mpsctl.checks import verify as proofs
from mpsctl.checks.verify import InstanceLook, Report
from mpsctl.cli import render
from mpsctl.cli.output import colour, say
from mpsctl.model import finding
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN, Check
from mpsctl.store.world import World

_STATUS = {PASS: "OK", WARN: "WARNING", FAIL: "CRITICAL", CANNOT_TELL: "UNKNOWN"}
_COLOURS = {PASS: "32", WARN: "33", FAIL: "31", CANNOT_TELL: "35"}


_PROBE_TIMEOUT_S = 20.0


def of(world: World, options: argparse.Namespace) -> Report:
    """The report that was asked for.

    :raises BadValue: for options that only make sense together.
    """
    if options.allocate and not options.probe_client:
        raise BadValue("--allocate alone", "it with --probe-client, whose client allocates", "add --probe-client")
    if not options.probe_client:
        return proofs.verify(world, options.instances)
    from mpsctl.checks import probe_client

    def send(look: InstanceLook) -> list[Check]:
        return probe_client.look(world, look.instance, options.allocate, _PROBE_TIMEOUT_S)

    timeout_s = proofs.INSTANCE_TIMEOUT_S + 2 * _PROBE_TIMEOUT_S
    return proofs.verify(world, options.instances, send, instance_timeout_s=timeout_s)


def show(report: Report, every: bool) -> None:
    """The status line that monitoring reads, then what did not pass, with what was expected and what to do."""
    say(colour(status_line(report), _COLOURS[report.worst]))
    if report.simulated:
        say(colour(render.SIMULATED, "33"))
    _section("host", report.host, every)
    for name, checks in report.instances.items():
        _section(f"instance {name}", checks, every)


def status_line(report: Report) -> str:
    status = f"MPS {_STATUS[report.worst]}: "
    amiss = [(name, one) for name, one in report.every if one.level == report.worst]
    if report.worst == PASS:
        count = len(report.instances)
        return f"{status}{count} instance{'' if count == 1 else 's'}, {len(amiss)} checks passed"
    name, first = amiss[0]
    where = "host" if name is None else f"instance {name}"
    # What cannot be told is most often a consequence of what is amiss, and counts where there is nothing else.
    known = sum(one.level in (FAIL, WARN) for _, one in report.every)
    more = (known or len(amiss)) - 1
    # A bar would begin the performance data of a monitoring plugin.
    found = first.found.replace("|", "/")
    return f"{status}{where}: {first.name}: {found}" + (f"; {more} more did not pass" if more else "")


def _section(title: str, checks: Sequence[Check], every: bool) -> None:
    worst = finding.worst(one.level for one in checks)
    passed = sum(one.level == PASS for one in checks)
    say(f"{title}: ", colour(worst, _COLOURS[worst]), f", {passed} of {len(checks)} checks passed")
    told: set[str] = set()
    for one in checks:
        if one.level == PASS:
            _passed(one, every)
        elif one.level != CANNOT_TELL or one.remedy or one.evidence:
            _amiss(one, one.name)
        elif one.found not in told:
            # What a missing daemon or driver keeps from being looked at is one line, not twenty.
            told.add(one.found)
            same = [other.name for other in checks if (other.level, other.found) == (CANNOT_TELL, one.found)]
            _amiss(one, ", ".join(same))


def _passed(one: Check, every: bool) -> None:
    if every:
        say("  ", colour("pass", _COLOURS[PASS]), f" {one.name}: {one.found}")
    elif one.evidence:
        say(f"  note {one.name}: {one.found}")
    if every or one.evidence:
        _evidence(one)


def _amiss(one: Check, names: str) -> None:
    say("  ", colour(one.level, _COLOURS[one.level]), f" {names}: {one.found}")
    _line("expected", one.expected)
    _line("do", one.remedy)
    if one.evidence and (len(one.evidence) > 1 or one.evidence[0] != one.found):
        _evidence(one)


def _evidence(one: Check) -> None:
    for line in one.evidence:
        say(f"      {line}")


def _line(word: str, text: Optional[str]) -> None:
    if text:
        say(f"    {word}: {text}")
