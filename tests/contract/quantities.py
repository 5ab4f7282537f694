"""Strings for memory limits: each is refused, or a real daemon holds exactly that many MiB."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Optional, Sequence

from hypothesis import strategies as st

from fakes import H200_MIB
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.store.desired_values import Desired, values
from real_daemon import Running

MEASURED = ["2G", "1536M", "20", "20%", "1.5G", "1024K", "4294967296", "-1G", "abc", "0G"]
"""What the daemon made of these was measured (driver 580, H200): most became another limit, or none."""

NEAR = st.from_regex(r"[ +-]?[0-9]{0,9}([.,][0-9]{1,4})?[ ]?([KMGTkmgt%]|[KMG]i?B|0)?\n?", fullmatch=True)
FITTING = st.builds(lambda number, unit: f"{number}{unit}", st.integers(0, 20_000), st.sampled_from("MG%"))
SHARES = st.builds(lambda number: f"{number / 1000:g}%", st.integers(0, 100_001))
STRINGS = st.one_of(st.text(max_size=12), NEAR, FITTING, SHARES, st.sampled_from(MEASURED))


def expected_mib(text: str) -> Optional[int]:
    """The MiB that a string means on an H200, told without the program's own arithmetic; None if it means none."""
    whole = re.fullmatch(r"([1-9][0-9]*)([MG])", text, re.ASCII)
    if whole:
        mib = int(whole[1]) << (10 if whole[2] == "G" else 0)
        return mib if mib <= 1 << 24 else None
    share = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%", text, re.ASCII)
    if share and 0 < Fraction(share[1]) <= 100:
        return max(1, H200_MIB * int(Fraction(share[1]) * 1000) // 100_000)
    return None


def check(daemon: Running, texts: Sequence[str]) -> int:
    """Put each string that is let through in force on the daemon, all in one session; how many these were."""
    accepted = []
    for text in texts:
        try:
            mib = quantity.parse(text).on(H200_MIB)
        except BadValue:
            assert expected_mib(text) is None, f"{text!r} is refused"
            continue
        assert mib == expected_mib(text), f"{text!r} became {mib} MiB"
        (step,) = values(Desired((mib,), None, None), None)
        accepted.append((text, mib, step))
    # A value of its own before each, so that what reads back cannot be left from the last one.
    other = "set_default_device_pinned_mem_limit 0 {}M"
    asked = [word for _, mib, step in accepted for word in (other.format(mib + 1024), step.setter, step.getter)]
    answers = daemon.front_end().ask(asked, deadline_s=60) if asked else []
    for (text, mib, _), shown in zip(accepted, answers[2::3]):
        assert shown == [f"{mib // 1024}G" if mib >= 1024 else f"{mib}M"], f"{text!r}, {mib} MiB"
    return len(accepted)
