"""What the verbs of the command line do: hosts up, down and listed."""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

from mpslab import (
    addresses,
    boot,
    bundle,
    cgroups,
    daemons,
    hosts,
    layer,
    limits,
    models,
    neighbours,
    packages,
    passthrough,
    removal,
    roots,
    ssh,
)
from mpslab.errors import LabError
from mpslab.places import Places
from mpslab.progress import say, step

_DRIVER_WITHOUT_DAEMON = "550.163.01"
_BOOT_TIMEOUT_S = 60.0
_LEAST_DISK_MIB, _MOST_DISK_MIB = 16, 4096
"""A host takes about ten for itself."""


@dataclass(frozen=True)
class Desired:
    """What ``up`` was asked for."""

    count: int
    gpus: int
    model: str
    daemon: Optional[str]
    release: str
    driver_delay_s: Optional[float]
    """None: at once, and what was said of hosts that are there already stands."""
    prefix: str
    mig: tuple[str, ...] = ()
    shares: tuple[tuple[str, str], ...] = ()
    """Folders of the machine and where hosts have them; only with a real GPU."""
    gpu: str = hosts.SIMULATED_GPU
    standin_server: bool = False
    disk_mib: Optional[int] = None
    packages: str = ""

    @property
    def real(self) -> bool:
        return self.gpu == hosts.REAL_GPU


@contextmanager
def lock(places: Places) -> Iterator[None]:
    """One lab command at a time; the lock goes with its holder, however that ends."""
    places.base.mkdir(parents=True, exist_ok=True)
    handle = os.open(places.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another lab command works on this lab; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def up(places: Places, desired: Desired) -> None:
    """Make and start what is missing; what is there in the desired state stays untouched."""
    begun = time.monotonic()
    _check(desired)
    removal.remove(places.builds)
    present = {host.name: host for host in hosts.load(places)}
    parts = _real_parts(places, desired) if desired.real else _parts(places, desired)
    removal.remove(places.builds)
    ssh.make_key(places, Path(parts.lower[-1]))
    # other labs wait until this one's host.json files say which addresses it has
    with neighbours.alone(places) as others:
        wanted = _wanted(desired, present, parts, [host for other in others for host in hosts.load(other)])
        new = [host for host in wanted if host.name not in present]
        for host in new:
            hosts.make(places, host, hosts.Driver(desired.driver_delay_s or 0))
    ssh.write_config(places, hosts.load(places))
    _boot(places, wanted)
    for host in wanted:
        if host not in new and desired.driver_delay_s is not None:
            set_driver(places, host.name, hosts.Driver(desired.driver_delay_s))
    more = [name for name in present if _prefix(name) == desired.prefix and name not in {host.name for host in wanted}]
    if more:
        say(f"also there, from an earlier up: {', '.join(sorted(more))}; `lab/lab down` removes all")
    say(_what_is_real(wanted[0]))
    say(
        f"{_count(wanted)} up in {time.monotonic() - begun:.1f} s, {wanted[0].name} to {wanted[-1].name}; "
        f"next: lab/lab list, lab/lab ssh {wanted[0].name}"
    )


def _what_is_real(host: hosts.Host) -> str:
    if host.real:
        driver = f"driver {host.driver_version}" if host.driver_version else "its driver"
        return (
            f"real: all; the GPUs are this machine's own ({host.gpus}, {driver}), shared with whatever else runs there"
        )
    daemon = f"NVIDIA control daemon {host.daemon}" if host.daemon else "no NVIDIA control daemon"
    simulated = f"{', '.join(host.simulated)} ({host.gpus} {host.model} a host)"
    return f"real: systemd, ssh, reboots, {daemon}; simulated: {simulated}"


def _boot(places: Places, wanted: list[hosts.Host]) -> None:
    starting = [host for host in wanted if boot.supervisor_pid(places, host.name) is None]
    for host in starting:
        if not addresses.bindable(host.address, host.port):
            raise LabError(
                f"{host.name} cannot boot: something else on this machine listens on {host.address}, port "
                f"{host.port}; find it with `ss -ltnp`, or take this lab down and up again"
            )
    if starting:
        limits.make_room(len(hosts.load(places)))
        with step(f"booting {_count(starting)}"):
            for host in starting:
                boot.start(places, host)
            boot.wait(places, starting, _BOOT_TIMEOUT_S)
    boot.wait(places, [host for host in wanted if host not in starting], _BOOT_TIMEOUT_S)


def _check(desired: Desired) -> None:
    if not 1 <= desired.count <= addresses.MAX_HOSTS:
        raise LabError(f"found --hosts {desired.count}, expected 1 to {addresses.MAX_HOSTS}")
    if desired.shares and not desired.real:
        raise LabError(
            "found --share without --gpu real: nothing of this machine reaches a simulated host; copy files with "
            "`lab/lab ssh HOST 'cat >FILE' <FILE`"
        )
    if not 0 <= desired.gpus <= models.MAX_GPUS:
        raise LabError(f"found --gpus {desired.gpus}, expected 0 to {models.MAX_GPUS}")
    if not re.fullmatch(r"[a-z][a-z0-9]{0,19}(-[a-z0-9]+)*", desired.prefix) or len(desired.prefix) > 40:
        raise LabError(f"found --prefix {desired.prefix}, expected a host name in lower case")
    if desired.disk_mib is not None and not _LEAST_DISK_MIB <= desired.disk_mib <= _MOST_DISK_MIB:
        raise LabError(f"found --disk {desired.disk_mib}, expected {_LEAST_DISK_MIB} to {_MOST_DISK_MIB}")
    if desired.standin_server and desired.daemon is None:
        raise LabError("found --standin-server with --no-daemon: NVIDIA's daemon starts it; leave one of both away")
    if not desired.real:
        models.check_mig(desired.model, desired.mig)


def _prefix(name: str) -> str:
    return name.rpartition("-")[0]


@dataclass(frozen=True)
class _Parts:
    """What hosts are put together from."""

    lower: tuple[str, ...]
    daemon: Optional[str]
    driver_version: str
    release: str
    gpus: int
    nspawn: str = ""


def _parts(places: Places, desired: Desired) -> _Parts:
    """Roots and layers, built and fetched where they are not there yet."""
    root = roots.root(places, desired.release)
    layers = [layer.layer(places), root]
    if desired.packages:
        layers.insert(1, packages.layer(places, desired.packages, root))
    if desired.daemon is None:
        return _Parts(tuple(map(str, layers)), None, _DRIVER_WITHOUT_DAEMON, desired.release, desired.gpus)
    fetched = daemons.daemon(places, desired.daemon, root)
    layers.insert(1, fetched.layer)
    # NVIDIA ships both together, so the simulated driver says the daemon's version
    return _Parts(tuple(map(str, layers)), fetched.version, fetched.version, desired.release, desired.gpus)


def _real_parts(places: Places, desired: Desired) -> _Parts:
    """A root and nothing simulated over it: built here, or out of the bundle where this machine cannot do that."""
    gpus = passthrough.gpus()
    # what is missing of the driver is said here, and not by a host that does not boot
    passthrough.binds()
    archive = bundle.wanted()
    if archive is None:
        root = roots.root(places, desired.release or roots.RELEASES[0])
        return _Parts((str(root),), None, gpus.driver_version, root.name.partition("-")[0], gpus.count)
    parts = bundle.unpack(places, archive)
    if desired.release not in ("", parts.release):
        raise LabError(f"found --release {desired.release}, {archive} has {parts.release}; leave --release away")
    return _Parts((str(parts.root),), None, gpus.driver_version, parts.release, gpus.count, str(parts.nspawn))


def _wanted(
    desired: Desired, present: dict[str, hosts.Host], parts: _Parts, others: list[hosts.Host]
) -> list[hosts.Host]:
    """The desired hosts: those that are there as they are, the others anew.

    :param others: the hosts of the machine's other labs, which have their addresses even while they are stopped.
    :raises LabError: if one is there as something else.
    """
    numbers = range(1, desired.count + 1)
    taken = {_prefix(host.name): addresses.block_of(host.address) for host in present.values()}
    ports = {host.port for host in present.values()}
    port = ports.pop() if ports else addresses.choose_port()
    reserved = {addresses.block_of(host.address) for host in others}
    block = addresses.choose_block(
        desired.prefix,
        taken,
        numbers,
        lambda text: addresses.block_of(text) not in reserved and addresses.bindable(text, port),
    )
    wanted = []
    for number in numbers:
        host = hosts.Host(
            name=f"{desired.prefix}-{number:02d}",
            address=addresses.address(block, number),
            port=port,
            release=parts.release,
            daemon=parts.daemon,
            driver_version=parts.driver_version,
            gpus=parts.gpus,
            model=desired.model,
            mig=desired.mig,
            lower=parts.lower,
            gpu=desired.gpu,
            shares=desired.shares,
            nspawn=parts.nspawn,
            standin_server=desired.standin_server,
            disk_mib=desired.disk_mib,
            packages=desired.packages,
        )
        there = present.get(host.name)
        wanted.append(host if there is None else _same(host, there))
    return wanted


def _same(desired: hosts.Host, there: hosts.Host) -> hosts.Host:
    """Layers from newer sources are no difference to the user: they come with the next down and up."""
    # a real host has the GPUs that its machine has at each boot
    more = ("shares",) if desired.real else ("gpus", "model", "mig", "standin_server", "disk_mib", "packages")
    for field in ("gpu", "release", "daemon", *more):
        found, expected = getattr(there, field), getattr(desired, field)
        if found != expected:
            raise LabError(
                f"{there.name} is there with {field} {found}, asked for {expected}; take the lab down first, or name "
                "other hosts with --prefix"
            )
    return there


def down(places: Places, prefix: Optional[str] = None) -> None:
    """End and remove all hosts, or those of one prefix: by what lies there, whole or not, running or not."""
    names = sorted(path.name for path in places.hosts.glob("*") if path.is_dir())
    going = [name for name in names if prefix is None or name.startswith(f"{prefix}-")]
    with step(f"removing {len(going)} host{'' if len(going) == 1 else 's'}"):
        boot.stop(places, going)
        for name in going:
            removal.remove(hosts.folder(places, name))
        removal.remove(places.builds)
        left = hosts.load(places)
        if left:
            ssh.write_config(places, left)
        else:
            cgroups.remove(places)
            with neighbours.alone(places) as others:
                for path in (places.hosts, places.ssh):
                    removal.remove(path)
                if not others:
                    limits.put_back()
            _prune(places)


def _prune(places: Places) -> None:
    """With no host left, layers and roots made from older sources serve nobody."""
    current = layer.layer_path(places)
    for old in places.layers.glob("*"):
        if old != current:
            removal.remove(old)
    for old in places.packages.glob("*"):
        if old not in packages.current(places):
            removal.remove(old)
    for leftover in places.base.glob("trial-*"):
        removal.remove(leftover)


def listing(places: Places) -> list[dict[str, Any]]:
    """What ``list --json`` prints."""
    found = []
    for host in hosts.load(places):
        running = boot.supervisor_pid(places, host.name) is not None
        found.append(
            {
                "name": host.name,
                "address": host.address,
                "port": host.port,
                "user": hosts.USER,
                "key": str(ssh.key(places)),
                "ssh_config": str(ssh.config(places)),
                "release": host.release,
                "daemon": host.daemon and host.daemon.partition(".")[0],
                "daemon_version": host.daemon,
                "gpus": host.gpus,
                "model": host.model,
                "mig": list(host.mig),
                "state": "running" if running else "stopped",
                "leader_pid": boot.leader_pid(places, host.name),
                "gpu": host.gpu,
                "driver_version": host.driver_version,
                "shares": [f"{source}:{target}" for source, target in host.shares],
                "simulated": list(host.simulated),
            }
        )
    return found


def set_driver(places: Places, name: str, driver: hosts.Driver) -> None:
    """Say how a host's simulated driver behaves from its next boot on."""
    host = hosts.find_simulated(places, name)
    if host.gpus == 0:
        raise LabError(f"{name} has no GPU, so no driver ever loads there")
    hosts.write_driver(boot.host_root(places, host), host, driver)
    how = "is absent" if driver.absent else f"loads {driver.delay_s:g} s late" if driver.delay_s else "loads at once"
    say(f"{name}: from its next boot on the simulated driver {how}; now: lab/lab ssh {name} systemctl reboot")


DRIVER_FAULTS = {
    "upgraded": 'now, until a reboot: NVML says "Driver/library version mismatch", as after an upgrade underneath',
    "hanging": "now, until a reboot: NVML never answers",
}


def plant_driver_fault(places: Places, name: str, fault: str) -> None:
    """Let the simulated driver of a running host fail, or take every such fault away where ``fault`` is empty."""
    host = hosts.find_simulated(places, name)
    if boot.leader_pid(places, name) is None:
        raise LabError(f"{name} is not running, and this fault is forgotten at a boot; run `lab/lab up` again")
    run = boot.host_root(places, host) / "run/mps-lab"
    for other in DRIVER_FAULTS:
        (run / f"driver-{other}").unlink(missing_ok=True)
    if fault:
        (run / f"driver-{fault}").touch()
    say(f"{name}: the simulated driver is {fault or 'well'} now")


def build(places: Places, releases: tuple[str, ...]) -> None:
    """Roots, daemons and layers, so that a later ``up`` needs no network."""
    removal.remove(places.builds)
    layer.layer(places)
    for release in releases:
        root = roots.root(places, release)
        for label in daemons.SUITES:
            daemons.daemon(places, label, root)
        say(f"{release}: {root}")
    removal.remove(places.builds)


def _count(some: list[hosts.Host]) -> str:
    return f"{len(some)} host{'' if len(some) == 1 else 's'}"
