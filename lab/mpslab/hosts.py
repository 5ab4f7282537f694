"""A host's folder: what it is (host.json), and all of its files that differ from the shared root (upper)."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Optional

from mpslab import keys, models, passthrough, removal
from mpslab.errors import LabError
from mpslab.places import Places

SIMULATED = ("NVML", "PCI bus", "NVIDIA driver")
STANDIN_SERVER = "MPS server"
_STANDIN, _SERVER = "/usr/lib/mps-lab/standin_server.py", "usr/sbin/nvidia-cuda-mps-server"
SLURM = "slurm"
"""The group of packages whose hosts need device files of their GPUs."""
SIMULATED_GPU, REAL_GPU = "simulated", "real"
USER = "root"
_REAL_FILES = {
    "etc/environment": f"PATH={passthrough.PATH}\n",
    "etc/systemd/system.conf.d/mps-lab.conf": f"[Manager]\nDefaultEnvironment=PATH={passthrough.PATH}\n",
    "etc/ld.so.conf.d/mps-lab.conf": f"{passthrough.TARGET}/lib64\n{passthrough.TARGET}/lib\n",
    "etc/systemd/system/sysinit.target.d/mps-lab.conf": "[Unit]\nWants=lab-driver.service\n",
    "etc/systemd/system/lab-driver.service": """\
[Unit]
Description=The machine's NVIDIA driver, found by the loader
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/ldconfig
""",
}
"""Of a host with a real GPU: where the driver that is passed through lies."""

_DISPLAY_CLASS, _NVIDIA = "0x030200", "0x10de"


@dataclass(frozen=True)
class Host:
    """What a host was made as."""

    name: str
    address: str
    port: int
    release: str
    daemon: Optional[str]
    driver_version: str
    gpus: int
    model: str
    mig: tuple[str, ...]
    lower: tuple[str, ...]
    """The overlay's read-only layers, topmost first; the last is the root."""
    gpu: str = SIMULATED_GPU
    shares: tuple[tuple[str, str], ...] = ()
    """Folders of the machine and where the host has them, to be read there."""
    nspawn: str = ""
    """The folder of systemd-nspawn and its libraries where the machine's own is not used."""
    standin_server: bool = False
    """Whether the lab's stand-in lies where the control daemon looks for NVIDIA's MPS server."""
    disk_mib: Optional[int] = None
    """How much its own files may take, which then lie in memory; None: what the machine's disk has."""
    packages: str = ""
    """The group of Debian's packages that it has beyond the root, empty for none."""

    @property
    def real(self) -> bool:
        """Whether it has the machine's GPUs, and nothing simulated."""
        return self.gpu == REAL_GPU

    @property
    def simulated(self) -> tuple[str, ...]:
        """What of it is simulated, for people."""
        if self.real:
            return ()
        return (*SIMULATED, STANDIN_SERVER) if self.standin_server else SIMULATED


@dataclass(frozen=True)
class Driver:
    """How the simulated driver behaves at the next boot."""

    delay_s: float = 0
    absent: bool = False


def folder(places: Places, name: str) -> Path:
    """Where everything of one host lies."""
    return places.hosts / name


def disk(base: Path, host: Host) -> Path:
    """Where the folders ``upper`` and ``work`` of a running host lie; ``base`` is its folder."""
    return base if host.disk_mib is None else base / "disk"


def load(places: Places) -> list[Host]:
    """All hosts that were made whole."""
    # a lab of another checkout of this machine may have been made by other sources: what they say more is theirs
    known = {field.name for field in fields(Host)}
    found = []
    for path in sorted(places.hosts.glob("*/host.json")):
        try:
            text = path.read_text()
        except FileNotFoundError:  # another call removed the host meanwhile
            continue
        entry = {name: value for name, value in json.loads(text).items() if name in known}
        shares = tuple((source, target) for source, target in entry.get("shares", ()))
        found.append(Host(**{**entry, "mig": tuple(entry["mig"]), "lower": tuple(entry["lower"]), "shares": shares}))
    return found


def find(places: Places, name: str) -> Host:
    """One host.

    :raises LabError: if there is none of that name.
    """
    hosts = load(places)
    for host in hosts:
        if host.name == name:
            return host
    has = ", ".join(host.name for host in hosts) or "no host; run `lab/lab up`"
    raise LabError(f"found host name {name}, the lab has {has}")


def find_simulated(places: Places, name: str) -> Host:
    """One host whose GPUs and driver can be told to fail.

    :raises LabError: if it has the machine's own.
    """
    host = find(places, name)
    if host.real:
        raise LabError(
            f"found {name} with this machine's own GPU and driver (--gpu real), faults are planted in simulated ones; "
            "take a host of `lab/lab up` without --gpu real"
        )
    return host


def make(places: Places, host: Host, driver: Driver) -> None:
    """Write a host's folder; host.json comes last, so that a folder without one is known to be unfinished."""
    base = folder(places, host.name)
    removal.remove(base)
    upper = base / "upper"
    for path in (upper, base / "work", base / "root"):
        path.mkdir(parents=True)
    # without one before the first boot, systemd runs preset-all and ssh.socket answers on every address
    _write(upper / "etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
    _write(upper / "etc/hostname", host.name + "\n")
    _write(upper / "etc/hosts", f"127.0.0.1 localhost\n{host.address} {host.name}\n")
    _write(upper / "etc/ssh/sshd_config.d/lab.conf", _sshd(host))
    _write(upper / "root/.ssh/authorized_keys", (places.ssh / "id_ed25519.pub").read_text(), 0o600)
    if host.real:
        for name, text in _REAL_FILES.items():
            _write(upper / name, text)
    else:
        gpus = models.gpus_file(host.name, host.gpus, host.model, host.driver_version, host.mig)
        _write(upper / "etc/mps-lab/gpus", gpus)
        _write(upper / "etc/tmpfiles.d/mps-lab.conf", _bus(host))
        write_driver(upper, host, driver)
        if host.standin_server:
            _link(upper / _SERVER, _STANDIN)
    for private in (upper / "root", upper / "root/.ssh"):
        private.chmod(0o700)
    key = upper / "etc/ssh/ssh_host_ed25519_key"
    keys.make(key, host.name, Path(host.lower[-1]))
    # labs of other checkouts read this too: what goes without saying of a simulated host is not said
    unsaid = () if host.real else ("gpu", "shares", "nspawn")
    entry = {name: value for name, value in asdict(host).items() if name not in unsaid}
    _write(base / "host.json.new", json.dumps(entry, indent=1))
    os.rename(base / "host.json.new", base / "host.json")


def write_driver(root: Path, host: Host, driver: Driver) -> None:
    """Say how the simulated driver behaves from the next boot on. No GPU, no driver: as with the real module."""
    absent = driver.absent or host.gpus == 0
    text = f"delay_s={driver.delay_s:g}\nabsent={int(absent)}\nversion={host.driver_version}\n"
    _write(root / "etc/mps-lab/driver", text)


def bus_entries(host: Host) -> dict[str, str]:
    """The simulated PCI bus: files below /sys/bus/pci/devices and their texts."""
    kind = models.model(host.model)
    # a bus is never empty: what looks for a GPU has to look at the vendor and the class
    devices = {"0000:00:00.0": ("0x8086", "0x060000", "0x09a2")}
    for index in range(host.gpus):
        devices[models.pci_address(index)] = (_NVIDIA, _DISPLAY_CLASS, kind.pci_device)
    return {
        f"{address}/{name}": text
        for address, (vendor, pci_class, device) in devices.items()
        for name, text in (("vendor", vendor), ("class", pci_class), ("device", device))
    }


def _bus(host: Host) -> str:
    """For systemd-tmpfiles, which runs before any ordinary unit; "!" keeps a later run from undoing a vanished GPU."""
    base = "/run/mps-lab/sysroot/sys/bus/pci/devices"
    lines = ["# The simulated PCI bus, there from the first moments of a boot, as on real hosts.", f"d! {base} 0755"]
    entries = bus_entries(host)
    lines += [f"d! {base}/{address} 0755" for address in sorted({path.partition("/")[0] for path in entries})]
    lines += [f"f! {base}/{path} 0444 - - - {text}\\n" for path, text in sorted(entries.items())]
    if host.packages == SLURM:
        lines.append("# Slurm counts character devices. These lead to no driver.")
        lines += [f"c /dev/nvidia{index} 0666 root root - 195:{index}" for index in range(host.gpus)]
    return "\n".join(lines) + "\n"


def _sshd(host: Host) -> str:
    return "\n".join(
        (
            "# All hosts of the lab share the machine's loopback: each answers on its own address only.",
            f"ListenAddress {host.address}:{host.port}",
            "HostKey /etc/ssh/ssh_host_ed25519_key",
            "PasswordAuthentication no",
            "UsePAM yes",
            "",
        )
    )


def _make_parents(path: Path) -> None:
    """With exact modes: in an overlay the upper folder's mode is the host's."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        parent.chmod(0o755)


def _link(path: Path, target: str) -> None:
    _make_parents(path)
    path.symlink_to(target)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    _make_parents(path)
    path.write_text(text)
    path.chmod(mode)
