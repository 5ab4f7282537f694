"""The page of a report: what is alike on many hosts stands on it once.

Texts are alike that differ in numbers and ids only: a UUID, a pid, a count. The report as JSON has all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

import jinja2
from markupsafe import Markup

from . import project

from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING  # isort: skip

HOST = "the host"
"""Stands where an instance's name would for checks that belong to none."""
MOST_TEXTS = 20
"""Of texts that are alike, and differ in numbers, so many are shown."""
_MOST_OF_TEXT, _MOST_LINES, _MOST_LINES_OF_PASSED = 600, 40, 3
_OPEN_HOSTS = 12
"""On the page of so few hosts nothing has to be opened to be seen."""
_DIFFERS = re.compile(r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*(?:[-.:][0-9a-fA-F]+)*")


def page(report: Mapping[str, Any], what: str = "Verified") -> str:
    """The report as one HTML file. ``what`` was done to the hosts, as one word."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(project.ROLE / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
    )
    environment.globals.update(
        few=few, gpus=_gpus, clients=_clients, memory=_memory, used=_used, busy=_busy, limit=_limit, threads=_threads
    )
    amiss, passed, changed = _findings(report)
    return environment.get_template("verify.html.j2").render(
        report=report,
        what=what,
        amiss=amiss,
        passed=passed,
        changed=changed,
        alike=alike(report),
        opened=len(report["hosts"]) <= _OPEN_HOSTS,
    )


def severity(level: str) -> int:
    """Of the levels the place in their order, the worst first."""
    return [CRITICAL, WARNING, UNKNOWN, OK].index(level)


def in_order(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The hosts, the worst first, as the inventory has them within a level."""
    return sorted(report["hosts"].items(), key=lambda pair: severity(pair[1]["level"]))


def pattern(text: str) -> str:
    """What a text has in common with those that are alike."""
    return _DIFFERS.sub("#", text)


# -- findings


@dataclass
class Text:
    """One wording of a finding, and where it was found: by the instances, the hosts that have it there."""

    found: str
    expected: str
    remedy: str
    before: Optional[str]
    evidence: tuple[str, ...]
    places: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Finding:
    """A check with one level and all that was found alike. What is not known may be several checks with one reason."""

    level: str
    checks: list[str] = field(default_factory=list)
    texts: dict[tuple[Any, ...], Text] = field(default_factory=dict)
    where: dict[str, list[str]] = field(default_factory=dict)
    """all hosts, with the instances of each"""

    @property
    def shown(self) -> list[Text]:
        return list(self.texts.values())[:MOST_TEXTS]

    @property
    def more(self) -> int:
        """How many texts are not shown."""
        return max(0, len(self.texts) - MOST_TEXTS)

    @property
    def first(self) -> Text:
        return next(iter(self.texts.values()))

    @property
    def instances(self) -> int:
        return sum(name != HOST for names in self.where.values() for name in names)

    @property
    def other_places(self) -> dict[str, list[str]]:
        """Where the texts were found that are not shown."""
        return _by_instances(
            (host, name)
            for text in list(self.texts.values())[MOST_TEXTS:]
            for names, hosts in text.places.items()
            for host in hosts
            for name in names.split(", ")
        )


def _findings(report: Mapping[str, Any]) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """What is amiss or not told, what passed, and what is another than it was before."""
    amiss: dict[tuple[str, ...], Finding] = {}
    passed: dict[tuple[str, ...], Finding] = {}
    changed: dict[tuple[str, ...], Finding] = {}
    for host, group, check in _checks(report):
        before = check.get("before")
        differs = before is not None and before != f"{check['level']}: {check['found']}"
        if check["level"] != OK:
            # What a missing daemon or driver hides is one thing, not thirty.
            hidden = check["level"] == UNKNOWN and not check["remedy"]
            by = (UNKNOWN if hidden else check["name"], pattern(check["found"]))
            _add(amiss, host, group, check, before if differs else None, *by)
        elif differs:
            _add(changed, host, group, check, before, check["name"], pattern(check["found"]), pattern(str(before)))
        else:
            _add(passed, host, group, check, None, check["name"])
    for finding in (*amiss.values(), *passed.values(), *changed.values()):
        for text in finding.texts.values():
            text.places = _by_instances((host, name) for host, names in text.places.items() for name in names)
    order = sorted(amiss.values(), key=lambda one: (severity(one.level), len(one.where)))
    return order, sorted(passed.values(), key=lambda one: one.checks), list(changed.values())


def _checks(report: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for host, about in report["hosts"].items():
        for group in about["groups"]:
            for check in group["checks"]:
                yield host, group["name"], check


def _add(
    into: dict[tuple[str, ...], Finding],
    host: str,
    group: str,
    check: Mapping[str, Any],
    before: Optional[str],
    *alike_by: str,
) -> None:
    finding = into.setdefault((check["level"], *alike_by), Finding(check["level"]))
    if check["name"] not in finding.checks:
        finding.checks.append(check["name"])
    amiss = check["level"] != OK
    said = tuple(check[key][:_MOST_OF_TEXT] if amiss else "" for key in ("expected", "remedy"))
    lines = _MOST_LINES if amiss or before else _MOST_LINES_OF_PASSED
    evidence = tuple(line[:_MOST_OF_TEXT] for line in check["evidence"][:lines])
    key = (check["found"][:_MOST_OF_TEXT], *said, before, evidence)
    text = finding.texts.get(key)
    if text is None:
        text = finding.texts[key] = Text(key[0], said[0], said[1], before, evidence)
    for places in (text.places, finding.where):
        there = places.setdefault(host, [])
        if group not in there:
            there.append(group)


def _by_instances(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Hosts by their instances, which are a text: hosts that have it in the same instances are named together."""
    of_host: dict[str, list[str]] = {}
    for host, name in places:
        of_host.setdefault(host, []).append(name)
    found: dict[str, list[str]] = {}
    for host, names in of_host.items():
        found.setdefault(", ".join(names), []).append(host)
    return found


# -- hosts


@dataclass
class Alike:
    """Hosts of which the same can be said, by the checks that did not pass."""

    level: str
    checks: tuple[str, ...]
    first: str
    hosts: list[tuple[str, list[Mapping[str, Any]]]] = field(default_factory=list)

    @property
    def instances(self) -> list[Mapping[str, Any]]:
        return [group for _, groups in self.hosts for group in groups]

    @property
    def summary(self) -> str:
        """Their instances, limits, clients and memory together."""
        glances = [group["glance"] for group in self.instances if group["glance"]]
        count = len(self.instances)
        parts = [] if not count else [f"{count:,} instance{'' if count == 1 else 's'}"]
        devices = [device for glance in glances for device in glance["devices"]]
        parts += _few((device["name"] for device in devices), "kinds of GPU")
        parts += _few((f"limit {one['limit'] or 'none'}" for one in glances), "limits")
        percentages = [one["threads_percent"] for one in glances if one["threads_percent"] is not None]
        parts += _few((f"{one:g} % threads" for one in percentages), "percentages")
        told = [one["clients"] for one in glances if one["clients"] is not None]
        if told:
            parts.append(f"{sum(told):,} client{'' if sum(told) == 1 else 's'}")
        used = _used_percent(devices)
        parts += [] if used is None else [f"{used} % of memory used"]
        return "; ".join(parts)


def alike(report: Mapping[str, Any]) -> list[Alike]:
    """All hosts, those together of which the same checks did not pass; the worst and then the rarest first."""
    found: dict[tuple[Any, ...], Alike] = {}
    for host, about in in_order(report):
        bad = [check for group in about["groups"] for check in group["checks"] if check["level"] != OK]
        key = (about["level"], frozenset((one["level"], one["name"], pattern(one["found"])) for one in bad))
        names = tuple(sorted({one["name"] for one in bad}))
        one = found.setdefault(key, Alike(about["level"], names, about["first"][:_MOST_OF_TEXT]))
        one.hosts.append((host, [_row(group) for group in about["groups"] if group["name"] != HOST]))
    return sorted(found.values(), key=lambda one: (severity(one.level), len(one.hosts)))


def _row(group: Mapping[str, Any]) -> dict[str, Any]:
    bad = dict.fromkeys(check["name"] for check in group["checks"] if check["level"] != OK)
    return {**group, "bad": few(bad), "glance": group.get("glance")}


def few(names: Iterable[str], most: int = 3) -> str:
    """Names in one line, as many as may stand in it, and how many more there are."""
    found = list(names)
    more = len(found) - most
    return ", ".join(found) if more <= 0 else f"{', '.join(found[:most])} and {more} more"


def _used_percent(devices: Iterable[Mapping[str, Any]]) -> Optional[int]:
    """How much of the memory of devices is used, of those that tell; None where none does."""
    told = [(one["used_mib"], one["memory_mib"]) for one in devices]
    told = [pair for pair in told if None not in pair]
    whole = sum(size for _, size in told)
    return round(100 * sum(used for used, _ in told) / whole) if whole else None


def _few(texts: Iterable[str], what: str, most: int = 3) -> list[str]:
    found: Sequence[str] = list(dict.fromkeys(texts))
    return list(found) if len(found) <= most else [f"{len(found)} {what}"]


# -- cells of a glance


def _gpus(at: Mapping[str, Any]) -> str:
    return _each(one["gpu"] for one in at["devices"])


def _clients(at: Mapping[str, Any]) -> str:
    found = "?" if at["clients"] is None else str(at["clients"])
    found += "" if at["places"] is None else f"/{at['places']}"
    return found + (f", {at['waiting']} wait" if at["waiting"] else "")


def _memory(at: Mapping[str, Any]) -> str:
    return _each(f"{_gib(one['used_mib'])}/{_gib(one['memory_mib'])}" for one in at["devices"])


def _gib(mib: Optional[int]) -> str:
    return "?" if mib is None else f"{mib / 1024:.1f}"


def _used(at: Mapping[str, Any]) -> Markup:
    """The bar behind it: how much of the memory of its devices is used."""
    part = _used_percent(at["devices"])
    return Markup(f" style=--u:{int(part)}") if part else Markup()


def _busy(at: Mapping[str, Any]) -> str:
    told = [one["utilisation_percent"] for one in at["devices"]]
    return _each(None if part is None else f"{part} %" for part in told)


def _limit(at: Mapping[str, Any]) -> str:
    return _held(at["limit"], at["limit_in_force"])


def _threads(at: Mapping[str, Any]) -> str:
    return _held(None if at["threads_percent"] is None else f"{at['threads_percent']:g} %", at["threads_in_force"])


def _held(desired: Optional[str], in_force: Optional[bool]) -> str:
    """What is desired, and whether it is in force where it is not, or that is not told."""
    if desired is None:
        return "-"
    return desired + {True: "", False: " not in force", None: " ?"}[in_force]


def _each(values: Iterable[object]) -> str:
    return ", ".join("?" if value is None else str(value) for value in values) or "?"
