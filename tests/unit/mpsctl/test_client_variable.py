"""A client shakes off every limit by its own variable, by accident or on purpose (driver 580, H200)."""

from __future__ import annotations

from typing import Optional

import pytest

from mpsctl.checks import words
from mpsctl.model import client_variable
from mpsctl.model.client_variable import VARIABLE, Bypass

ONE_GPU = ("GPU-11111111-1111-1111-1111-111111111111",)
TWO_GPUS = (*ONE_GPU, "GPU-22222222-2222-2222-2222-222222222222")


def limit_bypass(
    value: Optional[str], devices: tuple[str, ...] = ONE_GPU, visible: Optional[str] = None
) -> Optional[Bypass]:
    environment = {} if value is None else {VARIABLE: value}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return client_variable.limit_bypass(environment, devices)


@pytest.mark.parametrize("value", [None, "0=1G", "0=512M", "0=512MB", "0=1g", f"{ONE_GPU[0]}=1G"])
def test_a_good_value_only_lowers(value: Optional[str]) -> None:
    assert limit_bypass(value) is None


@pytest.mark.parametrize(
    "value", ["0=1G,1=1G", "1=1G", "1G", "", "''0=1G''", "0=1.5G", "0=20%", "0=1073741824", "0=0G"]
)
def test_each_limit_bypass_is_named(value: str) -> None:
    named = limit_bypass(value)
    assert named is not None
    assert named.value == value
    assert VARIABLE in words.bypass(named)


def test_a_second_gpu_may_be_named_where_it_is_seen() -> None:
    assert limit_bypass("0=1G,1=1G", TWO_GPUS) is None
    assert limit_bypass("0=1G,1=1G", TWO_GPUS, visible=ONE_GPU[0]) is not None
    assert limit_bypass("0=1G", TWO_GPUS, visible=ONE_GPU[0]) is None


@pytest.mark.parametrize(
    ("limits_mib", "value"),
    [({0: 2048}, "0=2048M"), ({1: 512, 0: 2048}, "0=2048M,1=512M")],
)
def test_what_is_written_for_a_client_never_bypasses_a_limit(limits_mib: dict[int | str, int], value: str) -> None:
    assert client_variable.render(limits_mib) == value
    assert limit_bypass(value, TWO_GPUS) is None
