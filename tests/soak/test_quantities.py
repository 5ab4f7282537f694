"""10,000 strings for each of NVIDIA's daemons: refused, or held to the MiB (from 1 GiB on as the getter tells)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quantities
from real_daemon import Running


@given(texts=st.lists(quantities.STRINGS, min_size=50, max_size=50))
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_a_string_is_refused_or_held_exactly(daemon: Running, texts: list[str]) -> None:
    quantities.check(daemon, texts)
