"""Whatever value any variable has: the controller says nothing, or one line for each fault that names the variable."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mps_role import ansible_values, request, variables

from mpsctl.model.settings import BY_VARIABLE  # isort: skip

HUGE = 10**5000
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1, -1]).map(lambda sign: sign * HUGE)
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=8)
    | st.text()
    | st.sampled_from(["null", "", "\n", "\0", "\x1b[2J", "x" * 100_000, "1" * 6000, "0", "default", "true"])
)
SHARE_KEYS = st.sampled_from(["units", "users", "each_unit", "each_user", "each_container", "a.service", "alice", 1001])
ENTRY_KEYS = st.sampled_from(["name", "gpus", *variables.OVERRIDES]) | SCALARS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(SCALARS | SHARE_KEYS, inner, max_size=3)
        | st.lists(st.dictionaries(ENTRY_KEYS, inner, max_size=4), min_size=1, max_size=2)
    ),
    max_leaves=8,
)


def lines(given_values: dict[str, Any]) -> list[str]:
    read = ansible_values.of(given_values)
    return [*read.problems, *variables.problems(read.values)]


def are_lines(found: list[str]) -> bool:
    for line in found:
        assert line.isprintable(), line
        assert line.startswith("mps_"), line
        assert ": found " in line, line
        assert "expected " in line, line
        assert "; " in line, line
        assert len(line) < 2000
        assert "Exceeds the limit" not in line
        assert "object at 0x" not in line
    return True


@pytest.mark.parametrize("name", [*BY_VARIABLE, *variables.FORMER])
@given(value=VALUES)
def test_no_value_of_a_variable_gives_anything_but_lines_that_name_one(name: str, value: Any) -> None:
    assert are_lines(lines({name: value}))


@given(values=st.dictionaries(st.sampled_from(sorted(BY_VARIABLE)), VALUES, max_size=4))
def test_nor_do_several_together(values: dict[str, Any]) -> None:
    assert are_lines(lines(values))


@given(entry=st.dictionaries(ENTRY_KEYS, VALUES, max_size=3))
def test_nor_does_an_entry_of_the_instances(entry: dict[Any, Any]) -> None:
    assert are_lines(lines({"mps_instances": [{"name": "a", "gpus": ["0"], **entry}]}))


@given(value=VALUES, name=st.sampled_from(sorted(BY_VARIABLE)))
def test_what_is_taken_can_be_sent(name: str, value: Any) -> None:
    read = ansible_values.of({name: value})
    if not [*read.problems, *variables.problems(read.values)]:
        places = dict.fromkeys(request.PLACES, "/usr/local/bin/mpsctl")
        assert request.request(read.values, places, "0")["files"]


@pytest.mark.parametrize(
    ("values", "begins", "says"),
    [
        ({"mps_client_wait_s": HUGE}, "mps_client_wait_s: ", "<int of about 5,001 digits>"),
        ({"mps_serial": HUGE}, "mps_serial: ", "<int of about 5,001 digits>"),
        ({"mps_group": 2**32 - 1}, "mps_group: ", "a group's number up to 4294967293"),
        ({"mps_group": 2**32 - 2}, "mps_group: ", "a group's number up to 4294967293"),
        ({"mps_group": -1}, "mps_group: ", "found -1"),
        ({"mps_group": float("inf")}, "mps_group: ", "found inf"),
        ({"mps_server_user": float("nan")}, "mps_server_user: ", "found nan"),
        ({"mps_device_memory_limit": datetime.date(2026, 11, 30)}, "mps_device_memory_limit: ", "found 2026-11-30"),
        ({"mps_client_priority": True}, "mps_client_priority: ", "found True"),
        ({"mps_client_priority": 1.0}, "mps_client_priority: ", "found 1.0"),
        ({"mps_instances": [{"name": "a", "gpus": [0], None: 1}]}, "mps_instances[a]: ", "found null"),
        ({"mps_instances": [{None: 1}]}, "mps_instances: ", "expected an instance"),
        ({"mps_instances": {None: None}}, "mps_instances: ", "expected a list"),
        ({"mps_instances": [{"name": None, "gpus": [None]}]}, "mps_instances: ", "the instance name null"),
        ({"mps_instances": [{"name": "a", "gpus": [HUGE]}]}, "mps_instances[a]: ", "digits"),
        ({"mps_instances": [{"name": "a\n", "gpus": [0]}]}, "mps_instances: ", "'a\\n'"),
        ({"mps_shares": {"users": {None: 1}}}, "mps_shares: ", "user null"),
        ({"mps_shares": {"users": {True: 1}}}, "mps_shares: ", "user True"),
        ({"mps_shares": {"each_user": HUGE}}, "mps_shares: ", "digits"),
        ({"mps_shares": {"users": {HUGE: 1}}}, "mps_shares: ", "digits"),
        ({"mps_shares": {"units": {"a b.service": 1}}}, "mps_shares: ", "unit 'a b.service'"),
        ({"mps_shares": {"units": {"%i.service": 1}}}, "mps_shares: ", "unit '%i.service'"),
        ({"mps_shares": {"units": [{"a.service": 1}]}}, "mps_shares: ", "units: [{"),
        ({"mps_shares": {"units": {"a.service": {"b": 1}}}}, "mps_shares: ", "a whole number of clients"),
        ({"mps_shares": {"users": {1001: 1, "1001": 2}}}, "mps_shares: ", "user:1001 twice"),
        ({"mps_shares": [{"each_user": 1}]}, "mps_shares: ", "shares of units, users and containers"),
        (
            {"mps_instances": [{"name": "a", "gpus": [0], "shares": {"each_user": 1.0}}]},
            "mps_instances[a].shares: ",
            "1.0",
        ),
        (
            {"mps_instances": [{"name": "a", "gpus": [0], "over_expected": True}]},
            "mps_instances[a].over_expected: ",
            "True",
        ),
        ({"mps_over_expected": None}, "mps_over_expected: ", "found null"),
    ],
)
def test_values_that_were_found(values: dict[str, Any], begins: str, says: str) -> None:
    found = lines(values)
    assert are_lines(found)
    assert found[0].startswith(begins)
    assert says in found[0]
