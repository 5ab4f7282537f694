"""How a GPU may be named, and which device a name means on a host."""

from __future__ import annotations

import pytest

from fakes import h200, split_by_mig, uuid
from mpsctl.model import gpu
from mpsctl.model.errors import BadValue

GPUS = [h200(0), h200(1), split_by_mig(2)]


@pytest.mark.parametrize(
    ("reference", "index"),
    [
        ("0", 0),
        ("1", 1),
        (uuid(1), 1),
        ("0000:11:00.0", 1),
        ("00000000:11:00.0", 1),
        ("11:00.0", 1),
        ("0000:11:00.0".upper(), 1),
    ],
)
def test_a_gpu_is_found_by_index_uuid_or_pci_address(reference: str, index: int) -> None:
    found = gpu.resolve(reference, GPUS)
    assert found.gpu.index == index
    assert found.uuid == uuid(index)
    assert found.mig is None


def test_a_mig_device_is_found_by_its_uuid_and_has_its_own_memory() -> None:
    found = gpu.resolve(uuid(301, "MIG"), GPUS)
    assert found.gpu.index == 2
    assert found.uuid == uuid(301, "MIG")
    assert found.memory_mib == 16_384


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "01",
        "0x0",
        "all",
        "GPU",
        "GPU-",
        "GPU-0",
        uuid(1)[:-1],
        uuid(2748).replace("abc", "ABC"),
        "gpu-" + uuid(1)[4:],
        "MIG-GPU-1/2/3",
        "0000:11:00",
        "0000:11:00.8",
        "11:0.0",
        "0,1",
        "0 ",
        "٣",
        "12345",
    ],
)
def test_any_other_name_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"an index \(0\), a full UUID"):
        gpu.check_reference(text)


def test_a_uuid_that_is_cut_short_or_in_capitals_gets_its_own_advice() -> None:
    with pytest.raises(BadValue, match="write the UUID whole and in lower case"):
        gpu.check_reference("GPU-CB1213A3-d6a4-be7f")


def test_a_gpu_that_the_host_lacks_is_refused_with_what_the_host_has() -> None:
    with pytest.raises(BadValue) as refusal:
        gpu.resolve("7", GPUS)
    text = str(refusal.value)
    assert "found GPU 7" in text
    for one in GPUS:
        assert f"{one.index} = {one.uuid} at {one.pci_address}" in text
    assert uuid(301, "MIG") in text
    assert "\n" not in text


def test_a_host_without_gpus_says_so() -> None:
    with pytest.raises(BadValue, match="expected one of this host's: none"):
        gpu.resolve("0", [])


@pytest.mark.parametrize(("capability", "old"), [((6, 1), True), ((7, 0), False), ((9, 0), False), (None, False)])
def test_a_gpu_is_older_than_volta_below_compute_capability_7(capability: object, old: bool) -> None:
    assert h200(0, compute_capability=capability).pre_volta is old
