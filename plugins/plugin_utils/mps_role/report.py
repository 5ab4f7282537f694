"""One report on a fleet out of what `mpsctl verify` found on each host: JSON, and a page that needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from . import report_glance
from .report_page import HOST, in_order, severity

from mpsctl.model.finding import CRITICAL, OK, worst  # isort: skip

FORMAT = 2
ANSWER_FORMAT = 2
"""The format of `mpsctl verify --json` that is read here: a host may still have the program of an earlier release."""


def of(results: Mapping[str, Mapping[str, Any]], generated: str) -> dict[str, Any]:
    """The report on all hosts of a run.

    ``results`` are the task's results by host: reached, unreachable or failed. ``generated`` is a time for people.
    """
    hosts = {host: _host(result) for host, result in results.items()}
    levels = [host["level"] for host in hosts.values()]
    return {
        "format": FORMAT,
        "generated": generated,
        "worst": worst(levels),
        "simulated": any(host["simulated"] for host in hosts.values()),
        "count": {level: levels.count(level) for level in sorted(set(levels), key=severity)},
        "hosts": hosts,
    }


def results_of_ledger(ledger: Path) -> dict[str, dict[str, Any]]:
    """The hosts of a rolling run: HOST.json of those that are done, HOST.failed of those that went wrong.

    Each holds what was found ``before`` and ``after``, and a ``problem`` where there is one.
    """
    results: dict[str, dict[str, Any]] = {}
    for path in sorted(ledger.glob("*.json")) + sorted(ledger.glob("*.failed")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        results[path.stem] = {
            "verified": _beside(entry.get("before") or {}, entry.get("after") or {}),
            "problem": entry.get("problem"),
        }
    return results


def _beside(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was found after, each check with what it was before where that differs."""

    def annotated(checks: Sequence[Mapping[str, Any]], former: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        known = {check["name"]: f"{check['level']}: {check['found']}" for check in former}
        return [{**check, "before": known.get(check["name"], "no such check")} for check in checks]

    former = before.get("instances") or {}
    instances = {
        name: {**one, "checks": annotated(_checks(one), _checks(former.get(name)))}
        for name, one in (after.get("instances") or {}).items()
    }
    host = {"checks": annotated(_checks(after.get("host")), _checks(before.get("host")))}
    return {**after, "host": host, "instances": instances}


def _checks(part: Optional[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The checks of one part of an answer of `mpsctl verify`: of the host, or of an instance."""
    found: Sequence[Mapping[str, Any]] = (part or {}).get("checks") or ()
    return found


def _host(result: Mapping[str, Any]) -> dict[str, Any]:
    found = result.get("verified") or {}
    instances = {name: list(_checks(one)) for name, one in (found.get("instances") or {}).items()}
    groups = {HOST: list(_checks(found.get("host"))), **instances}
    if result.get("problem"):
        problem = _check("came-back", _line(result["problem"]), "a host that is as before", "mend it and run again")
    elif result.get("unreachable"):
        problem = _check(
            "reachable", f"unreachable: {_line(result.get('msg'))}", "an answer over ssh", "look at the host"
        )
    elif not found or "error" in found:
        said = _line(found.get("error") or result.get("msg") or "nothing")
        problem = _check("answers", f"no answer of mpsctl verify: {said}", "one", "run `mpsctl verify` on the host")
    elif not found.get("instances"):
        problem = _check("set-up", "no instance of MPS", "one for each GPU", "run site.yml on it, or take it out")
    else:
        problem = None
    if problem is not None:
        groups[HOST].insert(0, problem)
    levels = {name: worst(check["level"] for check in checks) for name, checks in groups.items()}
    return {
        "level": worst(levels.values()),
        "reached": not result.get("unreachable"),
        "simulated": bool(found.get("simulated")),
        "first": _first(groups),
        "groups": [
            {
                "name": name,
                "level": levels[name],
                "glance": None if name == HOST else report_glance.of(found["instances"][name]),
                "checks": sorted(checks, key=lambda one: severity(one["level"])),
            }
            for name, checks in groups.items()
            if checks
        ],
    }


def _check(name: str, found: str, expected: str, remedy: str) -> dict[str, Any]:
    return {"name": name, "level": CRITICAL, "found": found, "expected": expected, "remedy": remedy, "evidence": []}


def _line(text: object) -> str:
    return " ".join(str(text).split())[:500]


def failing(result: Mapping[str, Any]) -> list[str]:
    """One line for each check of a host that fails."""
    return [
        _told(group["name"], check)
        for group in _host(result)["groups"]
        for check in group["checks"]
        if check["level"] == CRITICAL
    ]


def _told(group: str, check: Mapping[str, Any]) -> str:
    place = "" if group == HOST else f"instance {group}: "
    return f"{place}{check['name']}: {check['found']}"


def _first(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What matters most of a host, in one line; empty where all is well."""
    bad = [(name, check) for name, checks in groups.items() for check in checks if check["level"] != OK]
    if not bad:
        return ""
    return _told(*min(bad, key=lambda pair: severity(pair[1]["level"])))


def fails(level: str) -> bool:
    """Whether a host of this level fails; warnings and what cannot be told fail nothing."""
    return level == CRITICAL


def summary(report: Mapping[str, Any], shown: int = 4) -> str:
    """One line on the hosts that fail, or on the fleet where none does."""
    failing = [f"{host} ({about['first']})" for host, about in in_order(report) if about["level"] == CRITICAL]
    total = len(report["hosts"])
    if not failing:
        counts = ", ".join(f"{number} {level}" for level, number in report["count"].items())
        return f"{total} host{'s' if total != 1 else ''}: {counts}"
    more = f"; and {len(failing) - shown} more" if len(failing) > shown else ""
    return f"{len(failing)} of {total} hosts fail: {'; '.join(failing[:shown])}{more}"
