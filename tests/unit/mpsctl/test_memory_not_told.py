"""A GPU whose memory NVML does not tell (GB10, DGX Spark): it is there, limits in MiB work, and the rest says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes import Host, h200, split_by_mig
from mpsctl.converge import reconcile
from mpsctl.converge.request import Request
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.gpu import Device
from mpsctl.store import configuration, fitting
from shell import Shell


@pytest.fixture
def untold(host: Host) -> Host:
    host.nvml.all = [h200(0, memory_mib=None, name="NVIDIA GB10"), h200(1)]
    return host


def test_the_gpu_is_listed_and_its_memory_is_not(mpsctl: Shell, untold: Host) -> None:
    assert mpsctl("gpus") == 0
    first, second = (line for line in mpsctl.out.splitlines() if line.startswith("GPU "))
    assert "NVIDIA GB10, memory not told, compute mode" in first
    assert "143771 MiB" in second
    found = mpsctl.json("gpus")["gpus"]
    assert [gpu["memory_mib"] for gpu in found] == [None, 143_771]


def test_a_mig_device_s_memory_is_not_told_either(mpsctl: Shell, untold: Host) -> None:
    whole = split_by_mig(0)
    untold.nvml.all = [replace(whole, mig_devices=tuple(replace(mig, memory_mib=None) for mig in whole.mig_devices))]
    assert mpsctl("gpus") == 0
    assert mpsctl.out.count("memory not told") == len(whole.mig_devices)


@pytest.mark.parametrize("limit", ["4G", "4096M"])
def test_a_limit_in_mib_is_in_force(mpsctl: Shell, untold: Host, limit: str) -> None:
    untold.desired(DeviceMemoryLimit=limit)
    untold.systemd.unit("mps-control@0.service").enabled = True
    daemon = untold.start()
    assert mpsctl("status") == 0
    assert mpsctl("apply", "0", main_pid=untold.running().pid) == 0
    assert any("set_default_device_pinned_mem_limit 0 4096M" in line for line in daemon.setters)


def test_a_percentage_is_refused_with_what_to_write(mpsctl: Shell, untold: Host) -> None:
    untold.desired(DeviceMemoryLimit="20%")
    assert mpsctl("prepare", "0") == 2
    assert "NVML does not tell" in mpsctl.err
    assert "<integer>M or <integer>G" in mpsctl.err
    assert "DeviceMemoryLimit" in mpsctl.err or "20%" in mpsctl.err
    text = untold.conf("0", {"DeviceMemoryLimit": "20%"})
    answer = reconcile.reconcile(untold.world, Request((), (("0", text),)), True)
    assert answer.refused is not None
    assert answer.refused.startswith("mps_device_memory_limit: ")
    assert "NVML does not tell" in answer.refused


def test_the_percentage_of_a_neighbour_is_none_of_its_business(untold: Host) -> None:
    untold.desired("1", GPUs="1", DeviceMemoryLimit="20%")
    (device,) = configuration.resolve(configuration.load(untold.world, "1"), untold.nvml.all)
    assert quantity.parse("20%").on(device.memory_mib) == 28_754
    with pytest.raises(BadValue):
        quantity.parse("20%").on(None)
    assert quantity.parse("1G").on(None) == 1024


def test_whether_clients_fit_is_not_reckoned_and_that_is_said(untold: Host) -> None:
    untold.desired(DeviceMemoryLimit="4G", ExpectedClients=8)
    instance = configuration.load(untold.world, "0")
    warnings = fitting.judge(untold.world, instance, [Device(untold.nvml.all[0])], "580.159.04")
    assert any("NVML does not tell the memory" in warning for warning in warnings)


def test_a_plan_says_that_it_needs_the_memory(mpsctl: Shell, untold: Host) -> None:
    for memory in ("4G", "10%"):
        assert mpsctl("plan", "--gpu", "0", "--memory", memory) in (2, 3)
        assert "NVML does not tell" in mpsctl.err


@pytest.mark.parametrize(
    "verb", [["status"], ["verify"], ["health"], ["clients"], ["doctor"], ["doctor", "--error", "2"]]
)
def test_no_look_ends_with_it(mpsctl: Shell, untold: Host, verb: list[str]) -> None:
    untold.desired(DeviceMemoryLimit="4G")
    untold.systemd.unit("mps-control@0.service").enabled = True
    daemon = untold.start()
    server = untold.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 1000)
    daemon.start_server(server)
    pid = untold.client()
    daemon.connect(server, pid)
    untold.nvml.clients_mib[pid] = 4000
    assert mpsctl(*verb) in (0, 1, 2, 3)
    assert "a fault of mpsctl" not in mpsctl.out + mpsctl.err
    assert "no GPU of this host answers" not in mpsctl.out


def test_hints_say_why_there_are_none(mpsctl: Shell, untold: Host) -> None:
    untold.desired(DeviceMemoryLimit="4G")
    assert mpsctl("env", "0", "--hints") == 0
    assert "NVML does not tell its memory" in mpsctl.out


@pytest.mark.parametrize(("memory", "code"), [("1G", 0), ("8G", 2), ("10%", 2)])
def test_a_client_of_less_is_given_in_mib(mpsctl: Shell, untold: Host, memory: str, code: int) -> None:
    untold.desired(DeviceMemoryLimit="4G")
    untold.start()
    assert mpsctl("run", "--instance", "0", "--memory", memory, "--", "true") == code
