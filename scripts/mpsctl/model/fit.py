"""Whether clients fit on a GPU: the arithmetic, written out, and what it says.

A client's context counts inside the client's own limit, so what must fit is clients x limit (or clients x context
where there is no limit) plus what the server and the driver hold. A sum that does not fit by the best figures there
are is refused, and the line says whose figures they are. Rules of thumb warn.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping, Optional, Sequence

from mpsctl.model import foreign
from mpsctl.model.costs import Costs, driver_branch
from mpsctl.model.errors import BadValue
from mpsctl.model.quantity import Quantity
from mpsctl.model.shares import Share, Shares

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


Place = tuple[Card, Costs]
"""A GPU or MIG device, and the figures for it."""


@dataclass(frozen=True)
class Demand:
    """What is to run: ``clients`` processes of at most ``limit_mib`` each. None: not said, not managed.

    ``share`` is the limit as it was written where that is a percentage: what is suggested is then one too.
    """

    clients: Optional[int] = None
    limit_mib: Optional[int] = None
    thread_percentage: Optional[float] = None
    max_connections: Optional[str] = None
    """CUDA_DEVICE_MAX_CONNECTIONS of the clients"""
    share: Optional[Quantity] = None

    def limit_on(self, card: Card) -> Optional[int]:
        """The limit in MiB on this card."""
        return self.limit_mib if self.share is None else self.share.on(card.memory_mib)


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


CLIENTS, LIMIT, SHARES = "ExpectedClients", "DeviceMemoryLimit", "Shares"


def cap(driver: Optional[str], pre_volta: bool = False) -> int:
    """How many client contexts the driver takes on one GPU, as far as that is known."""
    if pre_volta:
        return CAP_PRE_VOLTA
    return CAP_FROM_590 if (driver_branch(driver) or 0) >= 590 else CAP


def cap_of(card: Card) -> int:
    return cap(card.driver, card.pre_volta)


def usable_mib(card: Card, costs: Costs) -> int:
    """What clients can have together: without what is reserved, and without the server's."""
    return max(0, card.memory_mib - costs.reserved_mib - costs.server_mib)


def most_by_memory(card: Card, costs: Costs, limit_mib: int) -> int:
    """How many clients of ``limit_mib`` fit, by memory alone."""
    return usable_mib(card, costs) // limit_mib


def judge(card: Card, costs: Costs, demand: Demand, places: Sequence[Place] = ()) -> Verdict:
    """Do the arithmetic for one GPU. What is suggested fits there and on all ``places``, the instance's devices."""
    verdict = Verdict()
    supported = _judge_support(card.driver, demand, verdict)
    if not supported:
        demand = replace(demand, limit_mib=None, share=None)
    remedies = [_remedy([(card, costs), *places], demand), *([costs.caveat] if costs.caveat else [])]
    _judge_limit(card, costs, demand, "; ".join(remedies), verdict)
    _judge_memory(card, costs, demand, "; ".join(remedies), verdict)
    if demand.clients is not None:
        _judge_count(card, demand.clients, remedies[0], verdict)
    _judge_connections(card, demand.max_connections, verdict)
    return verdict


def judge_without_memory(card: Card, demand: Demand) -> Verdict:
    """What can be judged of a GPU whose memory is not known: its driver and the number of clients.

    ``card.memory_mib`` is not looked at.
    """
    verdict = Verdict()
    _judge_support(card.driver, demand, verdict)
    if demand.clients is not None:
        _judge_count(card, demand.clients, f"at most {cap_of(card)} clients", verdict)
    _judge_connections(card, demand.max_connections, verdict)
    return verdict


def largest_limit(places: Sequence[Place], clients: int, in_percent: bool = False) -> Optional[Quantity]:
    """The largest limit with which ``clients`` fit on each place; None where none does.

    In percent it is rounded down to thousandths, where those still give enough for a context; else it is in MiB.
    """
    largest_mib = min(usable_mib(*place) // clients for place in places)
    if clients > min(cap_of(card) for card, _ in places) or largest_mib < _least_mib(places):
        return None
    if in_percent:
        # The greatest share that rounds down to at most what fits.
        share = min(
            ((usable_mib(card, costs) // clients + 1) * 100_000 - 1) // card.memory_mib for card, costs in places
        )
        quantity = _percent(min(share, 100_000))
        if all(quantity.on(card.memory_mib) >= costs.least_limit_mib for card, costs in places):
            return quantity
    return Quantity(f"{largest_mib}M", mib=largest_mib)


def _least_mib(places: Sequence[Place]) -> int:
    return max(max(1, costs.least_limit_mib) for _, costs in places)


def _least_limit(places: Sequence[Place], in_percent: bool) -> Quantity:
    if in_percent:
        return _percent(max(-(-max(1, costs.least_limit_mib) * 100_000 // card.memory_mib) for card, costs in places))
    least_mib = _least_mib(places)
    return Quantity(f"{least_mib}M", mib=least_mib)


def _percent(thousandths: int) -> Quantity:
    return Quantity(f"{thousandths / 1000:g}%", thousandths_percent=thousandths)


def most_clients(places: Sequence[Place], demand: Demand) -> int:
    """How many clients fit on each place with the limit as it is; 0 where the limit is too low for any."""
    return min(_most_on(card, costs, demand.limit_on(card)) for card, costs in places)


def _most_on(card: Card, costs: Costs, limit_mib: Optional[int]) -> int:
    if limit_mib is not None and limit_mib < costs.least_limit_mib:
        return 0
    each_mib = max(1, costs.context_mib) if limit_mib is None else limit_mib
    return min(most_by_memory(card, costs, each_mib), cap_of(card))


def _remedy(places: Sequence[Place], demand: Demand) -> str:
    """What fits instead. Each number and each limit that it names passes ``judge`` on every place."""
    clients = 1 if demand.clients is None else demand.clients
    most = most_clients(places, demand)
    said = [f"at most {counted(most)}"] if 0 < most < clients else []
    if demand.limit_mib is None:
        return said[0] if said else "no client fits: take a GPU with more memory"
    limit = _limit_remedy(places, demand, clients)
    if limit is not None:
        return ", or ".join([*said, limit])
    if said:
        return said[0]
    fewer = min(_most_on(card, costs, _least_mib(places)) for card, costs in places)
    limit = _limit_remedy(places, demand, fewer) if fewer > 0 else None
    if limit is None:
        return "no client fits, whatever the limit: take a GPU with more memory"
    return f"no limit makes {counted(clients)} fit: at most {counted(fewer)}, with {limit}"


def _limit_remedy(places: Sequence[Place], demand: Demand, clients: int) -> Optional[str]:
    """The limits with which that many fit, in words; None where there is none."""
    in_percent = demand.share is not None
    largest = largest_limit(places, clients, in_percent)
    if largest is None:
        return None
    if all((demand.limit_on(card) or 0) >= costs.least_limit_mib for card, costs in places):
        return f"a limit of at most {largest}"
    least = _least_limit(places, largest.mib is None)
    return f"a limit of {least}" if least.text == largest.text else f"a limit from {least} to {largest}"


def counted(clients: int) -> str:
    return f"{clients} client{'' if clients == 1 else 's'}"


def _judge_support(driver: Optional[str], demand: Demand, verdict: Verdict) -> bool:
    branch = driver_branch(driver)
    if demand.limit_mib is None or branch is None or branch >= _LIMITS_FROM_BRANCH:
        return True
    verdict.refuse(
        LIMIT,
        f"a memory limit with driver {driver}",
        f"driver {_LIMITS_FROM_BRANCH} or newer (memory limits need CUDA 11.5; clients hang without it)",
        "update the driver, or set no limit",
    )
    return False


def _judge_limit(card: Card, costs: Costs, demand: Demand, remedy: str, verdict: Verdict) -> None:
    limit_mib = demand.limit_mib
    if limit_mib is None:
        return
    left_mib = limit_mib - costs.context_mib
    left = f"= {left_mib} MiB to allocate" if left_mib > 0 else "leaves nothing to allocate"
    verdict.lines.append(f"one client: {limit_mib} MiB limit - {costs.context_mib} MiB context {left} ({costs.origin})")
    if limit_mib < costs.least_limit_mib:
        found = f"a limit of {limit_mib} MiB{_written(demand)} on {card.name}"
        expected = f"at least {costs.least_limit_mib} MiB, what a client needs to start ({costs.origin})"
        # What a context costs follows the model's multiprocessors: another model's figure does not prove this wrong.
        if costs.borrowed:
            verdict.warnings.append(f"{found}, expected {expected}; {remedy}")
        else:
            verdict.refuse(LIMIT, found, expected, remedy)


def _written(demand: Demand) -> str:
    return "" if demand.share is None else f" ({demand.share})"


def _judge_memory(card: Card, costs: Costs, demand: Demand, remedy: str, verdict: Verdict) -> None:
    """The sum of all clients, or of one where their number is not said: a limit above the GPU is none."""
    if demand.clients is None and demand.limit_mib is None:
        return
    clients = 1 if demand.clients is None else demand.clients
    each_mib, what = (costs.context_mib, "context") if demand.limit_mib is None else (demand.limit_mib, "limit")
    needed_mib = clients * each_mib + costs.server_mib + costs.reserved_mib
    fits = needed_mib <= card.memory_mib
    line = (
        f"{counted(clients)} x {each_mib} MiB {what}{_written(demand)} + {costs.server_mib} MiB server"
        f" + {costs.reserved_mib} MiB reserved = {needed_mib} MiB"
        f" {'<=' if fits else '>'} {card.memory_mib} MiB of {card.name}"
    )
    if demand.clients is not None or not fits:
        verdict.lines.append(line)
    if not fits:
        verdict.refuse(LIMIT if demand.clients is None else CLIENTS, line, "the sum within the GPU's memory", remedy)


def _judge_count(card: Card, clients: int, remedy: str, verdict: Verdict) -> None:
    most = cap_of(card)
    why = "older than Volta" if card.pre_volta else f"driver {card.driver or 'not known'}"
    verdict.lines.append(
        f"{counted(clients)} {'<=' if clients <= most else '>'} {most} client contexts per GPU ({why})"
    )
    if clients > most:
        verdict.refuse(
            CLIENTS,
            f"{clients} clients on {card.name}",
            f"at most {most}, the driver's cap on client contexts per GPU ({why})",
            f"{remedy}; or spread them over more GPUs",
        )
        return
    if clients > MANY:
        verdict.warnings.append(
            f"{clients} clients on one GPU: 2 to 8 are the rule, above {MANY} each gets little and all share one fault"
        )
    if clients > NEAR_CAP * most:
        verdict.warnings.append(
            f"{clients} clients are near the cap of {most}: it counts contexts, and a process may hold more than one"
        )
    if card.mig:
        verdict.warnings.append(
            f"a MIG device has a part of the cap of {most}, in proportion to its compute slices; how many is not known"
        )


def _judge_connections(card: Card, text: Optional[str], verdict: Verdict) -> None:
    if lowers_cap(text):
        verdict.warnings.append(
            f"{MAX_CONNECTIONS}={foreign.shown(text or '')}: above {DEFAULT_MAX_CONNECTIONS} it lowers the cap of"
            f" {cap_of(card)} clients; by how much is not documented"
        )


def lowers_cap(text: Optional[str]) -> bool:
    """Whether this value of MAX_CONNECTIONS lowers the number of possible clients (NVIDIA's documentation)."""
    if text is None:
        return False
    return not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > DEFAULT_MAX_CONNECTIONS


def to_fit(expected: Optional[int], shares: Optional[Shares]) -> tuple[Optional[int], Optional[Share]]:
    """How many clients must fit at once: those expected, else the largest share, which is the second then."""
    largest = None if expected is not None or shares is None else shares.largest
    return (expected, None) if largest is None else (largest.clients, largest)


def refuse_anywhere(limit: Optional[Quantity], clients: Optional[int], of: Optional[Share] = None) -> None:
    """What fits on no GPU whatever its model. ``of`` is the share that has so many.

    :raises BadValue: for more clients than any driver takes, or limits that exceed the whole.
    """
    if clients is None:
        return
    named = f"{of}: " if of is not None else ""
    if clients > CAP_FROM_590:
        raise BadValue(
            f"{named}{clients} clients on one GPU",
            f"at most {CAP_FROM_590}, the highest cap of any driver",
            "spread them over more GPUs",
        )
    share = None if limit is None else limit.thousandths_percent
    if share is not None and clients * share > 100_000:
        raise BadValue(
            f"{named}{clients} clients x {limit} = {clients * share / 1000:g} % of a GPU's memory",
            "less than 100 %, since the MPS server and the driver's reserve need a part",
            f"write less than {100_000 // clients / 1000:g}% each, or fewer clients; `mpsctl plan` tells the limit that"
            " fits",
        )


def max_connections_of(environment: Mapping[str, str]) -> Optional[str]:
    return environment.get(MAX_CONNECTIONS)
