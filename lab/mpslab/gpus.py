"""Making a simulated GPU vanish from a running host, and come back."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from mpslab import boot, hosts, models
from mpslab.errors import LabError
from mpslab.places import Places
from mpslab.progress import say

_RUN = "run/mps-lab"


def vanish(places: Places, name: str, index: int) -> None:
    """As when a GPU falls off the bus: NVML says "GPU is lost", and the bus no longer shows it."""
    host, run = _running(places, name, index)
    state = _state(host, run, index)
    with (state.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = state.read_text().splitlines() if state.exists() else []
        kept = [line for line in before if not line.startswith("lost=")]
        new = state.with_name(state.name + ".new")
        new.write_text("\n".join([*kept, "lost=1", ""]))
        new.chmod(0o644)
        new.rename(state)
    shutil.rmtree(_bus(run) / models.pci_address(index), ignore_errors=True)
    say(f"{name}: GPU {index} is lost, until `lab/lab gpu {name} return {index}` or a reboot")


def bring_back(places: Places, name: str, index: int) -> None:
    """As after a reset of the slot: the GPU is there again, with every mode at its default."""
    host, run = _running(places, name, index)
    for path, text in hosts.bus_entries(host).items():
        if path.startswith(models.pci_address(index)):
            file = _bus(run) / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
    _state(host, run, index).unlink(missing_ok=True)
    say(f"{name}: GPU {index} is back, its modes at their defaults")


def _running(places: Places, name: str, index: int) -> tuple[hosts.Host, Path]:
    host = hosts.find(places, name)
    if not 0 <= index < host.gpus:
        has = f"GPUs 0 to {host.gpus - 1}" if host.gpus else "no GPU"
        raise LabError(f"{name}: found GPU index {index}, the host has {has}")
    if boot.leader_pid(places, name) is None:
        raise LabError(f"{name} is not running, and a GPU vanishes from a running host only; run `lab/lab up` again")
    return host, boot.host_root(places, host) / _RUN


def _state(host: hosts.Host, run: Path, index: int) -> Path:
    folder = run / "nvml"
    folder.mkdir(exist_ok=True)
    return folder / f"{models.gpu_uuid(host.name, index)}.state"


def _bus(run: Path) -> Path:
    return run / "sysroot/sys/bus/pci/devices"
