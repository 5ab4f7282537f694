"""What is desired of a daemon, as the commands that set it and the answers that prove it."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import H200_MIB, FakeDaemon, h200, split_by_mig, uuid
from mpsctl.model import quantity
from mpsctl.model.errors import NotReady
from mpsctl.model.instance import Instance
from mpsctl.store.desired_values import Desired, memory_of, values
from mpsctl.store.record import InForce


def known(*limits_mib: Optional[int]) -> InForce:
    return InForce(1, 1, 1.0, limits_mib, None, None)


def test_the_defaults_are_set_per_ordinal_and_in_whole_mib() -> None:
    desired = Desired((4096, None, 1536), 50.0, 1)
    assert [(value.setter, value.getter, value.reads) for value in values(desired, None)] == [
        ("set_default_device_pinned_mem_limit 0 4096M", "get_default_device_pinned_mem_limit 0", "4G"),
        ("set_default_device_pinned_mem_limit 2 1536M", "get_default_device_pinned_mem_limit 2", "1G"),
        ("set_default_active_thread_percentage 50", "get_default_active_thread_percentage", "50.0"),
        ("set_default_client_priority 1", "get_default_client_priority", "1"),
    ]


def test_a_server_is_named_by_its_pid_and_has_no_priority_of_its_own() -> None:
    assert [(value.setter, value.getter) for value in values(Desired((4096,), 12.5, 1), None, "77")] == [
        ("set_device_pinned_mem_limit 77 0 4096M", "get_device_pinned_mem_limit 77 0"),
        ("set_active_thread_percentage 77 12.5", "get_active_thread_percentage 77"),
    ]


def test_what_is_not_managed_is_neither_set_nor_asked() -> None:
    assert values(Desired((None, None), None, None), None) == []


def test_a_share_is_taken_of_each_device() -> None:
    instance = Instance("0", ("0", "1"), "/run/mps", limit=quantity.parse("50%"))
    assert Desired.of(instance, [H200_MIB, 16_384]).limits_mib == (71_885, 8192)


def test_below_one_gib_the_getter_is_proof_enough() -> None:
    (value,) = values(Desired((900,), None, None), None)
    assert value.in_force(["900M"])
    assert not value.in_force(["800M"])
    assert not value.in_force([])


def test_from_one_gib_on_the_getter_proves_a_limit_only_together_with_what_was_set() -> None:
    """It shows 1G for 1024 to 2047 MiB."""
    desired = Desired((1536,), None, None)
    assert not values(desired, None)[0].in_force(["1G"])
    assert not values(desired, known(1024))[0].in_force(["1G"])
    assert not values(desired, known())[0].in_force(["1G"])
    assert values(desired, known(1536))[0].in_force(["1G"])
    assert not values(desired, known(1536))[0].in_force(["2G"])


def test_memory_is_that_of_the_gpu_or_of_the_mig_device() -> None:
    assert memory_of([uuid(301, "MIG"), uuid(0)], [h200(0), split_by_mig(2)]) == [16_384, H200_MIB]


def test_a_device_that_is_gone_is_not_guessed_at() -> None:
    with pytest.raises(NotReady, match="which the daemon serves, is gone"):
        memory_of([uuid(5)], [h200(0)])


@given(
    st.lists(st.none() | st.integers(1, quantity.MAX_MIB), max_size=4),
    st.none() | st.integers(1, 1000).map(lambda tenths: tenths / 10),
    st.sampled_from([None, 0, 1]),
)
def test_what_is_set_reads_back_from_a_daemon_as_the_step_says(
    limits_mib: list[Optional[int]], percentage: Optional[float], priority: Optional[int]
) -> None:
    daemon = FakeDaemon()
    for value in values(Desired(tuple(limits_mib), percentage, priority), known(*limits_mib)):
        daemon.ask([value.setter])
        assert value.in_force(daemon.ask([value.getter])[0]), value
    assert daemon.limits == {str(n): mib << 20 for n, mib in enumerate(limits_mib) if mib is not None}
