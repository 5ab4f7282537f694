"""Each prefix of names has its own block of loopback addresses, clear of what else listens."""

from __future__ import annotations

import pytest

from mpslab import addresses
from mpslab.errors import LabError


def test_the_first_lab_answers_where_the_manual_says() -> None:
    block = addresses.choose_block("lab", {}, [1, 2], lambda _: True)
    assert [addresses.address(block, number) for number in (1, 2)] == ["127.77.0.11", "127.77.0.12"]


def test_a_prefix_keeps_its_block_when_hosts_are_added() -> None:
    assert addresses.choose_block("lab", {"lab": 7}, [1], lambda _: False) == 7


def test_a_second_prefix_gets_another_block() -> None:
    assert addresses.choose_block("trixie", {"lab": 0, "old": 1}, [1], lambda _: True) == 2


def test_a_block_is_taken_only_when_all_of_it_is_free() -> None:
    busy = {addresses.address(0, 3)}
    assert addresses.choose_block("lab", {}, [1, 2, 3], lambda text: text not in busy) == 1


def test_no_address_left_is_said() -> None:
    with pytest.raises(LabError, match="no free addresses"):
        addresses.choose_block("lab", {}, [1], lambda _: False)


def test_blocks_are_read_back_from_addresses() -> None:
    assert addresses.block_of(addresses.address(9, 240)) == 9
    assert addresses.address(9, addresses.MAX_HOSTS) == "127.77.9.250"
