"""What a client's context, the MPS server and the driver take of a GPU's memory; `mpsctl measure` writes it.

A context's cost depends on the GPU model, on the driver, and on the client's thread percentage: on an H200
with driver 580 it is 514 MiB at 100 % of the multiprocessors and 271 MiB at 50 %. So each figure says what
it was measured on. Where this model and driver have none, the nearest figures are used, and the result says whose.
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
    no process ever gets (the driver's reserve). None: not known. ``measured_on`` is for people.
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
    """The figures to reckon with, in MiB; ``origin`` says what they were measured on.

    ``borrowed`` says why the context's cost may be another on this GPU, None: it was measured on this model and
    driver. ``assumed`` names what else was not measured on this model (``the driver's reserve``).
    """

    context_mib: int
    server_mib: int
    reserved_mib: int
    least_limit_mib: int
    origin: str
    borrowed: Optional[str] = None
    assumed: tuple[str, ...] = ()

    @property
    def caveat(self) -> Optional[str]:
        """Whose figures these are and how to get this host's own, in one line; None where they are its own."""
        said = [] if self.borrowed is None else [f"what a context and the server take was {self.borrowed}"]
        if self.assumed:
            verb = "is" if len(self.assumed) == 1 else "are"
            said.append(f"{' and '.join(self.assumed)} {verb} {_AS_ON_AN_H200}")
        return f"{' and '.join(said)}; `mpsctl measure` gives this host's own figures" if said else None

    def cuda_total_mib(self, memory_mib: int) -> int:
        """The total that CUDA shows to a process on a GPU of ``memory_mib``: NVML's total without the reserve.

        Where the reserve was not measured on this model, NVML's total: a fraction of it is never too large a share
        (H200, driver 580: 143155 of 143771 MiB).
        """
        return memory_mib if RESERVE in self.assumed else memory_mib - self.reserved_mib


RESERVE, SERVER = "the driver's reserve", "the server's size"
_AS_ON_AN_H200 = "counted as on an H200 with driver 580"

STAND_IN_CONTEXT_MIB, STAND_IN_SERVER_MIB, STAND_IN_RESERVED_MIB = 514, 66, 616
"""What stands in where a figure is not known: an H200's with driver 580, of 143771 MiB. The reserve of smaller cards
is mostly smaller, so that this errs to the safe side there; an A100 of 80 GiB may keep more (public reports show
79.25 GiB to CUDA)."""


def driver_key(version: Optional[str]) -> str:
    """``580.159`` for ``580.159.04``; empty where the driver is not known."""
    match = re.match(r"\d+(?:\.\d+)?", version or "")
    return match[0] if match else ""


def driver_branch(version: Optional[str]) -> Optional[int]:
    """``580`` for ``580.159.04``."""
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None


def find(known: Iterable[Measurement], gpu_name: str, driver: Optional[str], thread_percentage: float) -> Costs:
    """The nearest figures: of this model and driver if there are any, else others', and then they say whose.

    Of several percentages the next one at or above counts: a context costs more the more multiprocessors
    it has, so that this errs to the safe side. ``known`` has the preferred measurements first.
    """
    known = list(known)
    model = [one for one in known if one.gpu_name == gpu_name]
    own = [one for one in model if one.driver == driver_key(driver)]
    if own:
        best, borrowed = _nearest(own, thread_percentage)
        return _costs(_completed(best, [*own, *model]), borrowed)
    if model:
        best, _ = _nearest(model, thread_percentage)
        where = f"measured with driver {best.driver}, not with {driver or 'this one'}"
        return _costs(_completed(best, model), where)
    if known:
        best, _ = _nearest(known, thread_percentage)
        # What is reserved depends on the model more than anything else: another's does not stand in for it.
        return _costs(replace(best, reserved_mib=None), f"measured on another GPU model ({best.gpu_name})")
    return Costs(
        STAND_IN_CONTEXT_MIB,
        STAND_IN_SERVER_MIB,
        STAND_IN_RESERVED_MIB,
        STAND_IN_CONTEXT_MIB + 1,
        "an H200's with driver 580",
        "measured on another GPU model (NVIDIA H200)",
        (SERVER, RESERVE),
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
    missing = ((SERVER, one.server_mib), (RESERVE, one.reserved_mib))
    return Costs(
        context_mib=one.context_mib,
        server_mib=STAND_IN_SERVER_MIB if one.server_mib is None else one.server_mib,
        reserved_mib=STAND_IN_RESERVED_MIB if one.reserved_mib is None else one.reserved_mib,
        least_limit_mib=one.least_limit_mib or one.context_mib + 1,
        origin=f"measured on {one.measured_on or f'{one.gpu_name}, driver {one.driver}'}"
        f" at {one.thread_percentage:g} % of the multiprocessors",
        borrowed=borrowed,
        assumed=tuple(name for name, value in missing if value is None),
    )
