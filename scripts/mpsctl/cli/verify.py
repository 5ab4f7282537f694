"""The verb verify: what was judged, check by check, for people and for monitoring."""

from __future__ import annotations

import argparse
from typing import Sequence

from mpsctl.checks import words
from mpsctl.checks.judgement import VERIFY
from mpsctl.checks.report import Report, report
from mpsctl.cli import output, render
from mpsctl.cli.output import colour, say
from mpsctl.metrics import of_host
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check
from mpsctl.observe.host import look
from mpsctl.store.world import World


def verify(world: World, options: argparse.Namespace) -> int:
    """Judge the host and the named instances, or all that have a file.

    :raises BadValue: for options that only make sense together.
    """
    if options.allocate and not options.probe:
        raise BadValue("--allocate alone", "it with --probe-client, whose client allocates", "add --probe-client")
    host = look(world, options.instances or None, isolated=True, deep=True)
    found = report(host, VERIFY)
    if options.probe:
        from mpsctl.checks import probe_client

        for name, checks in probe_client.look(world, host, options.allocate).items():
            found.instances[name] += checks
    found = found.chosen(options.only, options.ignore)
    if options.json:
        output.say_json(found.as_json())
    else:
        _show(found, options.all)
    return found.exit_code


def _show(found: Report, every: bool) -> None:
    """The status line that monitoring reads, then what is not ok, with what is expected and what to do."""
    say(colour(status_line(found), render.COLOURS[found.worst]), f" | {performance_data(found)}")
    if found.facts.simulated:
        say(colour(words.SIMULATED, "33"))
    _section("host", found.word_of_host, found.host, every)
    for name, checks in found.instances.items():
        _section(f"instance {name}", found.word(name), checks, every)


def status_line(found: Report) -> str:
    """One line as monitoring plugins print it: the worst word, and the first of what it stands on."""
    begin = f"MPS {found.worst.upper()}: "
    worst = [(name, one) for name, one in found.every if one.level == found.worst]
    if found.worst == OK:
        return f"{begin}{words.number(len(found.instances), 'instance')}, {len(worst)} checks passed"
    name, first = worst[0]
    where = "host" if name is None else f"instance {name}"
    # What is not known is most often a consequence of what is amiss, and counts where there is nothing else.
    amiss = sum(one.amiss for _, one in found.every)
    more = (amiss or len(worst)) - 1
    # A bar would begin the performance data of a monitoring plugin.
    text = first.found.replace("|", "/")
    return f"{begin}{where}: {first.name}: {text}" + (f"; {more} more did not pass" if more else "")


def performance_data(found: Report) -> str:
    """Numbers as monitoring plugins append them: what was judged how, then of each instance its clients, of how many,
    and what they hold. What is not told is not there."""
    levels = [one.level for _, one in found.every]
    data = [f"{level}={levels.count(level)}" for level in (CRITICAL, WARNING, UNKNOWN)]
    samples = of_host.samples(found, 0, 0)
    value = {(one.name, *(label for _, label in one.labels)): one.value for one in samples}
    for name, one in found.facts.instances.items():
        clients = value.get(("mps_clients", name))
        if clients is not None:
            caps = [int(value.get(("mps_clients_cap", name, device.uuid), 0)) for device in one.devices]
            data.append(f"'clients {name}'={clients};;;0;{min(caps, default=0) or ''}")
        held = [value.get(("mps_clients_memory_bytes", name, device.uuid)) for device in one.devices]
        if held and None not in held:
            data.append(f"'memory {name}'={sum(each for each in held if each is not None)}B;;;0;")
    return " ".join(data)


def _section(title: str, word: str, checks: Sequence[Check], every: bool) -> None:
    passed = sum(one.level == OK for one in checks)
    say(f"{title}: ", render.word(word), f", {passed} of {len(checks)} checks passed")
    told: set[str] = set()
    for one in checks:
        if one.level == OK:
            _passed(one, every)
        elif one.level != UNKNOWN or one.remedy or one.evidence:
            _not_passed(one, one.name)
        elif one.found not in told:
            # What a missing daemon or driver keeps from being looked at is one line, not twenty.
            told.add(one.found)
            same = [other.name for other in checks if (other.level, other.found) == (UNKNOWN, one.found)]
            _not_passed(one, ", ".join(same))


def _passed(one: Check, every: bool) -> None:
    if every:
        say("  ", colour(OK, render.COLOURS[OK]), f" {one.name}: {one.found}")
    elif one.evidence:
        say(f"  note {one.name}: {one.found}")
    if every or one.evidence:
        _evidence(one)


def _not_passed(one: Check, names: str) -> None:
    say("  ", render.word(one.level), f" {names}: {one.found}")
    for word, text in (("expected", one.expected), ("do", one.remedy)):
        if text:
            say(f"    {word}: {text}")
    if one.evidence and (len(one.evidence) > 1 or one.evidence[0] != one.found):
        _evidence(one)


def _evidence(one: Check) -> None:
    for line in one.evidence:
        say(f"      {line}")
