"""The quantity language of memory limits. The daemon would take anything, so nothing else gets through."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes import H200_MIB, limit_bytes
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue


@pytest.mark.parametrize(
    ("text", "mib"),
    [("1M", 1), ("512M", 512), ("4G", 4096), ("4096M", 4096), ("141G", 144_384), ("16384G", 16 * 1024 * 1024)],
)
def test_whole_mib_and_gib_are_binary(text: str, mib: int) -> None:
    assert quantity.parse(text).on(H200_MIB) == mib
    assert str(quantity.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [("20%", 28_754), ("100%", H200_MIB), ("50%", 71_885), ("12.5%", 17_971), ("0.001%", 1), ("33.333%", 47_923)],
)
def test_a_share_is_of_the_gpus_memory_and_rounded_down(text: str, mib: int) -> None:
    assert quantity.parse(text).on(H200_MIB) == mib


# What the issue lists, and every text of which a daemon was seen to make nonsense.
@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("20", "a bare number is ambiguous: write 20M, 20G or 20%"),
        ("20GB", "write 20G"),
        ("1.5G", "write 1536M"),
        ("-1G", "write for example 4G, 4096M or 20%"),
        ("0", "write for example 4G, 4096M or 20%"),
        ("101%", "write for example 20%"),
        ("8192MB", "write 8192M"),
        ("8589934592", "a byte count is no limit to the daemon: write 8192M"),
        ("2g", "write 2G"),
        ("512MB", "write 512M"),
        ("4 GiB", "write 4G"),
        ("0G", "write for example 4G, 4096M or 20%"),
        ("1024K", "write for example 4G, 4096M or 20%"),
        ("abc", "write for example 4G, 4096M or 20%"),
        ("", "write for example 4G, 4096M or 20%"),
        ("0%", "write for example 20%"),
        ("100.001%", "write for example 20%"),
        ("-5%", "write for example 4G, 4096M or 20%"),
        ("4G ", "write 4G"),
        ("4G\n", "write 4G"),
        ("٤G", "write for example 4G, 4096M or 20%"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str, remedy: str) -> None:
    with pytest.raises(BadValue) as refusal:
        quantity.parse(text)
    assert refusal.value.remedy == remedy
    assert refusal.value.found == repr(text)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("value", [20, 4.5, None, True, ["4G"], 8589934592])
def test_what_is_not_text_is_refused(value: object) -> None:
    """YAML hands a bare 20 over as a number."""
    with pytest.raises(BadValue, match="found"):
        quantity.parse(value)


def test_more_than_any_gpu_has_is_refused() -> None:
    with pytest.raises(BadValue, match="at most 16 TiB"):
        quantity.parse("16385G")


@pytest.mark.parametrize("text", ["200", "20000", "9" * 13 + "G", "9" * 20, "9" * 5000, "9" * 5000 + ".5G"])
def test_what_a_refusal_tells_to_write_is_itself_accepted(text: str) -> None:
    assert_suggestions_hold(text)


def assert_suggestions_hold(text: str) -> None:
    with pytest.raises(BadValue) as refusal:
        quantity.parse(text)
    for suggested in re.findall(r"\b[0-9.]+[MG%]", refusal.value.remedy):
        quantity.parse(suggested)


def oracle(text: str) -> Optional[int]:
    """The quantity on an H200 in MiB, or None if it is to be refused: the rule read anew, without patterns."""
    number, unit = text[:-1], text[-1:]
    if unit in ("M", "G") and number and set(number) <= set("0123456789") and number[0] != "0":
        mib = int(number) * {"M": 1, "G": 1024}[unit]
        return mib if mib <= 16 * 1024**2 else None
    whole, point, decimals = number.partition(".")
    if unit == "%" and 1 <= len(whole) <= 3 and len(decimals) <= 3 and bool(point) == bool(decimals):
        if not set(whole + decimals) <= set("0123456789") or not 0 < Decimal(number) <= 100:
            return None
        return max(1, int(H200_MIB * Decimal(number) / 100))
    return None


near_misses = st.from_regex(r"[-+ ]?[0-9]{0,14}(\.[0-9]{0,4})? ?([MGKTmgk%]i?B?)?", fullmatch=True)


@given(st.text(max_size=12) | near_misses)
@example("1.5G")
@example("1_0G")
@example("+4G")
def test_any_text_is_refused_or_means_what_it_says(text: str) -> None:
    expected = oracle(text)
    if expected is None:
        assert_suggestions_hold(text)
    else:
        assert quantity.parse(text).on(H200_MIB) == expected


@given(st.integers(min_value=1, max_value=quantity.MAX_MIB))
def test_the_daemon_reads_what_it_is_sent_as_meant(mib: int) -> None:
    assert limit_bytes(f"{mib}M") == mib << 20


@pytest.mark.parametrize(
    ("mib", "text"), [(1, "1M"), (900, "900M"), (1023, "1023M"), (1024, "1G"), (1536, "1G"), (2048, "2G")]
)
def test_the_daemon_shows_whole_gib_from_one_on(mib: int, text: str) -> None:
    assert quantity.displayed(mib) == text
