"""Plans: how many processes of a size, with which limit and percentage, and when MPS is no good."""

from __future__ import annotations

import json
import re
from typing import Optional

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes import H200_MIB, Host, h200
from mpsctl.model import plan as plans
from mpsctl.model.checked_values import check_expected_clients, check_thread_percentage
from mpsctl.model.costs import Costs
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card
from mpsctl.model.plan import Desired, Plan
from mpsctl.model.quantity import parse
from mpsctl.observe import planning as planning

H200 = Card("NVIDIA H200", H200_MIB, "580.159.04")
T4 = Card("Tesla T4", 15_360, "550.163.01")


def plan(host: Host, card: Card = H200, limit_mib: int = 4096, **more: object) -> Plan:
    return planning.plan(host.world, card, Desired(limit_mib, **more))  # type: ignore[arg-type]


def test_a_plan_for_an_h200_with_the_arithmetic(host: Host) -> None:
    found = plan(host)
    assert (found.verdict, found.clients, found.most, found.advised) == ("fits", 8, 34, True)
    text = plans.as_text(found)
    assert "143771 MiB of NVIDIA H200 - 616 MiB reserved - 66 MiB server = 143089 MiB for clients" in text
    assert "143089 MiB / 4096 MiB = 34 clients by memory; the driver's cap is 48: at most 34" in text
    assert "8 clients x 4096 MiB limit + 66 MiB server + 616 MiB reserved = 33450 MiB <= 143771 MiB" in text
    assert "2 to 8 processes per GPU are the rule" in text


def test_a_plan_for_a_t4_says_that_its_figures_are_borrowed(host: Host) -> None:
    found = plan(host, T4, 3072)
    assert (found.verdict, found.clients, found.most) == ("warns", 4, 4)
    assert "15360 MiB of Tesla T4 - 66 MiB server = 15294 MiB for clients" in found.lines
    assert any("another GPU model" in warning for warning in found.warnings)
    assert any(advice.startswith("for MPS: 20 %") for advice in found.advice)


@pytest.mark.parametrize(
    ("latency", "clients", "percentage"),
    [("short", 2, 50), ("short", 5, 40), ("short", 8, 30), ("short", 20, 30), ("long", 2, 100), ("long", 3, 70)],
)
def test_first_percentages(host: Host, latency: str, clients: int, percentage: float) -> None:
    found = plan(host, limit_mib=2048, latency=latency, clients=clients)
    assert found.thread_percentage == percentage
    assert any("caps and lends nothing" in advice for advice in found.advice)


def test_mixed_models_get_percentages_by_their_rates(host: Host) -> None:
    found = plan(host, rates=(3, 1))
    assert (found.clients, found.thread_percentage, found.rate_percentages) == (2, 75.0, (75.0, 25.0))
    assert any("model 1 (rate 3): 75 %, model 2 (rate 1): 25 %" in advice for advice in found.advice)
    with pytest.raises(BadValue, match="1 clients for 2 rates"):
        plan(host, rates=(3, 1), clients=1)


@pytest.mark.parametrize("text", ["", "3", "3:", ":1", "3:0", "3:-1", "a:b", "3:1.5", "3,1", "²:1"])
def test_rates_are_whole_numbers(text: str) -> None:
    with pytest.raises(BadValue):
        plans.parse_rates(text)


# -- B11: 100/n divides the GPU


@pytest.mark.parametrize(("clients", "percentage", "lost"), [(3, 33.0, "1 %"), (7, 14.0, "2 %"), (8, 12.5, "4 %")])
def test_a_percentage_of_100_over_n_is_explained(host: Host, clients: int, percentage: float, lost: str) -> None:
    advice = " ".join(plan(host, limit_mib=2048, clients=clients, thread_percentage=percentage).advice)
    assert f"100/{clients} divides the GPU, and what one leaves idle nobody gets" in advice
    assert f"in whole percents {lost} are lost" in advice


@pytest.mark.parametrize(("clients", "percentage"), [(2, 50.0), (4, 25.0), (4, 50.0), (1, 50.0)])
def test_nothing_is_said_to_be_lost_where_nothing_is(host: Host, clients: int, percentage: float) -> None:
    advice = " ".join(plan(host, limit_mib=2048, clients=clients, thread_percentage=percentage).advice)
    assert "are lost" not in advice
    assert "caps and lends nothing" in advice


def test_no_percentage_is_ever_made_up_of_the_number_of_clients(host: Host) -> None:
    for clients in range(1, 20):
        assert plan(host, limit_mib=2048, clients=clients).thread_percentage is None


# -- against MPS


def test_large_or_synchronous_jobs_are_advised_against_with_the_reason(host: Host) -> None:
    large = plan(host, limit_mib=120_000)
    assert (large.advised, large.verdict) == (False, "warns")
    assert "against MPS: one process takes 83 % of the memory" in large.advice[0]
    synchronous = plan(host, synchronous=True)
    assert not synchronous.advised
    assert "NCCL refuses two ranks on one GPU" in synchronous.advice[0]
    alone = plan(host, limit_mib=80_000)
    assert (alone.most, alone.advised) == (1, False)
    assert "MPS is not advised" in plans.as_text(alone)


# -- hints


def test_hints_are_scaled_to_the_limit(host: Host) -> None:
    torch, tensorflow, vllm = plan(host, limit_mib=20_480).hints
    assert "max_split_size_mb:128" in torch
    assert "set_per_process_memory_fraction(0.1394)" in torch
    assert "memory_limit=19966" in tensorflow
    assert "--gpu-memory-utilization 0.1430" in vllm


@pytest.mark.parametrize(("limit_mib", "left"), [(100, 0), (514, 0), (515, 1), (4096, 3582)])
def test_a_limit_that_leaves_nothing_has_no_hints_and_no_negative_number(host: Host, limit_mib: int, left: int) -> None:
    found = plan(host, limit_mib=limit_mib)
    [line] = [line for line in found.lines if line.startswith("one client: ")]
    assert (f"= {left} MiB to allocate" if left else "leaves nothing to allocate") in line
    assert bool(found.hints) == bool(left)


@given(st.integers(1, 143_155), st.integers(1, 2_000))
def test_no_fraction_allows_more_than_the_limit(limit_mib: int, context_mib: int) -> None:
    costs = Costs(context_mib, 66, 616, context_mib + 1, "somewhere")
    torch, _, vllm = plans.hints(143_155, limit_mib, costs)
    fraction = re.search(r"fraction\((\S+?)\)", torch)
    utilization = re.search(r"utilization (\S+?):", vllm)
    assert fraction is not None
    assert utilization is not None
    assert float(fraction[1]) * 143_155 <= max(0, limit_mib - context_mib) + 1e-6
    assert float(utilization[1]) * 143_155 <= limit_mib + 1e-6


# -- variables


@given(
    limit_mib=st.integers(1, 200_000),
    clients=st.one_of(st.none(), st.integers(1, 80)),
    percentage=st.one_of(st.none(), st.integers(1, 1000).map(lambda tenths: tenths / 10)),
    latency=st.sampled_from([None, "short", "long"]),
    rates=st.one_of(st.just(()), st.lists(st.integers(1, 999), min_size=2, max_size=5).map(tuple)),
)
def test_variables_can_be_pasted_and_are_good_values(
    limit_mib: int, clients: Optional[int], percentage: Optional[float], latency: Optional[str], rates: tuple[int, ...]
) -> None:
    if clients is not None and rates and clients < len(rates):
        return
    costs = Costs(514, 66, 616, 515, "somewhere")
    found = plans.plan(H200, costs, Desired(limit_mib, clients, percentage, latency, rates))
    values = yaml.safe_load(plans.as_vars(found))
    assert values == found.variables
    assert parse(values["mps_device_memory_limit"]).on(1) == limit_mib
    assert check_expected_clients(values["mps_expected_clients"])
    if values["mps_active_thread_percentage"] is not None:
        check_thread_percentage(values["mps_active_thread_percentage"])
    assert json.loads(json.dumps(found.as_json()))["vars"] == found.variables
    # What fits is not refused for its number.
    if clients is None and not rates and found.most:
        assert found.clients <= found.most


def test_a_refused_plan_says_so_in_its_variables(host: Host) -> None:
    text = plans.as_vars(plan(host, clients=40))
    assert "# refused: 40 clients x 4096 MiB" in text
    assert "mps_expected_clients: 40" in text


# -- the host's own


def test_gpus_of_several_kinds_must_be_named(host: Host) -> None:
    assert planning.on_host(host.world, None).name == "NVIDIA H200"
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    with pytest.raises(BadValue, match="name it: --gpu"):
        planning.on_host(host.world, None)
    assert planning.on_host(host.world, "1").memory_mib == 15_360
    host.nvml.all = []
    with pytest.raises(BadValue, match="describe one"):
        planning.on_host(host.world, None)
