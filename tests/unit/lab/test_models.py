"""GPU models are data; hosts' GPUs are made from them, the same each time and never alike."""

from __future__ import annotations

import pytest

from mpslab import hosts, models
from mpslab.errors import LabError


def host(gpus: int = 2, model: str = "h200") -> hosts.Host:
    return hosts.Host("lab-01", "127.77.0.11", 22, "bookworm", "550.1", "550.1", gpus, model, (), ())


def test_the_models_asked_for_are_there() -> None:
    assert set(models.names()) >= {"h200", "a100", "l40s", "t4", "p4"}


@pytest.mark.parametrize("name", models.names())
def test_every_model_reads_whole_and_says_simulated(name: str) -> None:
    text = models.gpus_file("lab-01", 2, name, "550.163.01", [])
    assert text.count("(simulated)") == 2
    assert f"memory_mib={models.model(name).memory_mib}\n" in text


def test_only_the_p4_is_older_than_volta() -> None:
    assert [name for name in models.names() if models.model(name).architecture < 5] == ["p4"]


def test_uuids_are_stable_and_differ_between_hosts_and_gpus() -> None:
    uuids = [models.gpu_uuid(name, index) for name in ("lab-01", "lab-02") for index in range(8)]
    assert len(set(uuids)) == 16
    assert models.gpu_uuid("lab-01", 0) == uuids[0]


def test_pci_addresses_ascend_with_the_index() -> None:
    found = [models.pci_address(index) for index in range(models.MAX_GPUS)]
    assert found == sorted(set(found))


def test_mig_profiles_of_another_model_are_refused() -> None:
    with pytest.raises(LabError, match=r"1g\.10gb, model h200 has 1g\.18gb"):
        models.check_mig("h200", ["1g.10gb"])
    with pytest.raises(LabError, match="no MIG"):
        models.check_mig("t4", ["1g.10gb"])


def test_more_slices_than_a_gpu_has_are_refused() -> None:
    models.check_mig("a100", ["3g.40gb", "4g.40gb"])
    with pytest.raises(LabError, match="8 slices, a GPU has 7"):
        models.check_mig("a100", ["4g.40gb", "4g.40gb"])


def test_the_bus_shows_each_gpu_and_something_that_is_none() -> None:
    entries = hosts.bus_entries(host())
    vendors = [text for path, text in entries.items() if path.endswith("/vendor")]
    assert sorted(vendors) == ["0x10de", "0x10de", "0x8086"]


def test_a_host_without_gpus_has_a_bus_all_the_same() -> None:
    assert list(hosts.bus_entries(host(gpus=0))) == [f"0000:00:00.0/{name}" for name in ("vendor", "class", "device")]
