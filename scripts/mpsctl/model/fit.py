"""Whether clients fit on a GPU: the arithmetic, written out, and what it says.

A client's context counts inside the client's own limit, so what must fit is clients x limit plus what the
server holds. What is certain refuses; what is borrowed or a rule of thumb warns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from mpsctl.model.costs import Costs, driver_branch
from mpsctl.model.errors import BadValue
from mpsctl.model.quantity import Quantity

FITS, WARNS, REFUSED = "fits", "warns", "refused"

CAP_PRE_VOLTA, CAP, CAP_FROM_590 = 16, 48, 60
"""Client contexts per GPU: 48 was met on an H200 with driver 580 (the 49th gets error 808), the others are
NVIDIA's documentation. Contexts, not processes: one process may hold several."""

MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
DEFAULT_MAX_CONNECTIONS = 2
NEAR_CAP = 0.9
"""The share of the cap from which it is told that clients are near it."""
MANY = 16
"""Above this many processes on one GPU the gain is the exception."""
_LIMITS_FROM_BRANCH = 495
"""CUDA 11.5: before it a client under a memory limit hangs."""
LARGE_SHARE = 0.8


@dataclass(frozen=True)
class Card:
    """The GPU, or the MIG device, of which ``memory_mib`` is NVML's total."""

    name: str
    memory_mib: int
    driver: Optional[str] = None
    pre_volta: bool = False
    mig: bool = False


@dataclass(frozen=True)
class Demand:
    """What is to run: ``clients`` processes of at most ``limit_mib`` each. None: not said, not managed."""

    clients: Optional[int] = None
    limit_mib: Optional[int] = None
    thread_percentage: Optional[float] = None
    max_connections: Optional[str] = None
    """CUDA_DEVICE_MAX_CONNECTIONS of the clients"""


@dataclass
class Verdict:
    """``lines`` is the arithmetic; ``refusals`` pair the key that is at fault with what is wrong, in one line."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusals: list[tuple[str, BadValue]] = field(default_factory=list)

    @property
    def word(self) -> str:
        return REFUSED if self.refusals else WARNS if self.warnings else FITS

    def refuse(self, key: str, found: str, expected: str, remedy: str) -> None:
        self.refusals.append((key, BadValue(found, expected, remedy)))


CLIENTS, LIMIT = "ExpectedClients", "DeviceMemoryLimit"


def cap_of(card: Card) -> int:
    """How many client contexts the driver takes on one GPU, as far as that is known."""
    if card.pre_volta:
        return CAP_PRE_VOLTA
    return CAP_FROM_590 if (driver_branch(card.driver) or 0) >= 590 else CAP


def usable_mib(card: Card, costs: Costs) -> int:
    """What clients can have together: without what is reserved, and without the server's."""
    return max(0, card.memory_mib - costs.reserved_mib - costs.server_mib)


def most_by_memory(card: Card, costs: Costs, limit_mib: int) -> int:
    """How many clients of ``limit_mib`` fit, by memory alone."""
    return usable_mib(card, costs) // limit_mib


def judge(card: Card, costs: Costs, demand: Demand) -> Verdict:
    """Do the arithmetic for one GPU."""
    verdict = Verdict()
    _judge_limit(card, costs, demand, verdict)
    if demand.clients is not None:
        _judge_memory(card, costs, demand.clients, demand.limit_mib, verdict)
        _judge_count(card, demand.clients, verdict)
    _judge_connections(card, demand.max_connections, verdict)
    return verdict


def _judge_limit(card: Card, costs: Costs, demand: Demand, verdict: Verdict) -> None:
    limit_mib = demand.limit_mib
    if limit_mib is None:
        return
    branch = driver_branch(card.driver)
    if branch is not None and branch < _LIMITS_FROM_BRANCH:
        verdict.refuse(
            LIMIT,
            f"a memory limit with driver {card.driver}",
            f"driver {_LIMITS_FROM_BRANCH} or newer (memory limits need CUDA 11.5; clients hang without it)",
            "update the driver, or set no limit",
        )
    left_mib = limit_mib - costs.context_mib
    left = f"= {left_mib} MiB to allocate" if left_mib > 0 else "leaves nothing to allocate"
    verdict.lines.append(f"one client: {limit_mib} MiB limit - {costs.context_mib} MiB context {left} ({costs.origin})")
    if limit_mib < costs.least_limit_mib:
        found = f"a limit of {limit_mib} MiB on {card.name}"
        expected = f"at least {costs.least_limit_mib} MiB, what a client needs to start ({costs.origin})"
        if costs.borrowed:
            verdict.warnings.append(f"{found}, expected {expected}; {_borrowed(costs)}")
        else:
            verdict.refuse(LIMIT, found, expected, "raise the limit")


def _judge_memory(card: Card, costs: Costs, clients: int, limit_mib: Optional[int], verdict: Verdict) -> None:
    each_mib, what = (costs.context_mib, "context") if limit_mib is None else (limit_mib, "limit")
    reserved = f" + {costs.reserved_mib} MiB reserved" if costs.reserved_mib else ""
    needed_mib = clients * each_mib + costs.server_mib + costs.reserved_mib
    fits = needed_mib <= card.memory_mib
    verdict.lines.append(
        f"{clients} clients x {each_mib} MiB {what} + {costs.server_mib} MiB server{reserved} = {needed_mib} MiB"
        f" {'<=' if fits else '>'} {card.memory_mib} MiB of {card.name}"
    )
    if fits:
        return
    most = most_by_memory(card, costs, each_mib)
    largest_mib = usable_mib(card, costs) // clients
    remedy = f"at most {most} clients, or a limit of at most {largest_mib}M"
    # With the bare limits alone too large, no figure for contexts or the server is in question.
    certain = not costs.borrowed or (limit_mib is not None and clients * limit_mib > card.memory_mib)
    if certain:
        verdict.refuse(CLIENTS, verdict.lines[-1], "the sum within the GPU's memory", remedy)
    else:
        verdict.warnings.append(f"{verdict.lines[-1]}: {remedy}; {_borrowed(costs)}")


def _judge_count(card: Card, clients: int, verdict: Verdict) -> None:
    cap = cap_of(card)
    why = "older than Volta" if card.pre_volta else f"driver {card.driver or 'not known'}"
    verdict.lines.append(f"{clients} clients {'<=' if clients <= cap else '>'} {cap} client contexts per GPU ({why})")
    if clients > cap:
        verdict.refuse(
            CLIENTS,
            f"{clients} clients on {card.name}",
            f"at most {cap}, the driver's cap on client contexts per GPU ({why})",
            "spread them over more GPUs",
        )
        return
    if clients > MANY:
        verdict.warnings.append(
            f"{clients} clients on one GPU: 2 to 8 are the rule, above {MANY} each gets little and all share one fault"
        )
    if clients > NEAR_CAP * cap:
        verdict.warnings.append(
            f"{clients} clients are near the cap of {cap}: it counts contexts, and a process may hold more than one"
        )
    if card.mig:
        verdict.warnings.append(
            f"a MIG device has a part of the cap of {cap}, in proportion to its compute slices; how many is not known"
        )


def _judge_connections(card: Card, text: Optional[str], verdict: Verdict) -> None:
    if lowers_cap(text):
        verdict.warnings.append(
            f"{MAX_CONNECTIONS}={text}: above {DEFAULT_MAX_CONNECTIONS} it lowers the cap of {cap_of(card)} clients;"
            " by how much is not documented"
        )


def lowers_cap(text: Optional[str]) -> bool:
    """Whether this value of MAX_CONNECTIONS lowers the number of possible clients (NVIDIA's documentation)."""
    if text is None:
        return False
    return not text.isascii() or not text.isdigit() or int(text) > DEFAULT_MAX_CONNECTIONS


def _borrowed(costs: Costs) -> str:
    return f"the figures were {costs.borrowed}: run `mpsctl measure`"


def refuse_anywhere(limit: Optional[Quantity], clients: Optional[int]) -> None:
    """What fits on no GPU whatever its model.

    :raises BadValue: for more clients than any driver takes, or shares that exceed the whole.
    """
    if clients is None:
        return
    if clients > CAP_FROM_590:
        raise BadValue(
            f"{clients} clients on one GPU",
            f"at most {CAP_FROM_590}, the highest cap of any driver",
            "spread them over more GPUs",
        )
    share = None if limit is None else limit.thousandths_percent
    if share is not None and clients * share > 100_000:
        raise BadValue(
            f"{clients} clients x {limit} = {clients * share / 1000:g} % of a GPU's memory",
            "at most 100 %, less what the MPS server holds",
            "lower one of the two",
        )


def max_connections_of(environment: Mapping[str, str]) -> Optional[str]:
    return environment.get(MAX_CONNECTIONS)
