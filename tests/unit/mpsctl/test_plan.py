"""Plans: how many processes of a size, with which limit and percentage, and when MPS is no good."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Optional

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes import H200_MIB, Host, h200
from mpsctl.model import plan as plans
from mpsctl.model.checked_values import check_expected_clients, check_thread_percentage
from mpsctl.model.costs import RESERVE, Costs
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card
from mpsctl.model.plan import Desired, Plan
from mpsctl.model.quantity import parse
from mpsctl.observe import planning as planning
from mpsctl.store import fitting

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


def test_a_plan_for_a_t4_says_whose_figures_it_uses(host: Host) -> None:
    found = plan(host, T4, 3072)
    assert (found.verdict, found.clients, found.most) == ("warns", 4, 4)
    assert "15360 MiB of Tesla T4 - 616 MiB reserved - 66 MiB server = 14678 MiB for clients" in found.lines
    assert any("measured on another GPU model (NVIDIA H200)" in warning for warning in found.warnings)
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
    assert "MIG" not in large.advice[0]
    synchronous = plan(host, synchronous=True)
    assert not synchronous.advised
    assert "NCCL refuses two ranks on one GPU" in synchronous.advice[0]
    alone = plan(host, limit_mib=80_000)
    assert (alone.most, alone.advised) == (1, False)
    assert "MPS is not advised" in plans.as_text(alone)


@pytest.mark.parametrize("card", [H200, T4, Card("NVIDIA A30 MIG 1g.6gb", 5_952, "580.159.04", mig=True)])
@pytest.mark.parametrize("share", ["50%", "49.9%"])
@pytest.mark.wording
def test_two_that_miss_by_little_are_refused_with_a_limit_and_not_advised_against_mps(
    host: Host, card: Card, share: str
) -> None:
    limit = parse(share)
    found = plan(host, card, limit.on(card.memory_mib), clients=2, share=limit)
    assert (found.verdict, found.advised) == ("refused", True)
    assert "MPS" not in "".join(found.advice).replace("`mpsctl", "")
    fits = re.search(r"a limit of at most ([\d.]+%)", found.refusals[0])
    assert fits is not None
    better = parse(fits[1])
    again = plan(host, card, better.on(card.memory_mib), clients=2, share=better)
    assert again.refusals == []
    assert again.advised


def test_one_thousandth_above_the_half_is_no_reason_against_mps_either(host: Host) -> None:
    for limit_mib in (H200_MIB // 2 + 144, H200_MIB // 2 + 1_000):
        assert plan(host, limit_mib=limit_mib).advised
        assert plan(host, limit_mib=limit_mib, clients=2).advised


def test_half_a_card_is_planned_for_one_and_told_what_fits_two(host: Host) -> None:
    half = parse("50%")
    found = plan(host, limit_mib=half.on(H200_MIB), share=half)
    assert (found.verdict, found.clients, found.advised) == ("warns", 1, True)
    assert found.warnings == [
        "2 clients of 71885 MiB miss by 681 MiB: with a limit of at most 49.763% 2 fit",
    ]
    assert plan(host, limit_mib=parse("49.763%").on(H200_MIB)).most == 2
    quarter = plan(host, limit_mib=H200_MIB // 4)
    assert (quarter.verdict, quarter.most) == ("fits", 3)
    assert any("with a limit of at most 35772M 4 fit" in advice for advice in quarter.advice)
    assert not any("miss by" in advice for advice in plan(host, limit_mib=22_000).advice)
    assert not any("miss by" in advice for advice in plan(host, limit_mib=4096).advice)  # a 35th


@pytest.mark.parametrize(("limit_mib", "clients"), [(60_000, 3), (200_000, None), (20, 4), (90_000, 2)])
def test_a_refused_plan_gives_no_advice_against_mps(host: Host, limit_mib: int, clients: Optional[int]) -> None:
    found = plan(host, limit_mib=limit_mib, clients=clients)
    assert (found.verdict, found.advised) == ("refused", True)
    assert not any("for MPS" in advice or "against MPS" in advice for advice in found.advice)


# -- hints


def test_hints_are_scaled_to_the_limit(host: Host) -> None:
    torch, tensorflow, jax, vllm, sglang = plan(host, limit_mib=20_480).hints
    assert "max_split_size_mb:128" in torch
    assert "set_per_process_memory_fraction(0.1387)" in torch
    assert "memory_limit=19869" in tensorflow
    assert "XLA_CLIENT_MEM_FRACTION=0.1387 " in jax
    assert "--gpu-memory-utilization 0.1387" in vllm
    assert sglang.startswith("SGLang: nothing; ")


def test_the_page_on_frameworks_shows_the_hints_of_a_plan(host: Host) -> None:
    page = (Path(__file__).parents[3] / "docs/clients/frameworks.md").read_text()
    shown = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    for hint in plan(host, limit_mib=20_480).hints:
        assert hint in shown


def test_under_two_gibibytes_frameworks_are_told_less_than_pytorch_found_free() -> None:
    """Of a limit of 2 GiB PyTorch found 1437 MiB free, of 143155 (driver 580, H200)."""
    vllm = plans.hints(H200_MIB, 2048, Costs(514, 66, 616, 515, "an H200"))[plans.VLLM]
    share = re.search(r"utilization (\S+?):", vllm)
    assert share is not None
    assert 1422 < float(share[1]) * 143_155 <= 1437


@pytest.mark.parametrize(("limit_mib", "left"), [(100, 0), (514, 0), (515, 1), (611, 97), (4096, 3582)])
def test_a_limit_that_leaves_nothing_has_no_hints_and_no_negative_number(host: Host, limit_mib: int, left: int) -> None:
    found = plan(host, limit_mib=limit_mib)
    [line] = [line for line in found.lines if line.startswith("one client: ")]
    assert (f"= {left} MiB to allocate" if left else "leaves nothing to allocate") in line
    assert bool(found.hints) == (left > plans.FRAMEWORK_MIB)


@given(st.integers(1_000, 200_000), st.integers(1, 200_000), st.integers(1, 2_000), st.booleans())
def test_no_fraction_allows_more_than_the_limit_leaves(
    memory_mib: int, limit_mib: int, context_mib: int, known: bool
) -> None:
    assumed = () if known else (RESERVE,)
    # Of a card whose reserve was not measured any part may be reserved.
    totals = (memory_mib - 616,) if known else (memory_mib, memory_mib - 300, memory_mib - 900)
    found = plans.hints(memory_mib, limit_mib, Costs(context_mib, 66, 616, context_mib + 1, "somewhere", None, assumed))
    for hint in found.values():
        for pattern, unit_mib in (
            (r"fraction\((\S+?)\)", 0),
            (r"utilization (\S+?):", 0),
            (r"FRACTION=(\S+)", 0),
            (r"memory_limit=(\d+)", 1),
        ):
            value = re.search(pattern, hint)
            for total_mib in totals if value else ():
                assert value is not None
                assert float(value[1]) > 0
                assert float(value[1]) * (unit_mib or total_mib) <= limit_mib - context_mib - plans.FRAMEWORK_MIB + 1e-6
    assert len(found) in (0, 5)


def test_hints_of_an_instance_with_devices_of_two_kinds_name_them(host: Host) -> None:
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    host.desired(GPUs="0 1", DeviceMemoryLimit="20%")
    found = planning.hints_of(host.world, "0")
    assert [line.partition(":")[0] for line in found] == ["NVIDIA H200"] * 5 + ["Tesla T4"] * 5
    host.desired(GPUs="0", DeviceMemoryLimit="515M")
    assert planning.hints_of(host.world, "0") == [
        "a limit of 515 MiB leaves nothing for a framework: a context takes 514 MiB"
    ]


def test_hints_where_the_memory_is_not_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.desired(GPUs="0", DeviceMemoryLimit="4G")
    monkeypatch.setattr(fitting, "memory_mib", lambda device: None)
    [line] = planning.hints_of(host.world, "0")
    assert "NVML does not tell its memory" in line


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
