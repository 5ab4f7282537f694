"""The instances of a host, matched with its GPUs."""

from __future__ import annotations

import pytest

from fakes import Host, h200, split_by_mig, uuid
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance
from mpsctl.model.settings import VARIABLES
from mpsctl.store import configuration


def instance(*gpus: str, **desired: object) -> Instance:
    return Instance("0", gpus, "/run/mps/0", **desired)  # type: ignore[arg-type]


def refused(desired: Instance, *others: object) -> BadValue:
    with pytest.raises(BadValue) as refusal:
        configuration.resolve(desired, [h200(0), h200(1), split_by_mig(2)])
    assert refusal.value.variable == VARIABLES[str(refusal.value.key)]
    return refusal.value


def test_devices_stand_in_the_order_of_the_file() -> None:
    devices = configuration.resolve(instance("1", uuid(0)), [h200(0), h200(1)])
    assert [device.gpu.index for device in devices] == [1, 0]


def test_a_gpu_that_the_host_lacks_names_the_key() -> None:
    refusal = refused(instance("9"))
    assert refusal.key == "GPUs"
    assert uuid(0) in str(refusal)


def test_one_gpu_under_two_names_is_refused() -> None:
    assert "named before under another name" in refused(instance("0", uuid(0))).found


def test_a_gpu_that_is_split_by_mig_is_refused_with_its_devices() -> None:
    refusal = refused(instance("2"))
    assert refusal.key == "GPUs"
    assert uuid(300, "MIG") in refusal.expected


def test_exclusive_process_on_a_mig_device_is_refused() -> None:
    refusal = refused(instance(uuid(300, "MIG"), compute_mode="exclusive_process"))
    assert refusal.key == "ComputeMode"
    assert refusal.variable == "mps_compute_mode"


def test_a_mig_device_without_a_desired_mode_is_fine() -> None:
    desired = instance(uuid(300, "MIG"))
    assert configuration.resolve(desired, [split_by_mig(2)])[0].uuid == uuid(300, "MIG")


def test_a_limit_above_the_devices_memory_is_refused() -> None:
    assert refused(instance("0", limit=quantity.parse("141G"))).key == "DeviceMemoryLimit"
    assert refused(instance(uuid(300, "MIG"), limit=quantity.parse("17G"))).key == "DeviceMemoryLimit"


def test_instances_are_listed_by_number_then_by_name(host: Host) -> None:
    for name in ("10", "2", "infer", "0", "a.b"):
        host.desired(name)
    assert configuration.names(host.world) == ["0", "2", "10", "a.b", "infer"]


def test_a_host_that_was_never_converged_has_none(host: Host) -> None:
    assert configuration.names(host.world) == []


def test_a_stray_file_with_an_odd_name_is_listed_and_harms_nothing(host: Host) -> None:
    host.desired("0")
    host.places.conf("²").write_text("")
    assert configuration.names(host.world) == ["0", "²"]


def test_an_instance_without_a_file_is_refused_with_those_that_have_one(host: Host) -> None:
    host.desired("0")
    host.desired("1")
    with pytest.raises(BadValue, match="an instance of this host: 0, 1"):
        configuration.load(host.world, "2")


def test_a_refused_file_is_named(host: Host) -> None:
    host.desired("0", DeviceMemoryLimit="20")
    with pytest.raises(BadValue, match=r"etc/mps/0\.conf: '20'") as refusal:
        configuration.load(host.world, "0")
    assert refusal.value.key == "DeviceMemoryLimit"


@pytest.mark.parametrize("name", ["../0", "a/b", ""])
def test_a_name_never_leads_out_of_the_directory(host: Host, name: str) -> None:
    with pytest.raises(BadValue, match="the instance name"):
        configuration.load(host.world, name)
