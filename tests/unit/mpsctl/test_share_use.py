"""What shares come to on a GPU, as a plan shows them, and what is said of shares that add up to too much."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes import H200_MIB, Host, h200
from mpsctl.model import fit, share_use
from mpsctl.model import plan as plans
from mpsctl.model.costs import Costs
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card, Demand
from mpsctl.model.instance_file import from_values
from mpsctl.model.plan import Desired
from mpsctl.model.shares import check_shares
from shell import Shell

H200 = Card("NVIDIA H200", H200_MIB, "580.159.04")
OWN = Costs(514, 66, 616, 515, "measured on this host")


@pytest.mark.wording
def test_a_share_is_told_in_memory_and_percent_and_whether_it_fits() -> None:
    shares = check_shares({"units": {"api.service": 4}, "each_user": 40})
    api, users = share_use.of((H200, OWN), Demand(40, 4096, 12.5), shares)
    assert str(api) == (
        "unit:api.service=4: 4 x 4096 MiB = 16384 MiB, 11.4 % of the memory; 4 x 12.5 % = 50 % of the multiprocessors;"
        " fits"
    )
    assert str(users) == (
        "each-user=40: 40 x 4096 MiB = 163840 MiB, 114 % of the memory; 40 x 12.5 % = 500 % of the multiprocessors;"
        " does not fit: at most 34"
    )
    assert api.as_json() == {
        "kind": "unit",
        "name": "api.service",
        "clients": 4,
        "memory_mib": 16_384,
        "memory_percent": 11.4,
        "thread_percentage": 50.0,
        "fits": True,
    }
    (alone,) = share_use.of((H200, OWN), Demand(4, 4096), check_shares("each-unit=4"))
    assert alone.threads_percent is None
    assert "each may use all multiprocessors" in str(alone)


@given(st.integers(1_000, 300_000), st.integers(515, 100_000), st.integers(1, 60))
def test_a_share_fits_where_so_many_clients_are_judged_to_fit(memory_mib: int, limit_mib: int, clients: int) -> None:
    card = Card("a GPU", memory_mib, "580.1")
    (use,) = share_use.of((card, OWN), Demand(None, limit_mib), check_shares({"each_user": clients}))
    judged = fit.judge(card, OWN, Demand(clients, limit_mib))
    assert use.fits == (judged.word != fit.REFUSED)


@pytest.mark.parametrize(
    ("shares", "most"),
    [
        ("unit:a.service=3 unit:b.service=3", 6),
        ("unit:a.service=3 unit:b.slice=3", 6),
        ("unit:a.slice=3 unit:a-b.slice=3 unit:a-b-c.slice=3", 3),
        ("unit:a.slice=3 unit:ab.slice=3", 6),
        ("unit:system.slice=4 unit:a.service=3 unit:user.slice=2", 6),
        ("user:a=2 user:1=3 unit:a.service=4", 5),
        ("each-unit=9 each-user=9 each-container=9", 0),
    ],
)
def test_a_sum_counts_no_client_twice_as_far_as_names_tell(shares: str, most: int) -> None:
    def said(expected: int) -> list[str]:
        return share_use.crowded(check_shares(shares), expected, [(H200, OWN)], Demand(None, 4096))

    assert said(most) == []
    assert not most or len(said(most - 1)) >= 1


# -- plans

UNITS = st.sampled_from(["a.service", "b-c.slice", "x\\\\x2dy@1.service", "session-1.scope", "a:b.slice"])


@given(
    limit_mib=st.integers(515, 20_000),
    clients=st.none() | st.integers(1, 60),
    units=st.dictionaries(UNITS, st.integers(0, 60), max_size=3),
    each=st.none() | st.integers(0, 60),
)
def test_the_variables_of_a_plan_can_be_pasted_and_make_an_instance(
    limit_mib: int, clients: Any, units: dict[str, int], each: Any
) -> None:
    shares = check_shares({"units": units, **({} if each is None else {"each_user": each})})
    desired = Desired(limit_mib, clients, shares=shares, over_expected="wait")
    if clients is not None and shares.largest is not None and shares.largest.clients > clients:
        with pytest.raises(BadValue, match="no share above all clients"):
            plans.plan(H200, OWN, desired)
        return
    found = plans.plan(H200, OWN, desired)
    values = yaml.safe_load(plans.as_vars(found))
    assert values == found.variables
    assert ("mps_shares" in values) == bool(shares)
    instance = from_values(
        {
            "GPUs": "0",
            "PipeDirectory": "/run/mps/0",
            "ExpectedClients": str(values["mps_expected_clients"]),
            "OverExpected": values["mps_over_expected"],
            **({"Shares": values["mps_shares"]} if shares else {}),
        },
        "0",
    )
    assert (instance.shares or check_shares({})) == shares
    assert all(use.fits for use in found.shares) or found.verdict == fit.REFUSED
    assert len(json.loads(json.dumps(found.as_json()))["shares"]) == len(shares.every)


def test_without_shares_nothing_is_said_of_places() -> None:
    found = plans.plan(H200, OWN, Desired(4096))
    assert not {"mps_over_expected", "mps_shares"} & set(found.variables)
    assert (found.as_json()["shares"], found.as_json()["over_expected"]) == ([], "admit")


def test_as_many_are_planned_as_the_largest_share_has() -> None:
    assert plans.plan(H200, OWN, Desired(4096, shares=check_shares("each-unit=12"))).clients == 12
    assert plans.plan(H200, OWN, Desired(4096, shares=check_shares("each-unit=2"))).clients == 8


@pytest.mark.wording
def test_the_verb_takes_shares_as_options(mpsctl: Shell, host: Host) -> None:
    shares = ["--share", "unit:api.service=4", "--share", "each-user=2"]
    assert mpsctl("plan", "--memory", "4G", "--threads", "25", *shares) == 0
    assert "unit:api.service=4: 4 x 4096 MiB = 16384 MiB" in mpsctl.out
    assert "4 x 25 % = 100 % of the multiprocessors; fits" in mpsctl.out
    assert mpsctl("plan", "--memory", "4G", *shares, "--format", "vars") == 0
    values = yaml.safe_load(mpsctl.out)
    assert (values["mps_over_expected"], values["mps_expected_clients"]) == ("wait", 8)
    assert values["mps_shares"] == {"units": {"api.service": 4}, "each_user": 2}
    assert mpsctl("plan", "--memory", "4G", "--share", "each-user=40") == 2
    assert "each-user=40: 40 x 4096 MiB = 163840 MiB, 114 % of the memory" in mpsctl.out
    for bad in (["--share", "api=4"], ["--share", "each-user=2", "--share", "each-user=3"], ["--share", "each-user=x"]):
        assert mpsctl("plan", "--memory", "4G", *bad) == 2
        assert "--share " in mpsctl.err
        assert mpsctl.err.count("\n") == 1
    assert mpsctl("plan", "--memory", "4G", "--clients", "4", "--share", "each-user=5") == 2
    assert "raise --clients" in mpsctl.err


@pytest.mark.wording
def test_the_verb_begins_with_an_instances_values_and_options_change_them(mpsctl: Shell, host: Host) -> None:
    host.desired(
        DeviceMemoryLimit="8G",
        ActiveThreadPercentage=50,
        ExpectedClients=6,
        OverExpected="refuse",
        Shares="unit:api.service=4",
    )
    assert mpsctl("plan", "--instance", "0", "--json") == 0
    found = json.loads(mpsctl.out)
    assert (found["limit_mib"], found["clients"], found["over_expected"]) == (8192, 6, "refuse")
    assert [one["memory_mib"] for one in found["shares"]] == [32_768]
    assert found["shares"][0]["thread_percentage"] == 200.0
    assert found["vars"]["mps_over_expected"] == "refuse"
    assert mpsctl("plan", "--instance", "0", "--memory", "4G", "--share", "each-user=6", "--json") == 0
    found = json.loads(mpsctl.out)
    assert (found["limit_mib"], [one["kind"] for one in found["shares"]]) == (4096, ["user"])


@pytest.mark.wording
def test_the_verb_needs_a_size(mpsctl: Shell, host: Host) -> None:
    assert mpsctl("plan") == 2
    assert "neither --memory nor --instance" in mpsctl.err
    host.desired()
    assert mpsctl("plan", "--instance", "0") == 2
    assert "no memory limit of 0" in mpsctl.err
    assert mpsctl("plan", "--instance", "9", "--memory", "4G") == 2


def test_an_instance_of_several_kinds_needs_one_named(mpsctl: Shell, host: Host) -> None:
    host.nvml.all[1] = h200(1, name="Tesla T4", memory_mib=15_360)
    host.desired(GPUs="0 1", DeviceMemoryLimit="4G")
    assert mpsctl("plan", "--instance", "0") == 2
    assert "name it: --gpu" in mpsctl.err
    assert mpsctl("plan", "--instance", "0", "--gpu", "1", "--json") == 0
    assert json.loads(mpsctl.out)["memory_mib"] == 15_360
