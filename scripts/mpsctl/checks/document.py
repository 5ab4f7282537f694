"""What status, verify and health answer as JSON: one shape for all three, of format 2."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Sequence

from mpsctl.checks.report import Report
from mpsctl.model.finding import Check
from mpsctl.observe import plain
from mpsctl.observe.host import HostFacts

FORMAT = 2


def of(host: HostFacts, report: Report, exit_code: int) -> dict[str, Any]:
    """All that was found and judged, as plain data."""
    return {
        "format": FORMAT,
        "simulated": host.simulated,
        "worst": report.worst,
        "exit_code": exit_code,
        "host": {"checks": _checks(report.host)},
        "instances": {name: of_instance(host, report, name) for name in report.instances},
    }


def of_instance(host: HostFacts, report: Report, name: str) -> dict[str, Any]:
    """One instance: its word, its facts by the names that they have in observe/facts.py, and what was judged of it."""
    return {
        "word": report.word(name),
        "facts": plain.instance(host.instances[name], host.gpus),
        "checks": _checks(report.instances[name]),
    }


def _checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [{**asdict(one), "facts": plain.of(one.facts)} for one in checks]
