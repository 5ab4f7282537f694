"""How a check is run: its name is its function's, and whatever goes wrong in it is told and hides no other."""

from __future__ import annotations

from typing import Callable, Iterable, NamedTuple, TypeVar

from mpsctl.model.errors import MpsctlError
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN, Check, Reason

L = TypeVar("L")


class Finding(NamedTuple):
    """A check without its name."""

    level: str
    found: str
    expected: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


def passed(found: str, *evidence: str) -> Finding:
    return Finding(PASS, found, evidence=evidence)


def warned(found: str, expected: str, remedy: str, *evidence: str, reasons: Iterable[Reason] = ()) -> Finding:
    return Finding(WARN, found, expected, remedy, evidence, tuple(reasons))


def failed(found: str, expected: str, remedy: str, *evidence: str, reasons: Iterable[Reason] = ()) -> Finding:
    return Finding(FAIL, found, expected, remedy, evidence, tuple(reasons))


def unknown(why: str, expected: str = "", remedy: str = "", *evidence: str) -> Finding:
    return Finding(CANNOT_TELL, why, expected, remedy, evidence)


def name_of(check: Callable[[L], Finding]) -> str:
    return check.__name__.replace("_", "-")


def run(checks: Iterable[Callable[[L], Finding]], look: L) -> list[Check]:
    return [Check(name_of(check), *_run_one(check, look)) for check in checks]


def _run_one(check: Callable[[L], Finding], look: L) -> Finding:
    try:
        return check(look)
    except (MpsctlError, OSError) as error:
        return unknown(str(error))
    except Exception as error:
        return unknown(f"{type(error).__name__}: {error} (a fault of mpsctl)", remedy="report it")


def some(lines: Iterable[str]) -> str:
    """One line for one finding, or the first with how many more there are."""
    every = list(lines)
    return every[0] + (f" (and {len(every) - 1} more)" if len(every) > 1 else "")
