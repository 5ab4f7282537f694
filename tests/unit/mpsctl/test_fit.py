"""What fits on a GPU: the arithmetic, the figures it is done with, and what is refused before anything is changed."""

from __future__ import annotations

import json
import re
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import H200_MIB, Host, h200, split_by_mig
from mpsctl.converge import reconcile
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request
from mpsctl.model import costs, fit
from mpsctl.model.costs import Costs, Measurement
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.fit import CLIENTS, LIMIT, Card, Demand, judge
from mpsctl.model.gpu import Device
from mpsctl.model.quantity import Quantity, parse
from mpsctl.model.shipped_costs import SHIPPED
from mpsctl.store import fitting, measured

H200 = Card("NVIDIA H200", H200_MIB, "580.159.04")
T4 = Card("Tesla T4", 15_360, "580.159.04")
OWN = Costs(514, 66, 616, 515, "measured on this host")
BORROWED = Costs(
    514, 66, 616, 515, "measured on an H200", "measured on another GPU model (NVIDIA H200)", (costs.RESERVE,)
)


def keys(verdict: fit.Verdict) -> list[str]:
    return [key for key, _ in verdict.refusals]


# -- properties


figures = st.builds(
    lambda context, server, reserved, least, borrowed: Costs(
        context, server, reserved, context + least, "somewhere", borrowed
    ),
    st.integers(1, 2_000), st.integers(0, 500), st.integers(0, 1_000), st.integers(0, 2),
    st.sampled_from([None, "measured on another GPU model (NVIDIA H200)"]),
)  # fmt: skip
limits = st.one_of(
    st.none(),
    st.integers(1, 300_000).map(lambda mib: parse(f"{mib}M")),
    st.integers(1, 100_000).map(lambda thousandths: parse(f"{thousandths / 1000:g}%")),
)
demands = st.tuples(st.one_of(st.none(), st.integers(1, 100)), limits)


def demand_of(card: Card, clients: Optional[int], limit: Optional[Quantity]) -> Demand:
    share = limit if limit is not None and limit.mib is None else None
    return Demand(clients, None if limit is None else limit.on(card.memory_mib), share=share)


@given(st.integers(1_000, 300_000), figures, demands)
def test_what_fits_fits_and_what_is_refused_does_not(
    memory_mib: int, costs: Costs, asked: tuple[Optional[int], Optional[Quantity]]
) -> None:
    card = Card("a GPU", memory_mib, "580.1")
    demand = demand_of(card, *asked)
    verdict = judge(card, costs, demand)
    clients, limit_mib = demand.clients or 1, demand.limit_mib
    counts = demand.clients is not None or limit_mib is not None
    each_mib = costs.context_mib if limit_mib is None else limit_mib
    sum_fits = clients * each_mib + costs.server_mib + costs.reserved_mib <= memory_mib
    too_low = limit_mib is not None and limit_mib < costs.least_limit_mib
    refused = (counts and not sum_fits) or clients > fit.CAP or (too_low and costs.borrowed is None)
    assert (verdict.word == fit.REFUSED) == refused
    assert verdict.warnings or not (too_low and costs.borrowed)
    assert all("\n" not in str(error) for _, error in verdict.refusals)


NUMBER, LIMIT_IN_WORDS = re.compile(r"at most (\d+) client"), r"(\d+M|[\d.]+%)"


def suggestions(remedy: str, clients: Optional[int], limit: Optional[Quantity]) -> list[tuple[int, Optional[Quantity]]]:
    """What a refusal's last part says would fit, read as a person reads it."""
    number = NUMBER.search(remedy)
    fewer = int(number[1]) if number else None
    found = re.findall(rf"a limit (?:of at most|of|from {LIMIT_IN_WORDS} to) {LIMIT_IN_WORDS}", remedy)
    named = [parse(text) for pair in found for text in pair if text]
    if "no limit makes" in remedy:
        assert fewer is not None
        return [(fewer, one) for one in named]
    return [*([(fewer, limit)] if fewer else []), *((clients or 1, one) for one in named)]


@given(st.lists(st.tuples(st.integers(1_000, 300_000), figures), min_size=1, max_size=3), demands)
def test_what_is_suggested_is_judged_to_fit_on_every_device_and_no_more_does(
    devices: list[tuple[int, Costs]], asked: tuple[Optional[int], Optional[Quantity]]
) -> None:
    places = [(Card(f"GPU {number}", mib, "580.1"), costs) for number, (mib, costs) in enumerate(devices)]
    clients, limit = asked

    def refused(clients: Optional[int], limit: Optional[Quantity]) -> list[str]:
        verdicts = [judge(card, costs, demand_of(card, clients, limit), places) for card, costs in places]
        return [error.remedy for verdict in verdicts for _, error in verdict.refusals]

    for remedy in refused(clients, limit):
        offered = suggestions(remedy, clients, limit)
        for number, quantity in offered:
            assert refused(number, quantity) == []
        if not offered:
            assert remedy.startswith("no client fits")
            least_mib = None if limit is None else max(costs.least_limit_mib for _, costs in places)
            words = [judge(card, costs, Demand(1, least_mib), places).word for card, costs in places]
            assert fit.REFUSED in words
        for number, quantity in offered[-1:] if "limit of" in remedy or "limit from" in remedy else ():
            assert quantity is not None
            if quantity.mib is not None:
                assert refused(number, Quantity("", mib=quantity.mib + 1))
            elif quantity.thousandths_percent != 100_000:
                assert refused(number, Quantity("", thousandths_percent=(quantity.thousandths_percent or 0) + 1))


@given(st.integers(1_000, 300_000), st.integers(1, 60), figures)
def test_the_largest_limit_is_the_largest(memory_mib: int, clients: int, costs: Costs) -> None:
    card = Card("a GPU", memory_mib, "590.1")
    for in_percent in (False, True):
        largest = fit.largest_limit([(card, costs)], clients, in_percent)
        if largest is None:
            least = Demand(clients, costs.least_limit_mib)
            assert judge(card, costs, least).word == fit.REFUSED
            continue
        assert parse(largest.text) == largest
        assert judge(card, costs, demand_of(card, clients, largest)).refusals == []
        more_mib = largest.on(memory_mib) + (1 if largest.mib is not None else 1 + memory_mib // 100_000)
        assert judge(card, costs, Demand(clients, more_mib)).word == fit.REFUSED


@given(st.integers(1, 60), st.integers(1, 300_000))
def test_more_clients_never_fit_better(clients: int, limit_mib: int) -> None:
    order = [fit.FITS, fit.WARNS, fit.REFUSED]
    fewer, more = (judge(H200, OWN, Demand(n, limit_mib)).word for n in (clients, clients + 1))
    assert order.index(fewer) <= order.index(more)


@given(
    st.lists(st.builds(Measurement, st.sampled_from("AB"), st.sampled_from(["580.159", "550.1"]),
                       st.sampled_from([25.0, 50.0, 100.0]), st.integers(1, 999)), max_size=6),
    st.sampled_from("ABC"), st.sampled_from(["580.159.04", "550.1", None]), st.floats(1, 100),
)  # fmt: skip
def test_figures_are_own_only_for_this_model_and_driver_and_never_of_fewer_multiprocessors(
    known: list[Measurement], name: str, driver: Optional[str], percentage: float
) -> None:
    found = costs.find(known, name, driver, percentage)
    mine = [
        one
        for one in known
        if (one.gpu_name, one.driver) == (name, costs.driver_key(driver)) and one.thread_percentage >= percentage
    ]
    assert (found.borrowed is None) == bool(mine)
    if mine:
        assert found.context_mib in {one.context_mib for one in mine}


# -- lines


def test_the_arithmetic_is_written_out_with_units() -> None:
    lines = judge(H200, OWN, Demand(8, 4096)).lines
    assert "one client: 4096 MiB limit - 514 MiB context = 3582 MiB to allocate (measured on this host)" in lines
    assert (
        "8 clients x 4096 MiB limit + 66 MiB server + 616 MiB reserved = 33450 MiB <= 143771 MiB of NVIDIA H200"
        in lines
    )
    assert "8 clients <= 48 client contexts per GPU (driver 580.159.04)" in lines


def test_a_refusal_names_what_would_fit() -> None:
    [(key, error)] = judge(H200, OWN, Demand(40, 4096)).refusals
    assert key == CLIENTS
    assert "= 164522 MiB > 143771 MiB" in error.found
    assert error.remedy == "at most 34 clients, or a limit of at most 3577M"
    assert judge(H200, OWN, Demand(40, 3578)).refusals
    assert judge(H200, OWN, Demand(34, 4096)).word == fit.WARNS  # past 16
    assert judge(H200, OWN, Demand(40, 3577)).refusals == []


@pytest.mark.parametrize(
    ("limit_mib", "figures", "word"),
    [(514, OWN, "refused"), (515, OWN, "fits"), (514, BORROWED, "warns"), (20, OWN, "refused"), (640, OWN, "fits")],
)
def test_a_limit_with_which_no_client_starts(limit_mib: int, figures: Costs, word: str) -> None:
    assert judge(H200, figures, Demand(None, limit_mib)).word == word


def test_contexts_alone_may_not_fit() -> None:
    small = Card("small", 4_096, "580.1")
    [(key, error)] = judge(small, OWN, Demand(8)).refusals
    assert (key, error.remedy) == (CLIENTS, "at most 6 clients")
    assert judge(small, OWN, Demand(6)).word == fit.FITS
    [(_, error)] = judge(Card("tiny", 1_000, "580.1"), OWN, Demand(1)).refusals
    assert error.remedy == "no client fits: take a GPU with more memory"


@pytest.mark.parametrize("figures", [OWN, BORROWED])
@pytest.mark.parametrize(
    ("card", "clients", "share", "remedy"),
    [
        (H200, 2, "50%", "at most 1 client, or a limit of at most 49.763%"),
        (T4, 2, "50%", "at most 1 client, or a limit of at most 47.786%"),
        (T4, 4, "25%", "at most 3 clients, or a limit of at most 23.893%"),
        (H200, None, "100%", "a limit of at most 99.526%"),
        (T4, 40, "20%", "at most 4 clients"),
    ],
)
def test_shares_of_the_whole_are_refused_whosever_the_figures_are(
    card: Card, clients: Optional[int], share: str, remedy: str, figures: Costs
) -> None:
    [(key, error)] = judge(card, figures, demand_of(card, clients, parse(share))).refusals
    assert key == (LIMIT if clients is None else CLIENTS)
    assert f"MiB limit ({share}) + 66 MiB server + 616 MiB reserved = " in error.found
    said, _, whose = error.remedy.partition("; ")
    assert said == remedy
    assert ("another GPU model (NVIDIA H200)" in whose and "`mpsctl measure`" in whose) == (figures is BORROWED)


def test_a_number_that_no_limit_makes_fit_is_told_with_one_that_does() -> None:
    [*_, (_, error)] = judge(T4, OWN, Demand(40, 400)).refusals
    assert error.remedy.startswith("no limit makes 40 clients fit: at most 28 clients, with a limit from 515M to 524M")
    assert judge(T4, OWN, Demand(28, 524)).refusals == []


def test_a_driver_without_limits_gets_no_limit_suggested() -> None:
    old = Card("Tesla V100", 16_160, "470.182.03")
    found = judge(old, OWN, Demand(60, 8192)).refusals
    assert [key for key, _ in found] == [LIMIT, CLIENTS, CLIENTS]
    assert found[1][1].remedy == "at most 30 clients"
    assert "set no limit" in found[0][1].remedy


# -- caps (B18: more clients than the driver takes, or fewer by CUDA_DEVICE_MAX_CONNECTIONS)


@pytest.mark.parametrize(
    ("driver", "pre_volta", "cap"),
    [
        ("580.159.04", False, 48),
        ("589.1", False, 48),
        ("590.44", False, 60),
        ("615.71.09", False, 60),
        ("535.261.03", False, 48),
        (None, False, 48),
        ("590.44", True, 16),
        ("535.261.03", True, 16),
    ],
)
def test_the_cap_of_a_driver(driver: Optional[str], pre_volta: bool, cap: int) -> None:
    card = Card("a GPU", 10**6, driver, pre_volta)
    assert fit.cap_of(card) == cap
    assert keys(judge(card, OWN, Demand(cap, 1024))) == []
    assert keys(judge(card, OWN, Demand(cap + 1, 1024))) == [CLIENTS]


@pytest.mark.parametrize(
    ("clients", "says"), [(16, []), (17, ["2 to 8"]), (43, ["2 to 8"]), (44, ["2 to 8", "near the cap of 48"])]
)
def test_many_clients_and_a_near_cap_are_warned_of(clients: int, says: list[str]) -> None:
    warnings = judge(H200, OWN, Demand(clients, 1024)).warnings
    assert len(warnings) == len(says)
    assert all(part in warning for part, warning in zip(says, warnings))


@pytest.mark.parametrize(
    ("text", "warned"), [(None, False), ("1", False), ("2", False), ("3", True), ("8", True), ("32", True), ("x", True)]
)
def test_max_connections_above_two_lowers_the_cap_by_an_unknown_number(text: Optional[str], warned: bool) -> None:
    warnings = judge(H200, OWN, Demand(4, 1024, max_connections=text)).warnings
    assert [f"CUDA_DEVICE_MAX_CONNECTIONS={text}" in one and "not documented" in one for one in warnings] == (
        [True] if warned else []
    )


def test_a_mig_device_has_an_unknown_part_of_the_cap() -> None:
    assert "in proportion" in judge(Card("1g.18gb", 16_384, "580.1", mig=True), OWN, Demand(2, 1024)).warnings[0]


# -- B57: memory limits before CUDA 11.5


@pytest.mark.parametrize(
    ("driver", "refused"), [("470.182.03", True), ("494.1", True), ("495.29", False), ("535.1", False), (None, False)]
)
def test_memory_limits_need_a_driver_that_knows_them(driver: Optional[str], refused: bool) -> None:
    card = Card("Tesla V100", 32_768, driver)
    assert keys(judge(card, BORROWED, Demand(None, 4096))) == ([LIMIT] if refused else [])
    assert judge(card, BORROWED, Demand(4)).word == fit.FITS


# -- what fits on no GPU


@pytest.mark.parametrize(
    ("limit", "clients", "good"),
    [
        ("20%", 5, True),
        ("20%", 6, False),
        ("33.333%", 3, True),
        ("33.4%", 3, False),
        ("4G", 60, True),
        (None, 61, False),
        (None, 60, True),
        ("50%", None, True),
    ],
)
def test_what_fits_on_no_gpu_is_refused_without_one(limit: Optional[str], clients: Optional[int], good: bool) -> None:
    quantity = None if limit is None else parse(limit)
    if good:
        fit.refuse_anywhere(quantity, clients)
    else:
        with pytest.raises(BadValue):
            fit.refuse_anywhere(quantity, clients)


# -- figures


def test_the_shipped_figures_say_what_they_were_measured_on() -> None:
    for one in SHIPPED:
        assert one.measured_on == "an H200, driver 580.159.04"
    assert costs.find(SHIPPED, "NVIDIA H200", "580.159.04", 100).context_mib == 514
    half = costs.find(SHIPPED, "NVIDIA H200", "580.159.04", 50)
    assert (half.context_mib, half.server_mib, half.reserved_mib, half.borrowed) == (271, 66, 616, None)
    assert costs.find(SHIPPED, "NVIDIA H200", "580.159.04", 30).context_mib == 271
    assert costs.find(SHIPPED, "NVIDIA H200", "580.159.04", 51).context_mib == 514
    assert "not with 590.1" in str(costs.find(SHIPPED, "NVIDIA H200", "590.1", 50).borrowed)
    other = costs.find(SHIPPED, "Tesla T4", "580.159.04", 50)
    assert "another GPU model" in str(other.borrowed)
    assert (other.reserved_mib, other.assumed) == (616, (costs.RESERVE,))
    assert "the driver's reserve is counted as on an H200 with driver 580" in str(other.caveat)
    assert other.cuda_total_mib(15_360) == 15_360
    assert half.cuda_total_mib(H200_MIB) == 143_155
    assert half.caveat is None


def test_without_any_figure_there_is_still_one_to_reckon_with() -> None:
    found = costs.find([], "Tesla T4", None, 50)
    assert found.borrowed
    assert found.reserved_mib == 616


def test_what_one_measurement_could_not_tell_is_taken_from_the_model_else_assumed_and_told() -> None:
    own = Measurement("Tesla T4", "580.159", 100.0, 105)
    assert costs.find([own], "Tesla T4", "580.1", 100).borrowed
    found = costs.find([own, *SHIPPED], "Tesla T4", "580.159.04", 100)
    assert (found.borrowed, found.server_mib, found.reserved_mib) == (None, 66, 616)
    assert str(found.caveat).startswith("the server's size and the driver's reserve are counted as on an H200")
    older = Measurement("Tesla T4", "550.1", 100.0, 105, 30, reserved_mib=266)
    assert costs.find([own, older], "Tesla T4", "580.159.04", 100).caveat is None


def test_this_hosts_own_figures_go_before_the_shipped_ones(host: Host) -> None:
    assert measured.costs_of(host.world, "NVIDIA H200", "580.159.04", 50).context_mib == 271
    measured.keep(host.world, [Measurement("NVIDIA H200", "580.159", 100.0, 600, 70)])
    own = measured.costs_of(host.world, "NVIDIA H200", "580.159.04", 50)
    assert (own.context_mib, own.server_mib, own.borrowed) == (600, 70, None)
    measured.keep(host.world, [Measurement("NVIDIA H200", "580.159", 100.0, 601, 70)])
    assert [one.context_mib for one in measured.read(host.world)] == [601]
    assert measured.costs_of(host.world, "NVIDIA L40S", "580.159.04", None).borrowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 2, "measured": []}',
        '{"format": 1, "measured": 5}',
        '{"format": 1, "measured": [5, {"gpu_name": "x"}, {"gpu_name": 1, "driver": 2}]}',
        '{"format": 1, "measured": [{"gpu_name": "x", "driver": "1", "thread_percentage": "a", "context_mib": -1}]}',
    ],
)
def test_a_broken_file_of_figures_counts_as_none(host: Host, text: str) -> None:
    host.places.measured.parent.mkdir(parents=True)
    host.places.measured.write_text(text)
    assert measured.read(host.world) == []
    assert measured.costs_of(host.world, "NVIDIA H200", "580.159.04", None).context_mib == 514


# -- reconcile refuses before anything is changed


WAIT: dict[str, Any] = {"OverExpected": "wait"}


def answer(host: Host, check: bool = False, **values: object) -> Answer:
    request = Request((), (("0", host.conf("0", values)),))
    return reconcile.reconcile(host.world, request, check)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("values", "variable", "says"),
    [
        ({"DeviceMemoryLimit": "4G", "ExpectedClients": 40}, "mps_expected_clients", "164522 MiB > 143771 MiB"),
        ({"DeviceMemoryLimit": "20%", "ExpectedClients": 5}, "mps_expected_clients", "a limit of at most 19.905%"),
        ({"DeviceMemoryLimit": "50%", "ExpectedClients": 2}, "mps_expected_clients", "a limit of at most 49.763%"),
        ({"DeviceMemoryLimit": "100%"}, "mps_device_memory_limit", "a limit of at most 99.526%"),
        ({"ExpectedClients": 49}, "mps_expected_clients", "at most 48"),
        ({"DeviceMemoryLimit": "514M"}, "mps_device_memory_limit", "at least 515 MiB"),
        ({"DeviceMemoryLimit": "20M"}, "mps_device_memory_limit", "at least 515 MiB"),
        ({"DeviceMemoryLimit": "200G"}, "mps_device_memory_limit", "at most the 143771 MiB"),
        ({**WAIT, "DeviceMemoryLimit": "4G", "ExpectedClients": 40}, "mps_expected_clients", "at most 34 clients"),
        (
            {**WAIT, "DeviceMemoryLimit": "4G", "Shares": "each-user=40 each-unit=1"},
            "mps_shares",
            "found each-user=40: ",
        ),
        (
            {**WAIT, "DeviceMemoryLimit": "4G", "Shares": "unit:a.slice=35"},
            "mps_shares",
            "at most 34 clients, or a limit",
        ),
        ({**WAIT, "DeviceMemoryLimit": "20%", "Shares": "user:0=5"}, "mps_shares", "a limit of at most 19.905%"),
        ({**WAIT, "Shares": "each-container=49"}, "mps_shares", "at most 48"),
        ({"ExpectedClients": "many"}, "mps_expected_clients", "a whole number"),
        ({"ExpectedClients": 0}, "mps_expected_clients", "a whole number"),
    ],
)
def test_a_plan_that_cannot_fit_changes_nothing(
    host: Host, values: dict[str, object], variable: str, says: str, check: bool
) -> None:
    found = answer(host, check, **values)
    assert found.refused is not None
    assert found.refused.startswith(f"{variable}: found ")
    assert says in found.refused
    assert not found.changed
    assert not found.actions
    assert host.systemd.acts == []
    assert not host.places.conf("0").exists()
    assert found.does_not_fit == ("whole number" not in says), "bad input stops a whole fleet"


def test_the_percentage_decides_which_limit_is_enough(host: Host) -> None:
    assert answer(host, True, DeviceMemoryLimit="400M").refused
    assert answer(host, True, DeviceMemoryLimit="400M", ActiveThreadPercentage=50).refused is None


def test_a_plan_that_fits_is_carried_out_with_its_warnings(host: Host) -> None:
    found = answer(host, DeviceMemoryLimit="4G", ExpectedClients=20)
    assert (found.refused, found.error) == (None, None)
    assert [one for one in found.warnings if one.startswith("instance 0, mps_expected_clients: 20 clients")]
    assert "ExpectedClients=20" in host.places.conf("0").read_text()
    assert not answer(host, DeviceMemoryLimit="4G", ExpectedClients=20).changed


def test_with_figures_of_another_gpu_a_sum_refuses_and_a_low_limit_warns(host: Host) -> None:
    host.nvml.all = [h200(0, name="Tesla T4", memory_mib=15_360, compute_capability=(7, 5))]
    found = answer(host, True, DeviceMemoryLimit="400M")
    assert found.refused is None
    assert "`mpsctl measure` gives this host's own figures" in found.warnings[0]
    refused = str(answer(host, True, DeviceMemoryLimit="50%", ExpectedClients=2).refused)
    assert refused.startswith("mps_expected_clients: found 2 clients x 7680 MiB limit (50%) + 66 MiB server + 616 MiB")
    assert "a limit of at most 47.786%; what a context and the server take was measured on another GPU model" in refused
    assert answer(host, True, DeviceMemoryLimit="47.786%", ExpectedClients=2).refused is None
    measured.keep(host.world, [Measurement("Tesla T4", "580.159", 100.0, 105, 30, reserved_mib=266)])
    assert answer(host, True, DeviceMemoryLimit="400M").warnings == []
    assert answer(host, True, DeviceMemoryLimit="100M").refused
    assert "a limit of at most 49.042%" in str(answer(host, True, DeviceMemoryLimit="50%", ExpectedClients=2).refused)


def test_each_device_of_an_instance_is_reckoned_by_itself(host: Host) -> None:
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    found = answer(host, True, GPUs="0 1", DeviceMemoryLimit="4G", ExpectedClients=4)
    assert found.refused is not None
    assert "Tesla T4" in found.refused
    assert "GPU 1" in found.refused


def test_what_is_suggested_for_one_device_fits_on_the_smaller_one_too(host: Host) -> None:
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    refused = str(answer(host, True, GPUs="0 1", DeviceMemoryLimit="14G", ExpectedClients=11).refused)
    assert " of NVIDIA H200" in refused
    assert "or a limit of at most 1334M" in f"or {refused.partition('; ')[2]}"
    assert answer(host, True, GPUs="0 1", DeviceMemoryLimit="1334M", ExpectedClients=11).refused is None


@pytest.mark.parametrize("values", [{"Shares": "user:nobodys=1"}, {"Shares": "user:0=1 user:root=1"}])
def test_a_share_of_nobody_is_bad_input_and_not_a_matter_of_gpus(host: Host, values: dict[str, Any]) -> None:
    found = answer(host, **WAIT, **values)
    assert str(found.refused).startswith("mps_shares: found ")
    assert not found.does_not_fit
    assert not host.places.conf("0").exists()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"ExpectedClients": 8, "Shares": "unit:a.service=4 unit:b.slice=4 each-user=8"}, []),
        (
            {"ExpectedClients": 7, "Shares": "unit:a.service=4 unit:b.slice=4"},
            ["units add up to 8 clients, and 7"],
        ),
        ({"ExpectedClients": 3, "Shares": "user:0=2 user:1=2 unit:a.service=3"}, ["users add up to 4 clients, and 3"]),
        ({"Shares": "unit:a.service=30 unit:b.service=4"}, []),
        ({"Shares": "unit:a.service=30 unit:b.service=5"}, ["units add up to 35 clients, 34 fit, and nothing holds"]),
    ],
)
@pytest.mark.wording
def test_shares_that_add_up_to_more_are_told_and_not_refused(
    host: Host, values: dict[str, Any], told: list[str]
) -> None:
    found = answer(host, DeviceMemoryLimit="4G", **WAIT, **values)
    assert (found.refused, found.error) == (None, None)
    lines = [line for line in found.warnings if "mps_shares" in line and "add up" in line]
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines))


def test_a_share_fits_on_the_smallest_of_an_instances_gpus(host: Host) -> None:
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    values = {"GPUs": "0 1", "DeviceMemoryLimit": "4G", **WAIT}
    refused = str(answer(host, True, **values, Shares="each-user=4").refused)
    assert refused.startswith("mps_shares: found each-user=4: 4 clients x 4096 MiB limit")
    assert "at most 3 clients" in refused
    assert answer(host, True, **values, Shares="each-user=3").refused is None


def test_a_device_whose_memory_is_not_told_is_not_reckoned_and_hides_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [h200(0), h200(1)]
    devices = [Device(gpu) for gpu in gpus]
    monkeypatch.setattr(fitting, "memory_mib", lambda device: None if device.gpu.index == 0 else device.memory_mib)

    def judged(limit: Optional[str], clients: Optional[int]) -> list[fit.Verdict]:
        quantity = None if limit is None else parse(limit)
        return fitting.judge_limit(host.world, quantity, clients, None, devices, "580.159.04")

    untold, told = judged("4G", 40)
    assert (untold.refusals, keys(told)) == ([], [CLIENTS])
    assert any("NVML does not tell the memory of GPU 0" in one for one in untold.warnings)
    assert [keys(one) for one in judged("20%", 4)] == [[LIMIT], []]
    assert [keys(one) for one in judged("4G", 49)] == [[CLIENTS], [CLIENTS, CLIENTS]]
    with pytest.raises(NotReady, match="does not tell the memory"):
        fitting.card(devices[0], None)


def test_a_mig_device_is_no_whole_gpu(host: Host) -> None:
    host.nvml.all[0] = split_by_mig(0)
    mig = host.nvml.all[0].mig_devices[0].uuid
    found = answer(host, True, GPUs=mig, DeviceMemoryLimit="400M", ExpectedClients=2)
    assert found.refused is None
    assert any("measured on another GPU model (NVIDIA H200)" in one for one in found.warnings)
    assert "at most 30 clients" in str(answer(host, True, GPUs=mig, ExpectedClients=40).refused)


def test_pre_volta_takes_16_clients(host: Host) -> None:
    host.nvml.all = [h200(0, name="Tesla P4", memory_mib=24_576, compute_capability=(6, 1))]
    assert "at most 16" in str(answer(host, True, ExpectedClients=17).refused)


def test_nothing_is_read_where_nothing_is_desired(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> object:
        raise AssertionError

    monkeypatch.setattr(measured, "costs_of", forbidden)
    assert answer(host, True, ActiveThreadPercentage=50).error is None


def test_the_file_of_figures_is_readable_json(host: Host) -> None:
    measured.keep(host.world, SHIPPED)
    rows = json.loads(host.places.measured.read_text())["measured"]
    assert [re.sub(r"\..*", "", row["driver"]) for row in rows] == ["580", "580"]
