"""Advice: how many processes of one size go on a GPU, with which limit and percentage, and whether MPS pays."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Optional, Sequence

from mpsctl.model import fit, share_use
from mpsctl.model.checked_values import ADMIT
from mpsctl.model.costs import Costs
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card, Demand
from mpsctl.model.quantity import Quantity
from mpsctl.model.share_use import ShareUse
from mpsctl.model.shares import NONE, Shares

SHORT, LONG = "short", "long"
_FIRST_PERCENTAGES = {SHORT: (30, 50), LONG: (70, 100)}
"""Where to begin: many short requests at once leave each other room, few long ones use the whole GPU in turn."""
_RULE = (2, 8)
"""Processes per GPU, as a rule."""
_LITTLE = Fraction(1, 20)
"""A limit that must shrink by at most this part for one more client misses by little: no reason against MPS."""
PYTORCH, TENSORFLOW, JAX, VLLM, SGLANG = "PyTorch", "TensorFlow", "JAX", "vLLM", "SGLang"
FRAMEWORK_MIB = 97
"""What a framework's own libraries take beside a bare context: of a limit of 2048 MiB PyTorch 2.11 found 1437 free
once it was up, a bare context leaves 1534 (H200, driver 580). vLLM refuses to start where less is free than it is
told to take. TensorFlow's was not measured; the same is left to it."""


@dataclass(frozen=True)
class Desired:
    """What is asked. ``limit_mib`` is the size of one process, its context included, ``share`` the same as it was
    written where that is a percentage; ``rates`` are the request rates of mixed models, one process each."""

    limit_mib: int
    clients: Optional[int] = None
    thread_percentage: Optional[float] = None
    latency: Optional[str] = None
    rates: tuple[int, ...] = ()
    synchronous: bool = False
    max_connections: Optional[str] = None
    share: Optional[Quantity] = None
    shares: Shares = NONE
    over_expected: str = ADMIT


@dataclass
class Plan:
    """The answer. ``thread_percentage`` None: not managed; ``rates`` are the percentages of mixed models; ``shares``
    are what those that were asked for come to, and ``over_expected`` what becomes of a client beyond them."""

    card: Card
    costs: Costs
    limit_mib: int
    most: int
    clients: int
    thread_percentage: Optional[float]
    rate_percentages: tuple[float, ...] = ()
    verdict: str = fit.FITS
    advised: bool = True
    lines: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    shares: list[ShareUse] = field(default_factory=list)
    over_expected: str = ADMIT

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "mps_advised": self.advised,
            "gpu_name": self.card.name,
            "memory_mib": self.card.memory_mib,
            "driver": self.card.driver,
            "clients": self.clients,
            "most_clients": self.most,
            "client_cap": fit.cap_of(self.card),
            "limit_mib": self.limit_mib,
            "thread_percentage": self.thread_percentage,
            "rate_percentages": list(self.rate_percentages),
            "context_mib": self.costs.context_mib,
            "server_mib": self.costs.server_mib,
            "reserved_mib": self.costs.reserved_mib,
            "costs_origin": self.costs.origin,
            "costs_borrowed": self.costs.borrowed,
            "costs_assumed": list(self.costs.assumed),
            "arithmetic": self.lines,
            "advice": self.advice,
            "warnings": self.warnings,
            "refusals": self.refusals,
            "hints": self.hints,
            "shares": [use.as_json() for use in self.shares],
            "over_expected": self.over_expected,
            "vars": self.variables,
        }

    @property
    def variables(self) -> dict[str, Any]:
        """The role's variables; those of the front door's places where there are any to hold."""
        shares = Shares(tuple(use.share for use in self.shares))
        return {
            "mps_device_memory_limit": f"{self.limit_mib}M",
            "mps_active_thread_percentage": self.thread_percentage,
            "mps_expected_clients": self.clients,
            **({"mps_over_expected": self.over_expected} if self.over_expected != ADMIT else {}),
            **({"mps_shares": shares.as_variable} if shares else {}),
        }


def choose_clients(card: Card, costs: Costs, desired: Desired) -> int:
    """The number that was asked for, or as many as fit within the rule of thumb and the largest share needs."""
    if desired.clients is not None:
        return desired.clients
    most = min(fit.most_by_memory(card, costs, desired.limit_mib), fit.cap_of(card))
    largest = desired.shares.largest
    return max(len(desired.rates) or max(1, min(most, _RULE[1])), largest.clients if largest is not None else 0)


def choose_percentage(desired: Desired, clients: int) -> Optional[float]:
    """The percentage for every client; None: no cap."""
    if desired.thread_percentage is not None:
        return desired.thread_percentage
    if desired.rates:
        return max(rate_percentages(desired.rates))
    if desired.latency is None:
        return None
    low, high = _FIRST_PERCENTAGES[desired.latency]
    # Twice its even share: a client may use what its neighbours leave idle.
    return float(min(high, max(low, 200 // clients)))


def rate_percentages(rates: Sequence[int]) -> tuple[float, ...]:
    """Percentages in proportion to request rates, to one decimal (what the daemon keeps), rounded down."""
    total = sum(rates)
    return tuple(max(1, 1000 * rate // total) / 10 for rate in rates)


def parse_rates(text: str) -> tuple[int, ...]:
    """``3:1`` as (3, 1).

    :raises BadValue: if it is anything else.
    """
    parts = text.split(":")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise BadValue(repr(text), "request rates of two models or more in proportion", "write for example 3:1")
    return tuple(map(int, parts))


def plan(card: Card, costs: Costs, desired: Desired) -> Plan:
    """The whole answer; ``costs`` are those at the percentage that choose_percentage gives."""
    clients = choose_clients(card, costs, desired)
    if desired.rates and clients < len(desired.rates):
        raise BadValue(
            f"{clients} clients for {len(desired.rates)} rates", "at least one client for each model", "raise --clients"
        )
    largest = desired.shares.largest
    if largest is not None and largest.clients > clients:
        raise BadValue(
            f"{largest} of {clients} clients", "no share above all clients", "lower the share, or raise --clients"
        )
    most = min(fit.most_by_memory(card, costs, desired.limit_mib), fit.cap_of(card))
    percentage = choose_percentage(desired, clients)
    found = Plan(card, costs, desired.limit_mib, most, clients, percentage)
    found.rate_percentages = rate_percentages(desired.rates) if desired.rates else ()
    demand = Demand(clients, desired.limit_mib, percentage, desired.max_connections, desired.share)
    verdict = fit.judge(card, costs, demand)
    found.verdict = verdict.word
    usable_mib = fit.usable_mib(card, costs)
    found.lines = [
        f"{card.memory_mib} MiB of {card.name} - {costs.reserved_mib} MiB reserved - {costs.server_mib} MiB server"
        f" = {usable_mib} MiB for clients",
        f"{usable_mib} MiB / {desired.limit_mib} MiB = {fit.counted(usable_mib // desired.limit_mib)} by memory;"
        f" the driver's cap is {fit.cap_of(card)}: at most {most}",
        *verdict.lines,
    ]
    found.warnings = list(verdict.warnings)
    found.refusals = [str(error) for _, error in verdict.refusals]
    if costs.caveat and not found.refusals:  # a refusal has it in its own line
        found.warnings.append(costs.caveat)
    found.over_expected = desired.over_expected
    found.shares = share_use.of((card, costs), demand, desired.shares)
    found.warnings += share_use.crowded(desired.shares, clients, [(card, costs)], demand)
    _advise_on_mps(found, desired)
    _advise_on_percentage(found, desired)
    found.hints = list(hints(card.memory_mib, desired.limit_mib, costs).values())
    return found


def _advise_on_mps(found: Plan, desired: Desired) -> None:
    share = Fraction(desired.limit_mib, found.card.memory_mib)
    percent = f"{float(share * 100):.0f} %"
    if desired.synchronous:
        found.advised = False
        found.advice.append(
            "against MPS: training across GPUs goes at the pace of its slowest rank, and NCCL refuses two ranks on one"
            " GPU; give each process a GPU of its own"
        )
    one_more = _one_more(found, desired)
    if one_more:
        if not found.refusals:  # else they name the limit
            # With one client there is nothing to share yet: that is told louder.
            (found.warnings if found.most == 1 else found.advice).append(one_more)
    elif found.most == 1 and share > Fraction(fit.LARGE_SHARE):
        found.advised = False
        found.advice.append(
            f"against MPS: one process takes {percent} of the memory, over {fit.LARGE_SHARE * 100:.0f} %, so that no"
            " second one of its size fits; give each a GPU of its own"
        )
    elif found.most == 1 and not found.refusals:
        found.advised = False
        found.advice.append("against MPS: only one process of this size fits, so there is nothing to share")
    if found.most > 1 and not found.refusals and not desired.synchronous:
        if Fraction(1, 10) <= share <= Fraction(1, 5):
            found.advice.append(f"for MPS: {percent} of the memory each, without traffic across GPUs, is its best case")
        found.advice.append(f"{_RULE[0]} to {_RULE[1]} processes per GPU are the rule; measure before going further")
    if found.verdict == fit.FITS and (found.warnings or not found.advised):
        found.verdict = fit.WARNS


def _one_more(found: Plan, desired: Desired) -> Optional[str]:
    """The limit with which one more client fits, where this one misses it by little."""
    card, costs, more = found.card, found.costs, found.most + 1
    if not 1 < more <= _RULE[1]:
        return None
    limit = fit.largest_limit([(card, costs)], more, desired.share is not None)
    if limit is None:
        return None
    # Shares that add up to the whole miss only what the server and the driver hold, much of a small GPU.
    within_memory = more * desired.limit_mib <= card.memory_mib
    if not within_memory and limit.on(card.memory_mib) < (1 - _LITTLE) * desired.limit_mib:
        return None
    missing_mib = more * desired.limit_mib - fit.usable_mib(card, costs)
    return (
        f"{more} clients of {desired.limit_mib} MiB miss by {missing_mib} MiB: with a limit of at most {limit}"
        f" {more} fit"
    )


def _advise_on_percentage(found: Plan, desired: Desired) -> None:
    percentage, clients = found.thread_percentage, found.clients
    if found.rate_percentages:
        shares = ", ".join(
            f"model {number} (rate {rate}): {percent:g} %"
            for number, (rate, percent) in enumerate(zip(desired.rates, found.rate_percentages), 1)
        )
        found.advice.append(
            f"percentages in proportion to the request rates: {shares}; the instance has the highest, the others are"
            " started by `mpsctl run --threads`"
        )
    elif desired.thread_percentage is None and desired.latency is not None:
        low, high = _FIRST_PERCENTAGES[desired.latency]
        kind = "short requests at high concurrency" if desired.latency == SHORT else "long requests at low concurrency"
        found.advice.append(f"{percentage:g} % to begin with: {low} to {high} for {kind}")
    if percentage is None:
        found.advice.append("no thread percentage: every client may use the whole GPU while the others are idle")
        return
    found.advice.append(
        f"a percentage caps and lends nothing: a client alone on the GPU still gets {percentage:g} % of it"
    )
    if clients > 1 and percentage * clients <= 100:
        even = Fraction(100, clients)
        whole = int(even)
        lost = (
            f"; in whole percents {100 - whole * clients} % are lost ({clients} x {whole} %)" if even != whole else ""
        )
        found.advice.append(
            f"{clients} x {percentage:g} % = {percentage * clients:g} %: 100/{clients} divides the GPU, and what one"
            f" leaves idle nobody gets{lost}"
        )


def hints(memory_mib: int, limit_mib: int, costs: Costs) -> dict[str, str]:
    """What frameworks that take the whole GPU must be told; MPS does not change the total that a process sees.

    ``memory_mib`` is the GPU's memory as NVML tells it. What a framework may take is the limit without the context
    and without FRAMEWORK_MIB. A line by framework, which begins with its name; empty where nothing is left to take.
    JAX takes its fraction of the total since jaxlib 0.4.1 (its release notes), SGLang of what was free before the model
    was loaded (its source, `mem_fraction_static`).
    """
    own_mib, total_mib = limit_mib - costs.context_mib - FRAMEWORK_MIB, costs.cuda_total_mib(memory_mib)
    if own_mib <= 0 or 10_000 * own_mib < total_mib:
        return {}
    fraction = _fraction(own_mib, total_mib)
    sums = (
        f"({limit_mib} MiB limit - {costs.context_mib} MiB context - {FRAMEWORK_MIB} MiB for the framework's libraries)"
    )
    of_total = f"{sums} / {total_mib} MiB"
    told = {
        PYTORCH: "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 and torch.cuda.set_per_process_memory_fraction"
        f"({fraction}): a fraction of the whole card, {of_total}",
        TENSORFLOW: f"TF_FORCE_GPU_ALLOW_GROWTH=true, or a logical device with memory_limit={own_mib}: {sums}",
        JAX: f"XLA_CLIENT_MEM_FRACTION={fraction} (before that name XLA_PYTHON_CLIENT_MEM_FRACTION): {of_total}; it"
        " takes all of it at its first operation",
        VLLM: f"--gpu-memory-utilization {fraction}: {of_total}; it does not start where less is free",
        SGLANG: "nothing; --mem-fraction-static is a part of what is free under the limit",
    }
    return {framework: f"{framework}: {line}" for framework, line in told.items()}


def _fraction(part_mib: int, total_mib: int) -> str:
    """Rounded down to four decimals: rounded up it would pass the limit."""
    return f"{10_000 * part_mib // total_mib / 10_000:.4f}"


def as_text(found: Plan) -> str:
    percentage = "no thread percentage" if found.thread_percentage is None else f"{found.thread_percentage:g} %"
    mps = "" if found.advised else ", MPS is not advised"
    head = (
        f"{found.verdict}: {found.clients} process{'es' if found.clients != 1 else ''} of {found.limit_mib} MiB on"
        f" {found.card.name} (driver {found.card.driver or 'not known'}), {percentage}; at most {found.most} fit{mps}"
    )
    blocks = [
        ("arithmetic", found.lines),
        ("shares", [str(use) for use in found.shares]),
        ("refused", found.refusals),
        ("warnings", found.warnings),
        ("advice", found.advice),
        ("frameworks", found.hints),
    ]
    lines = [head]
    for title, entries in blocks:
        if entries:
            lines += [f"{title}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def as_vars(found: Plan) -> str:
    """YAML to paste; what speaks against it stands in comments."""
    lines = [f"# {found.verdict}: {line}" for line in found.lines[2:]]
    lines += [f"# {line}" for line in [*found.refusals, *found.warnings]]
    for name, value in found.variables.items():
        lines.append(f"{name}: {_as_yaml(value)}")
    return "\n".join(lines)


def _as_yaml(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value)  # YAML as well
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
