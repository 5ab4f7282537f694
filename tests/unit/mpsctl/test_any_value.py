"""Whatever value anything has: taken, or refused in one line that names it and says what was expected."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any, Callable, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Host
from mpsctl.converge import request
from mpsctl.converge.request import FORMAT, Request
from mpsctl.model import instance_file
from mpsctl.model.checked_values import check_group, check_package, check_serial, check_server_user
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted
from mpsctl.model.setting import Setting
from mpsctl.model.settings import BY_KEY, SETTINGS
from mpsctl.store import configuration
from shell import Shell

pytestmark = pytest.mark.wording
HUGE = 10**5000
HUGE_ONES = st.sampled_from([1, -1]).map(lambda sign: sign * HUGE)
"""Mapped: a strategy that names one cannot be written out."""
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | HUGE_ONES
    | st.sampled_from([2**31, 2**32 - 1, 2**32 - 2, 2**64, -1, 0])
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=8)
    | st.text()
    | st.text(alphabet="0123456789", min_size=1, max_size=6000)
    | st.sampled_from(["null", "", "\n", "\0", "\x1b[2J", "²", "ſ", "x" * 100_000, "1" * 6000])
)
SHARE_KEYS = st.sampled_from(["units", "users", "each_unit", "each_user", "each_container", "a.service", "alice", 1001])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS | SHARE_KEYS, inner, max_size=3),
    max_leaves=6,
)


def refused(act: Callable[[], object]) -> Optional[BadValue]:
    """How a call refuses its value, or None; anything else that it raises is a fault."""
    try:
        act()
    except BadValue as error:
        return error
    return None


def is_a_refusal(error: BadValue) -> bool:
    line = str(error)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 2000
    assert "Error" not in line.replace(error.found, "")
    return line.startswith("found ") and "expected" in line and ";" in line


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: str(setting.variable))
@given(value=VALUES)
def test_no_value_of_a_setting_gives_anything_but_a_value_or_a_refusal(setting: Setting, value: Any) -> None:
    if setting.key == "GPUs":
        return
    error = refused(lambda: setting.check(value))
    assert error is None or is_a_refusal(error)


@pytest.mark.parametrize("check", [check_group, check_server_user])
@pytest.mark.parametrize(
    "value",
    [2**32 - 1, 2**32 - 2, "4294967295", "9999999999", -1, "-1", HUGE, 1.0, math.inf, math.nan, True, "²"],
    ids=quoted,
)
@pytest.mark.parametrize("extra", [None, datetime.date(2026, 11, 30)])
def test_no_account_s_number_is_out_of_range(check: Any, value: object, extra: object) -> None:
    for one in (value, extra):
        with pytest.raises(BadValue) as refusal:
            check(one)
        assert is_a_refusal(refusal.value)


def test_account_s_numbers_up_to_the_last_are_taken() -> None:
    assert [check_group(one) for one in (0, "44", 65534, 4_294_967_293)] == ["0", "44", "65534", "4294967293"]


@pytest.mark.parametrize("value", [HUGE, 100_000, [5, HUGE], "100000"], ids=quoted)
def test_a_batch_of_hosts_has_an_end(value: object) -> None:
    with pytest.raises(BadValue):
        check_serial(value)


def test_a_package_s_name_has_an_end() -> None:
    assert check_package("x" * 200)
    with pytest.raises(BadValue):
        check_package("x" * 201)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "null"),
        (HUGE, "<int of about 5,001 digits>"),
        (datetime.date(2026, 11, 30), "2026-11-30"),
        ([HUGE], "a list with something in it that cannot be written out"),
        ({None: 1}, "{None: 1}"),
        (math.inf, "inf"),
    ],
    ids=lambda value: quoted(value)[:20],
)
def test_how_a_value_is_quoted(value: object, says: str) -> None:
    assert quoted(value) == says


# -- the request


GOOD = {
    "format": FORMAT,
    "files": [{"path": "/etc/systemd/system/x.service", "content": "x", "mode": "0644"}],
    "instances": [{"name": "0", "conf": "x"}],
    "instance_per_gpu": None,
    "units": ["mps-health.timer"],
    "atomic": False,
    "remove": False,
    "on_clients": "refuse",
    "drain_timeout_s": 300,
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | HUGE_ONES | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_a_good_request_is_taken() -> None:
    assert Request.from_json(GOOD).files[0].mode == 0o644


@given(st.data())
def test_no_value_in_a_request_gives_anything_but_a_refusal(data: st.DataObject) -> None:
    wanted: Any = json.loads(json.dumps(GOOD))
    place: Any = wanted
    key: Any = data.draw(st.sampled_from(sorted(GOOD)))
    while isinstance(place[key], (list, dict)) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
    place[key] = data.draw(JSON_VALUES)
    error = refused(lambda: Request.from_json(wanted))
    assert error is None or is_a_refusal(error)


@given(JSON_VALUES)
def test_no_whole_request_is_too_odd(value: Any) -> None:
    with pytest.raises(BadValue) as refusal:
        Request.from_json(value)
    assert is_a_refusal(refusal.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": 2, "format": 2}', "format twice"),
        ('{"format": 2, "files": [{"path": "/a", "path": "/b"}]}', "path twice"),
        ('{"format": NaN}', "NaN for a number"),
        ('{"format": -Infinity}', "-Infinity for a number"),
        ('{"format": ' + "9" * 5000 + "}", "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("", "no JSON"),
        ("\0", "no JSON"),
    ],
)
def test_json_that_is_none_is_told_in_one_line(mpsctl: Shell, text: str, says: str) -> None:
    with pytest.raises(BadValue, match="no JSON") as refusal:
        request.parse(text)
    assert says in str(refusal.value)
    assert mpsctl("reconcile", "--json", stdin=text) == 2
    assert "Traceback" not in mpsctl.err
    assert mpsctl.err.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("format", 2.0),
        ("format", True),
        ("atomic", 1),
        ("units", "mps-health.timer"),
        ("units", ["../x"]),
        ("files", {"path": "/x"}),
        ("instance_per_gpu", 7),
        ("drain_timeout_s", 1.0),
        ("drain_timeout_s", False),
    ],
)
def test_no_kind_stands_for_another(place: str, value: object) -> None:
    with pytest.raises(BadValue):
        Request.from_json({**GOOD, place: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "relative"),
        ("path", "/etc/../x"),
        ("path", "/etc/\0x"),
        ("path", None),
        ("content", "\ud800"),
        ("content", 7),
        ("mode", "-1"),
        ("mode", "0o644"),
        ("mode", "99999999"),
        ("mode", 644),
    ],
)
def test_what_no_file_can_be_is_refused(key: str, value: object) -> None:
    file = {"path": "/etc/systemd/system/x.service", "content": "x", "mode": "0644"}
    with pytest.raises(BadValue, match=rf"files\.{key}"):
        Request.from_json({**GOOD, "files": [{**file, key: value}]})


# -- an instance's file


@pytest.mark.parametrize("key", sorted(BY_KEY))
@given(
    value=st.text(alphabet=st.characters(exclude_characters="\r\n")) | st.text("0123456789", min_size=1, max_size=6000)
)
def test_no_value_in_a_file_gives_anything_but_an_instance_or_a_refusal(key: str, value: str) -> None:
    lines = {"GPUs": "0", "PipeDirectory": "/run/nvidia-mps/%i", key: value}
    sections: dict[str, list[str]] = {}
    for name, text in lines.items():
        sections.setdefault(str(BY_KEY[name].section), []).append(f"{name}={text}")
    text = "\n".join(line for section, rows in sections.items() for line in (f"[{section}]", *rows))
    error = refused(lambda: instance_file.parse_conf(text, "0"))
    assert error is None or (is_a_refusal(error) and (error.key is not None or "0.conf" in error.found))


@pytest.mark.parametrize("name", ["9" * 200, "x" * 200, " ", "²"])
def test_names_of_files_are_of_any_kind(host: Host, name: str) -> None:
    host.places.configuration.mkdir(parents=True, exist_ok=True)
    (host.places.configuration / f"{name}.conf").write_text("")
    assert configuration.names(host.world) == [name]
    with pytest.raises(BadValue):
        configuration.load(host.world, name)
