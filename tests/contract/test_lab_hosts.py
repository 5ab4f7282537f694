"""Real hosts of the lab: what a reboot, a late driver, a lost GPU and a crash of the lab itself do to them.

They stand beside whatever else is up in the lab, under a prefix of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from mpslab import boot, hosts, machine, processes, supervisor
from mpslab.places import SOURCE, places

PREFIX = "trial"
ASK = "import sys; sys.path.insert(0, '/root'); from pynvml import *; nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0); "


def lab(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SOURCE / "lab"), *arguments], text=True, capture_output=True, timeout=120, **options
    )


def up(*arguments: str) -> None:
    done = lab("up", "--hosts", "2", "--gpus", "2", "--prefix", PREFIX, *arguments)
    assert done.returncode == 0, done.stderr


def on(host: str, command: str, **options: Any) -> str:
    done = lab("ssh", host, command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def nvml(host: str, statement: str) -> str:
    return on(host, f'python3 -c "{ASK}{statement}"')


def listed(name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(lab("list", "--json").stdout)
    return next(row for row in rows if row["name"] == name)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Asked again and again for half a minute: how long it takes is no part of any test."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[str, str]]:
    machine.check(places())  # where the lab cannot run this fails, and says what to install
    up()
    names = (f"{PREFIX}-01", f"{PREFIX}-02")
    for name in names:
        on(name, "cat >/root/pynvml.py", input=Path(pynvml.__file__).read_text())
    yield names
    assert lab("down", "--prefix", PREFIX).returncode == 0


def reboot(host: str) -> None:
    before = on(host, "cat /proc/sys/kernel/random/boot_id")
    lab("ssh", host, "systemctl reboot")

    def again() -> bool:
        done = lab("ssh", host, "cat /proc/sys/kernel/random/boot_id")
        return done.returncode == 0 and done.stdout.strip() != before

    eventually(again, f"{host} did not come back")


def test_a_host_is_a_systemd_host_with_nothing_of_the_machine(fleet: tuple[str, str]) -> None:
    host = fleet[0]
    on(host, "systemctl is-system-running --wait")
    assert on(host, "systemctl --failed --no-legend") == ""
    assert on(host, "hostname") == host
    assert on(host, "ls /etc/resolv.conf 2>/dev/null || true") == ""
    assert on(host, "command -v nvidia-cuda-mps-control nvidia-cuda-mps-server").split() == [
        "/usr/bin/nvidia-cuda-mps-control",
        "/usr/sbin/nvidia-cuda-mps-server",
    ]


def test_the_exit_code_of_a_command_comes_through(fleet: tuple[str, str]) -> None:
    assert lab("ssh", fleet[0], "exit 7").returncode == 7


def test_hosts_differ_in_what_must_be_unique(fleet: tuple[str, str]) -> None:
    for path in ("/etc/machine-id", "/etc/ssh/ssh_host_ed25519_key.pub", "/proc/sys/kernel/random/boot_id"):
        assert on(fleet[0], f"cat {path}") != on(fleet[1], f"cat {path}")
    assert nvml(fleet[0], "print(nvmlDeviceGetUUID(gpu))") != nvml(fleet[1], "print(nvmlDeviceGetUUID(gpu))")


def test_units_and_sessions_are_told_where_the_bus_is(fleet: tuple[str, str]) -> None:
    assert on(fleet[0], "echo $MPSCTL_SYSROOT") == "/run/mps-lab/sysroot"
    assert on(fleet[0], "systemd-run --quiet --wait --pipe printenv MPSCTL_SYSROOT") == "/run/mps-lab/sysroot"
    vendors = on(fleet[0], "cat /run/mps-lab/sysroot/sys/bus/pci/devices/*/vendor").split()
    assert vendors.count("0x10de") == 2
    assert "(simulated)" in on(fleet[0], "cat /run/mps-lab/sysroot/proc/driver/nvidia/version")


def test_a_compute_mode_lasts_until_the_reboot(fleet: tuple[str, str]) -> None:
    nvml(fleet[0], "nvmlDeviceSetComputeMode(gpu, 3)")
    assert nvml(fleet[0], "print(nvmlDeviceGetComputeMode(gpu))") == "3"
    reboot(fleet[0])
    assert nvml(fleet[0], "print(nvmlDeviceGetComputeMode(gpu))") == "0"


def test_a_gpu_that_vanishes_leaves_nvml_and_the_bus(fleet: tuple[str, str]) -> None:
    assert lab("gpu", fleet[0], "vanish", "1").returncode == 0
    bus = "ls /run/mps-lab/sysroot/sys/bus/pci/devices"
    assert "1a:00.0" not in on(fleet[0], bus)
    lost = lab("ssh", fleet[0], f'python3 -c "{ASK}nvmlDeviceGetHandleByIndex(1)"')
    assert "GPU is lost" in lost.stderr
    assert lab("gpu", fleet[0], "return", "1").returncode == 0
    assert "1a:00.0" in on(fleet[0], bus)
    nvml(fleet[0], "nvmlDeviceGetHandleByIndex(1)")


def test_a_late_driver_keeps_nobody_from_booting(fleet: tuple[str, str]) -> None:
    """The bus is there at once; NVML follows when the driver is loaded."""
    assert lab("driver", fleet[1], "--delay", "4").returncode == 0
    reboot(fleet[1])
    on(fleet[1], "systemctl is-system-running --wait")
    assert "driver-loaded" not in on(fleet[1], "ls /run/mps-lab")
    assert "0x10de" in on(fleet[1], "cat /run/mps-lab/sysroot/sys/bus/pci/devices/*/vendor")
    eventually(lambda: "driver-loaded" in on(fleet[1], "ls /run/mps-lab"), "the driver never came")
    nvml(fleet[1], "nvmlDeviceGetCount()")
    assert lab("driver", fleet[1], "--delay", "0").returncode == 0


def test_a_killed_supervisor_takes_its_host_with_it_and_up_brings_it_back(fleet: tuple[str, str]) -> None:
    leader = listed(fleet[1])["leader_pid"]
    behind = processes.recorded(hosts.folder(places(), fleet[1]) / supervisor.RECORD)
    assert behind is not None
    os.kill(behind, 9)
    eventually(lambda: processes.start_time(leader) is None, "the host outlived its supervisor")
    assert listed(fleet[1])["state"] == "stopped"
    assert listed(fleet[0])["state"] == "running"
    up()
    assert on(fleet[1], "test -s /root/pynvml.py && echo kept") == "kept"


def test_other_numbers_for_a_host_that_is_there_are_refused(fleet: tuple[str, str]) -> None:
    refused = lab("up", "--hosts", "2", "--gpus", "3", "--prefix", PREFIX)
    assert refused.returncode == 1
    assert f"{fleet[0]} is there with gpus 2, asked for 3" in refused.stderr


def test_a_lab_killed_in_the_middle_of_up_leaves_nothing_that_down_misses(fleet: tuple[str, str]) -> None:
    prefix = f"{PREFIX}-crash"
    command = [sys.executable, str(SOURCE / "lab"), "up", "--hosts", "4", "--gpus", "1", "--prefix", prefix]
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    folder = hosts.folder(places(), f"{prefix}-01")
    eventually(lambda: (folder / supervisor.RECORD).exists() or started.poll() is not None, "no host was started")
    started.kill()
    started.wait()
    assert lab("down", "--prefix", prefix).returncode == 0
    assert not list(places().hosts.glob(f"{prefix}-*"))
    named = [path for path in Path("/proc").glob("[0-9]*/cmdline") if f"{prefix}-".encode() in _read(path)]
    assert named == []
    assert prefix not in Path("/proc/self/mounts").read_text()
    assert boot.supervisor_pid(places(), fleet[0]) is not None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def standin_host() -> Iterator[str]:
    machine.check(places())
    prefix = f"{PREFIX}-standin"
    made = lab("up", "--hosts", "1", "--gpus", "1", "--prefix", prefix, "--standin-server")
    assert made.returncode == 0, made.stderr
    assert "MPS server" in made.stderr
    yield f"{prefix}-01"
    assert lab("down", "--prefix", prefix).returncode == 0


def test_with_a_stand_in_server_the_daemon_lets_simulated_clients_in(standin_host: str) -> None:
    """And jams while the stand-in does not answer; both say that they are simulated."""
    assert "MPS server" in listed(standin_host)["simulated"]
    client = "CUDA_MPS_PIPE_DIRECTORY=/run/trial /usr/lib/mps-lab/simulated_client.py --hold 0 --timeout"
    on(standin_host, "mkdir /run/trial")
    outside = lab("ssh", standin_host, f"{client} 20")
    assert (json.loads(outside.stdout)["outcome"], outside.returncode) == ("outside-mps", 3)
    unit = "systemd-run --quiet --unit trial --setenv CUDA_MPS_PIPE_DIRECTORY=/run/trial"
    on(standin_host, f"{unit} nvidia-cuda-mps-control -f")
    eventually(lambda: lab("ssh", standin_host, f"{client} 20").returncode == 0, "no simulated client came in")
    on(standin_host, "echo answers=no >/run/mps-lab/standin-server")
    jammed = lab("ssh", standin_host, f"{client} 0.5")
    said = json.loads(jammed.stdout)
    assert (said["simulated"], said["outcome"], jammed.returncode) == (True, "hang", 6)
    on(standin_host, "rm /run/mps-lab/standin-server")
    eventually(lambda: lab("ssh", standin_host, f"{client} 20").returncode == 0, "the daemon stayed jammed")
