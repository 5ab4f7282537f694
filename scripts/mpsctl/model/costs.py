"""What a client's context and the MPS server take of a GPU's memory, as measured: `mpsctl measure` writes it.

A context's cost depends on the GPU model, on the driver, and on the client's thread percentage: on an H200
with driver 580 it is 514 MiB at 100 % of the multiprocessors and 271 MiB at 50 %. So each figure says what
it was measured on, and one that is borrowed from elsewhere never refuses anything, it only warns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Iterable, Optional


@dataclass(frozen=True)
class Measurement:
    """One GPU model with one driver (``580.159``) at one thread percentage.

    ``context_mib`` is what a context takes of its client's limit, ``least_limit_mib`` the least limit with
    which a client starts, ``server_mib`` what the server holds, ``reserved_mib`` what of the GPU's memory
    no process ever gets. None: not known. ``measured_on`` is for people.
    """

    gpu_name: str
    driver: str
    thread_percentage: float
    context_mib: int
    server_mib: Optional[int] = None
    least_limit_mib: Optional[int] = None
    reserved_mib: Optional[int] = None
    multiprocessors: Optional[int] = None
    measured_on: str = ""

    @property
    def key(self) -> tuple[str, str, float]:
        return self.gpu_name, self.driver, self.thread_percentage


@dataclass(frozen=True)
class Costs:
    """The figures to reckon with. ``borrowed`` says why they may not hold on this GPU; None: they are its own."""

    context_mib: int
    server_mib: int
    reserved_mib: int
    least_limit_mib: int
    origin: str
    borrowed: Optional[str] = None


_STAND_IN_CONTEXT_MIB = 514
_STAND_IN_SERVER_MIB = 66


def driver_key(version: Optional[str]) -> str:
    """``580.159`` for ``580.159.04``; empty where the driver is not known."""
    match = re.match(r"\d+(?:\.\d+)?", version or "")
    return match[0] if match else ""


def driver_branch(version: Optional[str]) -> Optional[int]:
    """``580`` for ``580.159.04``."""
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None


def find(known: Iterable[Measurement], gpu_name: str, driver: Optional[str], thread_percentage: float) -> Costs:
    """The nearest figures: of this model and driver if there are any, else borrowed, and then it says so.

    Of several percentages the next one at or above counts: a context costs more the more multiprocessors
    it has, so that this errs to the safe side. ``known`` has the preferred measurements first.
    """
    known = list(known)
    model = [one for one in known if one.gpu_name == gpu_name]
    own = [one for one in model if one.driver == driver_key(driver)]
    if own:
        best, borrowed = _nearest(own, thread_percentage)
        return _costs(_completed(best, own), borrowed)
    if model:
        best, _ = _nearest(model, thread_percentage)
        where = f"measured with driver {best.driver}, not with {driver or 'this one'}"
        return _costs(_completed(best, model), where)
    if known:
        best, _ = _nearest(known, thread_percentage)
        # What is reserved depends on the model more than anything else: nothing is assumed of it.
        return _costs(replace(best, reserved_mib=None), f"measured on another GPU model ({best.gpu_name})")
    return Costs(
        _STAND_IN_CONTEXT_MIB, _STAND_IN_SERVER_MIB, 0, _STAND_IN_CONTEXT_MIB + 1, "a guess", "measured on nothing"
    )


def _nearest(found: list[Measurement], thread_percentage: float) -> tuple[Measurement, Optional[str]]:
    above = [one for one in found if one.thread_percentage >= thread_percentage]
    if above:
        return min(above, key=lambda one: one.thread_percentage), None
    best = max(found, key=lambda one: one.thread_percentage)
    return best, f"measured at {best.thread_percentage:g} % of the multiprocessors, less than {thread_percentage:g} %"


def _completed(one: Measurement, others: list[Measurement]) -> Measurement:
    """With what does not depend on the percentage taken from the others where it is missing."""
    for other in others:
        one = replace(
            one,
            server_mib=other.server_mib if one.server_mib is None else one.server_mib,
            reserved_mib=other.reserved_mib if one.reserved_mib is None else one.reserved_mib,
        )
    return one


def _costs(one: Measurement, borrowed: Optional[str]) -> Costs:
    return Costs(
        context_mib=one.context_mib,
        server_mib=_STAND_IN_SERVER_MIB if one.server_mib is None else one.server_mib,
        reserved_mib=one.reserved_mib or 0,
        least_limit_mib=one.least_limit_mib or one.context_mib + 1,
        origin=f"measured on {one.measured_on or f'{one.gpu_name}, driver {one.driver}'}"
        f" at {one.thread_percentage:g} % of the multiprocessors",
        borrowed=borrowed,
    )
