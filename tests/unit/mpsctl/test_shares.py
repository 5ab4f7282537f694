"""Shares as people write them: what is taken, what is refused, and that each is read back from where it is written."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted
from mpsctl.model.instance_file import parse_conf, render
from mpsctl.model.settings import BY_KEY
from mpsctl.model.shares import (
    ALL,
    CONTAINER,
    JOB,
    KINDS,
    NO_JOB,
    UNIT,
    USER,
    Room,
    Share,
    Shares,
    Whose,
    check_shares,
    over,
    places,
    read_told,
    with_jobs,
)

WORD = st.text(alphabet="abcXYZ019:_.\\\\", min_size=1, max_size=12)
SLICES = st.lists(WORD, min_size=1, max_size=3).map(lambda words: "-".join(words) + ".slice")
SERVICES = st.builds(
    lambda word, instance, kind: f"{word}{instance}.{kind}",
    WORD,
    st.just("") | st.text(alphabet="abc019:_.@-\\\\", min_size=1, max_size=9).map(lambda text: f"@{text}"),
    st.sampled_from(["service", "scope"]),
)
USERS = st.sampled_from(["alice", "_apt", "a.b-c", "root"]) | st.integers(0, 4_294_967_293)
COUNTS = st.integers(0, 9999) | st.integers(0, 9999).map(str)
VARIABLES = st.fixed_dictionaries(
    {},
    optional={
        "units": st.dictionaries(SERVICES | SLICES, COUNTS, max_size=4),
        "users": st.dictionaries(USERS, COUNTS, max_size=4),
        **{f"each_{kind}": COUNTS for kind in KINDS},
    },
)


def in_file(value: object) -> Optional[Shares]:
    """What comes back from an instance's file with this value of the variable, for an instance called ``pair``."""
    keys = {key: one.default for key, one in BY_KEY.items()}
    text = render({**keys, "GPUs": "0", "PipeDirectory": "/run/mps/%i", "OverExpected": "wait", "ExpectedClients": None,
                   "Shares": value})  # fmt: skip
    return parse_conf(text, "pair").shares


@given(value=VARIABLES)
def test_what_is_taken_comes_back_from_the_file_and_from_its_text_and_as_the_variable(value: dict[str, Any]) -> None:
    shares = check_shares(value)
    assert check_shares(str(shares)) == shares
    assert check_shares(shares.as_variable) == shares
    assert len(list(shares)) == sum(len(one) if isinstance(one, dict) else 1 for one in value.values())
    if shares:
        assert in_file(value) == shares


def test_the_order_in_which_they_are_written_makes_no_difference() -> None:
    one = check_shares({"each_user": 2, "users": {"b": 1, "a": 2}, "units": {"z.service": 1, "a.slice": 2}})
    assert check_shares({"units": {"a.slice": 2, "z.service": 1}, "users": {"a": 2, "b": 1}, "each_user": 2}) == one
    assert str(one) == "unit:a.slice=2 unit:z.service=1 user:a=2 user:b=1 each-user=2"
    assert Shares.of(reversed(one.every)) == one


def test_the_largest_share_lets_somebody_in() -> None:
    assert check_shares({"units": {"a.service": 3}, "each_user": 5}).largest == Share(USER, None, 5)
    assert check_shares({"each_container": 0}).largest is None
    assert Shares().largest is None


HUGE = 10**5000


@pytest.mark.parametrize("count", [True, False, None, 4.0, -1, 10_000, HUGE, "04", "+4", " 4", "4\n", "\u0664", "",
                                   "\u00b2", [4], {"a": 4}, "4 each-user=9"], ids=quoted)  # fmt: skip
@pytest.mark.parametrize("place", ["units", "users", *(f"each_{kind}" for kind in KINDS)])
def test_a_number_of_clients_is_a_whole_one(place: str, count: object) -> None:
    name = {"units": "api.service", "users": "alice"}.get(place)
    with pytest.raises(BadValue) as refusal:
        check_shares({place: count if name is None else {name: count}})
    if not isinstance(count, dict):
        assert refusal.value.expected == "a whole number of clients, 0 to 9999"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("api", "a unit's whole name"),
        ("api.timer", "a unit's whole name"),
        ("API.SERVICE", "a unit's whole name"),
        (".service", "a unit's whole name"),
        ("a b.service", "a unit's whole name"),
        ("a=b.service", "a unit's whole name"),
        ("a/b.service", "a unit's whole name"),
        ("%i.service", "a unit's whole name"),
        ("caf\u00e9.service", "a unit's whole name"),
        ("api.service\n", "a unit's whole name"),
        ("@1.service", "a unit's whole name"),
        ("a" * 241 + ".service", "a unit's whole name"),
        (None, "a unit's whole name"),
        (True, "a unit's whole name"),
        (5, "a unit's whole name"),
        ((), "a unit's whole name"),
        ("api@.service", "no process is in a template"),
        ("-.slice", "this slice has every process"),
        ("a--b.slice", "words with single dashes"),
        ("-a.slice", "words with single dashes"),
        ("a-.slice", "words with single dashes"),
        ("a@1.slice", "words with single dashes"),
    ],
)
@pytest.mark.wording
def test_a_unit_that_has_no_processes_is_no_share(name: object, expected: str) -> None:
    with pytest.raises(BadValue) as refusal:
        check_shares({"units": {name: 4}})
    assert expected in refusal.value.expected
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["api@1.service", "api@a@b.service", "dev-sda\\x2d1.service", "session-3.scope",
                                  "user-1000.slice", "-.service", "a" * 240 + ".service"])  # fmt: skip
def test_units_as_systemd_names_them_are_taken(name: str) -> None:
    assert check_shares({"units": {name: 4}}).every == (Share(UNIT, name, 4),)


@pytest.mark.parametrize("name", [None, True, 1.0, -1, "", "a b", "a=b", "1a", "01000", 4_294_967_294, HUGE, "\u0664",
                                  "alice\n", b"a", "%i"], ids=quoted)  # fmt: skip
def test_a_user_is_a_name_or_a_number(name: object) -> None:
    with pytest.raises(BadValue):
        check_shares({"users": {name: 4}})


@pytest.mark.parametrize(
    "value",
    [
        {"users": {1001: 1, "1001": 1}},
        "user:1001=1 user:1001=1",
        "each-unit=1 each-unit=2",
        "unit:a.service=1 each-user=1 unit:a.service=2",
    ],
)
def test_no_share_stands_twice(value: object) -> None:
    with pytest.raises(BadValue, match="twice"):
        check_shares(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["unit:a.service=4"],
        4,
        True,
        1.5,
        {"unit": {"a.service": 4}},
        {"each-user": 2},
        {"each_slice": 2},
        {"containers": {"a": 2}},
        {"units": None},
        {"units": 4},
        {"units": ["a.service"]},
        {"each_user": None},
        {None: 2},
        {True: 2},
        "units",
        "{}",
        '{"each_user": 2}',
        "unit:=4",
        "unit:a.service",
        "each_user=2",
        "container:a=2",
        "each-unit=",
        "UNIT:a.service=4",
    ],
)
def test_what_is_no_list_of_shares_is_refused(value: object) -> None:
    with pytest.raises(BadValue) as refusal:
        check_shares(value)
    assert "\n" not in str(refusal.value)


def test_more_than_anybody_would_write_are_refused_soon() -> None:
    check_shares({"users": dict.fromkeys(range(200), 1)})
    for value in ({"users": dict.fromkeys(range(1000000), 1)}, "each-user=1 " * 1_000_000):
        with pytest.raises(BadValue):
            check_shares(value)
    with pytest.raises(BadValue, match="at most 200 shares"):
        check_shares({"users": dict.fromkeys(range(201), 1)})


def test_a_share_of_all_containers_has_no_name() -> None:
    assert check_shares("each-container=1").every == (Share(CONTAINER, None, 1),)


# -- shares of jobs, which are told and never desired

TOLD = "user:1000=4 job:7=3 each-job=0"


@pytest.mark.parametrize("value", ["job:7=3", "each-job=0", {"jobs": {"7": 3}}, {"each_job": 0}])
def test_a_share_of_a_job_is_nobodys_to_desire(value: object) -> None:
    with pytest.raises(BadValue):
        check_shares(value)


def test_shares_of_jobs_are_told_and_read_back_beside_the_others() -> None:
    told = with_jobs(check_shares("user:1000=4"), {"7": 3})
    assert str(told) == "job:7=3 user:1000=4 each-job=0"
    assert read_told(str(told)) == told == read_told(TOLD)
    assert with_jobs(told, {"8": 1}) == read_told("user:1000=4 job:8=1 each-job=0"), "those of before are gone"
    assert {share.kind for share in told} == {USER, JOB}


def test_as_many_shares_as_may_be_desired_leave_room_for_jobs() -> None:
    desired = check_shares(" ".join(f"user:{uid}=1" for uid in range(200)))
    assert len(read_told(str(with_jobs(desired, {str(job): 1 for job in range(1, 61)}))).every) == 261
    with pytest.raises(BadValue):
        read_told("job:0x7=1")


@pytest.mark.parametrize(
    ("whose", "expected"),
    [
        (Whose(2000, job="7"), {ALL: 8, "job:7": 3}),
        (Whose(1000, job="7"), {ALL: 8, "user:1000": 4, "job:7": 3}),
        (Whose(2000, job="8"), {ALL: 8, "job:8": 0}),
        (Whose(2000), {ALL: 8, NO_JOB: 0}),
        (Whose(1000), {ALL: 8, "user:1000": 4, NO_JOB: 5}),
        (Whose(0), {ALL: 8, NO_JOB: 5}),
    ],
    ids=["of a job", "of a job and a user", "of another job", "of none", "of a user with a share", "root"],
)
def test_who_counts_where_jobs_have_shares(whose: Whose, expected: dict[str, int]) -> None:
    assert dict(places(Room(8, read_told(TOLD)), whose)) == expected


def test_the_places_of_jobs_are_kept_for_them() -> None:
    room = Room(8, read_told("user:1000=8 job:7=6 each-job=0"))
    assert over(room, {ALL: 2, NO_JOB: 2, "user:1000": 2}, Whose(1000)) == NO_JOB
    assert over(room, {ALL: 2, NO_JOB: 2, "user:1000": 2}, Whose(2000, job="7")) is None
    assert over(room, {ALL: 8, "job:7": 6}, Whose(2000, job="7")) == ALL


def test_without_jobs_nobodys_job_counts() -> None:
    assert dict(places(Room(8), Whose(2000, job="7"))) == {ALL: 8}
