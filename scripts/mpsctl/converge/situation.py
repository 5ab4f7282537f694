"""What a plan stands on: what is desired of the host, what was found there, and what the checks say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from mpsctl.adapters import hardware
from mpsctl.checks.judgement import SITE
from mpsctl.checks.report import Report, report
from mpsctl.converge.ours import is_ours
from mpsctl.converge.request import Request
from mpsctl.lifecycle import prepare
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Gpu
from mpsctl.model.instance import Instance, check_gpus, one_gpu_twice
from mpsctl.model.instance_file import parse_conf
from mpsctl.observe import host as observed
from mpsctl.observe import units as unit_look
from mpsctl.observe.asked import Asked
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import GpuFacts, InstanceFacts
from mpsctl.observe.host import HostFacts
from mpsctl.store import configuration
from mpsctl.store.world import World


@dataclass(frozen=True)
class Desired:
    """The desired instances, and the text of each one's file by its name."""

    instances: tuple[Instance, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Situation:
    """``units`` are the desired units beside the instances', ``leftovers`` our instances that are no longer desired.

    ``gpu_missing`` are those of a desired state for every GPU whose GPU is not there.
    """

    world: World
    request: Request
    desired: Desired
    report: Report
    units: Mapping[str, UnitFacts]
    leftovers: tuple[str, ...]
    gpu_missing: tuple[str, ...]

    @property
    def host(self) -> HostFacts:
        return self.report.facts

    @property
    def gpus(self) -> Sequence[Gpu]:
        return self.host.gpus.gpus

    def facts(self, name: str) -> InstanceFacts:
        return self.host.instances[name]


def desired(request: Request, gpus: Sequence[Gpu]) -> Desired:
    """The desired instances of a host with these GPUs.

    :raises BadValue: for anything that only this host can refuse.
    :raises NotReady: if each GPU should have an instance and none answers.
    """
    listed = list(request.instances)
    if request.instance_per_gpu is not None:
        if not gpus:
            # The host's fault and no bad input: it must not stop the rest of the fleet.
            raise NotReady("no GPU of this host answers; look at `nvidia-smi` and dmesg, or take the host out")
        listed = [(str(gpu.index), request.instance_per_gpu) for gpu in gpus]
    instances = tuple(parse_conf(text, name) for name, text in listed)
    check_gpus(instances)
    for instance in instances:
        configuration.gid_of(instance)
        configuration.room_of(instance)
        configuration.check_place(instance)
    if any(instance.multi_user for instance in instances) and hardware.multi_user_flag() is None:
        raise prepare.no_multi_user()
    owners: dict[str, str] = {}
    for instance in instances:
        for device in configuration.resolve(instance, gpus):
            if device.uuid in owners:
                raise one_gpu_twice(device.uuid, owners[device.uuid], instance.name)
            owners[device.uuid] = instance.name
    return Desired(instances, dict(listed))


def fit(world: World, desired: Desired, gpus: GpuFacts) -> list[str]:
    """The arithmetic of every instance that says enough for one; what it warns of.

    :raises DoesNotFit: if clients cannot fit, or cannot even start.
    """
    found: list[str] = []
    for instance in desired.instances:
        if instance.limit is not None or instance.expected_clients is not None or instance.shares:
            from mpsctl.store import fitting  # spares its reading on hosts that do without

            found += fitting.judge(world, instance, configuration.resolve(instance, gpus.gpus), gpus.driver)
    return found


def look(world: World, request: Request, desired: Desired, gpus: GpuFacts, begun: Asked) -> Situation:
    """Look at the host. Changes nothing.

    :raises NotReady: if systemd does not answer.
    """
    ours = [
        name for name in configuration.names(world) if name not in desired.texts and is_ours(world.places.conf(name))
    ]
    gpu_missing = [] if request.instance_per_gpu is None else [n for n in ours if _named_by_its_gpu(world, n)]
    leftovers = [name for name in ours if name not in gpu_missing]
    host = observed.look(world, leftovers, desired.instances, known_gpus=gpus, begun=begun)
    if host.systemd_unread is not None:
        raise NotReady(host.systemd_unread.words)
    known = {host.timer.name: host.timer} if host.timer is not None else {}
    others = [name for name in request.units if name not in known]
    if others:
        known.update(unit_look.look(world, others))
    return Situation(
        world,
        request,
        desired,
        report(host, SITE),
        {name: known[name] for name in request.units},
        tuple(leftovers),
        tuple(gpu_missing),
    )


def _named_by_its_gpu(world: World, name: str) -> bool:
    """Whether an instance is one that a request for every GPU made: its file names the GPU of its own name.

    Without its GPU it is not taken for one that is no longer desired: a GPU that fell off the bus comes back with a
    reboot, and MPS with it.
    """
    try:
        return configuration.load(world, name).gpus == (name,)
    except BadValue:
        return False
