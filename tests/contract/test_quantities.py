"""Any string is refused, or NVIDIA's daemons hold that many MiB; tests/soak has far more strings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import quantities
from real_daemon import Running


@given(texts=st.lists(quantities.STRINGS, min_size=10, max_size=10))
@settings(max_examples=30)
def test_a_string_is_refused_or_held_exactly(daemon: Running, texts: list[str]) -> None:
    quantities.check(daemon, texts)


def test_the_measured_strings_are_refused_or_held_exactly(daemon: Running) -> None:
    assert quantities.check(daemon, quantities.MEASURED) == 3
