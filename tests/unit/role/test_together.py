"""What only makes sense together: the controller refuses just what the host would, by the same variable."""

from __future__ import annotations

from itertools import product
from typing import Any, Optional

import pytest

from mps_role import request, variables
from mpsctl.model.errors import BadValue
from mpsctl.model.instance_file import parse_conf
from mpsctl.model.setting import PREFIX

PLACES = dict.fromkeys(request.PLACES, "/usr/local/bin/mpsctl")
CHOICES: dict[str, tuple[Any, ...]] = {
    "over_expected": ("admit", "wait", "refuse"),
    "expected_clients": (None, 4),
    "shares": (None, {}, {"each_user": 2}, {"units": {"a.service": 9}}),
    "front_door": (True, "no"),
    "limit_bypass": ("report", "refuse"),
    "group": (None, "video"),
    "when_down": ("restore", "prohibited"),
    "server_user": (None, "root", "alice"),
    "multi_user": (False, "true"),
}


def host_refuses(values: dict[str, Any]) -> dict[str, Optional[str]]:
    """By instance: the variable that a host would name of this request, None where it takes it."""
    found: dict[str, Optional[str]] = {}
    asked = request.request(values, PLACES, "b1")
    for name, text in [(one["name"], one["conf"]) for one in asked["instances"]] or [("0", asked["instance_per_gpu"])]:
        try:
            parse_conf(text, name)
            found[name] = None
        except BadValue as error:
            found[name] = error.variable
    return found


def all_together() -> list[dict[str, Any]]:
    return [dict(zip(CHOICES, chosen)) for chosen in product(*CHOICES.values())]


def test_the_controller_refuses_what_the_host_would_and_nothing_else() -> None:
    refused = 0
    for chosen in all_together():
        values = {**variables.defaults(), **{PREFIX + key: value for key, value in chosen.items()}}
        (of_host,) = host_refuses(values).values()
        assert [line.partition(": ")[0] for line in variables.problems(values)] == ([of_host] if of_host else []), (
            chosen
        )
        refused += of_host is not None
    assert refused > 100, "no test that cannot fail"


def test_so_for_an_entry_whose_own_values_go_before_the_hosts() -> None:
    """The host's values alone would be refused, and nobody has them."""
    refused = 0
    common = {"mps_over_expected": "wait", "mps_when_down": "prohibited", "mps_server_user": "root"}
    for chosen in all_together():
        own = {key: value for key, value in chosen.items() if key in variables.OVERRIDES}
        whole = {PREFIX + key: value for key, value in chosen.items() if key not in own}
        entry = {"name": "a", "gpus": ["0"], **own}
        values = {**variables.defaults(), **common, **whole, "mps_instances": [entry]}
        (of_host,) = host_refuses(values).values()
        lines = variables.problems(values)
        assert len(lines) == (of_host is not None), chosen
        if of_host is not None:
            name = of_host[len(PREFIX) :]
            assert lines[0].startswith((f"mps_instances[a].{name}: ", f"{of_host}: ")), lines
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("none", [None, {}])
def test_an_entry_takes_the_hosts_shares_back(none: object) -> None:
    shared = {"mps_over_expected": "wait", "mps_expected_clients": 4, "mps_shares": {"each_user": 2}}
    entries = [{"name": "a", "gpus": ["0"], "shares": none}, {"name": "b", "gpus": ["1"]}]
    values = {**variables.defaults(), **shared, "mps_instances": entries}
    assert variables.problems(values) == []
    a, b = request.request(values, PLACES, "b1")["instances"]
    assert parse_conf(a["conf"], "a").shares is None
    assert str(parse_conf(b["conf"], "b").shares) == "each-user=2"


def test_what_is_wrong_with_all_instances_is_said_once() -> None:
    entries = [{"name": name, "gpus": [name]} for name in "123"]
    values = {**variables.defaults(), "mps_over_expected": "wait", "mps_instances": entries}
    assert len(variables.problems(values)) == 1
    entries[1]["over_expected"] = "refuse"
    assert [line.partition(": ")[0] for line in variables.problems(values)] == [
        "mps_over_expected",
        "mps_instances[2].over_expected",
    ]
