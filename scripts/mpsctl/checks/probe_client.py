"""A real CUDA client as probe client: what one sees that comes through an instance as its users do.

In single-user mode a client of another user waits until the first one's clients have ended, and the server is then
replaced (driver 580, H200). So the probe client comes as the user of the server that runs, or as the configured one; as root
only where neither is known. In multi-user mode it comes as root and as an unprivileged user. Where only the members of
a group may connect, it comes as one of them; who is none is judged by the processes that are there.

A probe client takes the memory of one context, and for a trial of the limit a little more than the limit for a moment.
Where that much is not free, or the clients are near the driver's cap, nothing is started: the answer is "cannot tell".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import hardware, pipe, procfs
from mpsctl.adapters.control_daemon import Daemon, Server
from mpsctl.model import fit
from mpsctl.model.costs import Costs
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import MpsctlError, NotReady
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN, Check
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, fitting, measured
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.adapters.cuda import Seen, Trial

CONNECTS, LIMIT, MULTIPROCESSORS = "probe-client-under-mps", "probe-client-memory-limit", "probe-client-multiprocessors"
ALLOCATION, KERNEL = "probe-client-allocation", "probe-client-kernel"
_UNPRIVILEGED = "nobody"
_MARGIN_MIB = 256
"""What stays free on the card beside the probe client: a client at work may be about to allocate."""
_PAST_MIB, _WITHIN_MIB = 64, 32
_SPARE_CLIENTS = 1
_TOLERANCE_MIB = 64


@dataclass(frozen=True)
class _Place:
    """Where one probe client stands: an instance, the UUIDs of its daemon's devices, one of them, and its user."""

    world: World
    instance: Instance
    uuids: tuple[str, ...]
    device: Device
    ordinal: int
    uid: Optional[int]
    costs: Costs
    end_s: float

    @property
    def limit_mib(self) -> Optional[int]:
        return None if self.instance.limit is None else self.instance.limit.on(self.device.memory_mib)

    def check(self, name: str, level: str, found: str, expected: str = "", remedy: str = "") -> Check:
        who = procfs.user(self.uid) if self.uid is not None else None
        where = f", device {self.ordinal}" if len(self.uuids) > 1 else ""
        return Check(name, level, f"user {who or self.uid}{where}: {found}", expected, remedy)


def look(world: World, instance: Instance, allocate: bool = False, timeout_s: float = 20) -> list[Check]:
    """What probe clients through a running instance see, on each of its devices and for each of its users.

    ``allocate`` adds an allocation within the limit, one past it, and a small kernel whose result is checked. All
    together they have ``timeout_s`` seconds. Where no server runs, the first probe client has one started, which stays.
    """
    daemon = world.daemon_of(instance.name, Path(instance.pipe_directory))
    checks: list[Check] = []
    try:
        if pipe.behind_door(Path(instance.pipe_directory)) is None:
            raise NotReady("the instance lets no clients in")
        users = users_of(world, instance, daemon)
        with world.nvml() as nvml:
            devices = configuration.resolve(instance, nvml.gpus())
            driver = nvml.driver_version()
            end_s = world.now_s() + timeout_s
            for ordinal, device in enumerate(devices):
                card = fitting.kind_of(device, driver)
                costs = measured.costs_of(world, card.name, driver, instance.thread_percentage)
                uuids = tuple(one.uuid for one in devices)
                for uid in users:
                    place = _Place(world, instance, uuids, device, ordinal, uid, costs, end_s)
                    servers = control.servers(daemon)
                    clients = sum(len(control.clients(daemon, server.pid)) for server in servers)
                    free_mib = nvml.load(device.uuid).free_mib
                    crowded = _crowded(place, card, clients, bool(servers), free_mib)
                    if crowded:
                        checks.append(place.check(CONNECTS, CANNOT_TELL, crowded, "room for one more client"))
                    else:
                        checks += _probe(place, allocate, free_mib or 0)
    except MpsctlError as error:
        checks.append(
            Check(
                CONNECTS,
                CANNOT_TELL,
                f"no client could be sent: {error}",
                "one through the instance",
                f"see `mpsctl status {instance.name}`",
            )
        )
    return checks


def users_of(world: World, instance: Instance, daemon: Daemon) -> list[int]:
    """The users as whom clients of ours can come without keeping anyone waiting.

    :raises NotReady: if that is nobody whom we may become.
    """
    servers = control.servers(daemon)
    own = os.geteuid()
    if _serves_several(world, instance):
        return [own] if own else list(dict.fromkeys([0, _unprivileged(instance)]))
    uid = _single_user(instance, servers)
    if own not in (0, uid):
        raise NotReady(f"the server is user {uid}'s, and user {own} would wait behind it; run it as root")
    return [uid]


def _single_user(instance: Instance, servers: Sequence[Server]) -> int:
    uids = {uid for uid in (procfs.uid(server.pid) for server in servers) if uid is not None}
    if len(uids) == 1:
        return uids.pop()
    if uids:
        raise NotReady("the server is about to be replaced by one of another user; try again")
    if servers:
        raise NotReady("the server's user cannot be told: it runs in another namespace or has just ended")
    return os.geteuid() if instance.server_user is None else _uid_of(instance.server_user)


def _serves_several(world: World, instance: Instance) -> bool:
    """What the running daemon does; what is desired may still wait for a restart."""
    shown = world.systemd.show([instance.unit]).get(instance.unit, {}).get("MainPID", "")
    title = procfs.title(int(shown)) if shown.isdigit() and int(shown) else ""
    return hardware.serves_several_users(title) if title else instance.multi_user


def _unprivileged(instance: Instance) -> int:
    uid = 0 if instance.server_user is None else _uid_of(instance.server_user)
    return uid or _uid_of(_UNPRIVILEGED)


def _uid_of(user: str) -> int:
    uid = procfs.uid_of(user)
    if uid is None:
        raise NotReady(f"this host has no user {user}")
    return uid


def _crowded(place: _Place, card: fit.Card, clients: int, has_server: bool, free_mib: Optional[int]) -> Optional[str]:
    """Why one more client could disturb, or None."""
    cap = fit.cap_of(card)
    if clients + 1 + _SPARE_CLIENTS > cap:
        return f"{clients} clients are connected, and the driver takes {cap}"
    if free_mib is None:
        return "NVML does not tell how much memory is free"
    needed_mib = _context_mib(place) + (0 if has_server else place.costs.server_mib)
    if free_mib < needed_mib:
        return f"{free_mib} MiB are free, and a client needs {needed_mib} MiB with a margin of {_MARGIN_MIB} MiB"
    return None


def _context_mib(place: _Place) -> int:
    return place.costs.context_mib + _MARGIN_MIB


def _probe(place: _Place, allocate: bool, free_mib: int) -> list[Check]:
    from mpsctl.adapters import cuda

    world = place.world
    left_s = place.end_s - world.now_s()
    if left_s <= 0:
        return [place.check(CONNECTS, CANNOT_TELL, "the time for probe clients was over", "an answer in time")]
    trial = _trial(place, allocate, free_mib)
    environment = {PIPE_DIRECTORY: place.instance.pipe_directory, VISIBLE_DEVICES: ",".join(place.uuids)}
    try:
        with world.cuda(environment, left_s, trial) as seen:
            return _judge(place, seen, trial, allocate, free_mib)
    except cuda.CudaError as error:
        full = error.code == cuda.TOO_MANY_CLIENTS
        return [
            place.check(
                CONNECTS,
                CANNOT_TELL if full else FAIL,
                str(error),
                "a client that starts",
                "ask again when clients have ended" if full else f"`mpsctl status {place.instance.name}`, then its log",
            )
        ]
    except cuda.TooLate as error:
        return [place.check(CONNECTS, FAIL, str(error), "a client that starts", "look at the daemon and its server")]
    except NotReady as error:
        return [place.check(CONNECTS, CANNOT_TELL, str(error), "libcuda.so.1 of the driver")]


def _trial(place: _Place, allocate: bool, free_mib: int) -> Trial:
    from mpsctl.adapters.cuda import Trial

    sizes: list[int] = []
    if allocate:
        # Past the limit first. On a card without that much free, a refusal would prove nothing.
        if place.limit_mib is not None and free_mib >= _context_mib(place) + place.limit_mib + _PAST_MIB:
            sizes.append(place.limit_mib + _PAST_MIB)
        if free_mib >= _context_mib(place) + _WITHIN_MIB:
            sizes.append(_within_mib(place))
    uid = None if place.uid == os.geteuid() else place.uid
    return Trial(place.ordinal, uid, tuple(sizes), allocate, configuration.gid_of(place.instance))


def _within_mib(place: _Place) -> int:
    if place.limit_mib is None:
        return _WITHIN_MIB
    return max(1, min(_WITHIN_MIB, (place.limit_mib - place.costs.context_mib) // 2))


def _judge(place: _Place, seen: Seen, trial: Trial, allocate: bool, card_free_mib: int) -> list[Check]:
    checks = [_connected(place, seen)]
    if seen.under_mps is False:
        return checks  # what it saw is not the instance's
    checks += [_limit(place, seen, card_free_mib), _multiprocessors(place, seen)]
    if allocate:
        checks += [_allocation(place, seen, trial), _kernel(place, seen)]
    return checks


def _connected(place: _Place, seen: Seen) -> Check:
    expected = "a client under MPS"
    if seen.under_mps is None:
        return place.check(
            CONNECTS, CANNOT_TELL, "this driver does not tell a client whether it is under MPS", expected
        )
    if seen.under_mps:
        return place.check(CONNECTS, PASS, f"under MPS, up within {seen.seconds:g} s", expected)
    return place.check(
        CONNECTS,
        FAIL,
        f"it ran outside MPS, with {seen.free_mib} MiB free to it",
        expected,
        f"this user must find {place.instance.pipe_directory}/control: see the permissions of every directory above it",
    )


def _limit(place: _Place, seen: Seen, card_free_mib: int) -> Check:
    limit_mib, free_mib = place.limit_mib, seen.free_mib
    if limit_mib is None:
        return place.check(LIMIT, PASS, f"{free_mib} MiB free to it; no limit is managed", "no limit is desired")
    found, expected = f"{free_mib} MiB free to it", f"less than the limit of {limit_mib} MiB, by what a context takes"
    if free_mib >= limit_mib:
        return place.check(LIMIT, FAIL, found, expected, f"reload {place.instance.unit}: no such limit is in force")
    if card_free_mib < limit_mib + place.costs.server_mib:
        return place.check(
            LIMIT, CANNOT_TELL, f"{found}, of {card_free_mib} MiB on the card: the card ends before the limit", expected
        )
    with_context_mib = free_mib + place.costs.context_mib
    if not place.costs.borrowed and with_context_mib + _TOLERANCE_MIB < limit_mib:
        return place.check(
            LIMIT,
            WARN,
            f"{found}: with its context of {place.costs.context_mib} MiB a limit of about {with_context_mib} MiB",
            expected,
            f"the server has another limit than is desired: reload {place.instance.unit}",
        )
    return place.check(LIMIT, PASS, found, expected)


def _multiprocessors(place: _Place, seen: Seen) -> Check:
    percentage, found = place.instance.thread_percentage, f"{seen.multiprocessors} multiprocessors"
    if percentage is None:
        return place.check(MULTIPROCESSORS, PASS, f"{found}; no percentage is managed", "no percentage is desired")
    all_of_them = measured.multiprocessors_of(place.world, fitting.kind_of(place.device, None).name)
    if all_of_them is None:
        return place.check(
            MULTIPROCESSORS,
            CANNOT_TELL,
            f"{found}; how many the whole device has was not measured",
            f"{percentage:g} % of them",
            "run `mpsctl measure --threads 100` on a GPU of this model",
        )
    # 25 % of 132 is 33 and gives 32, 50 % gives 66 (driver 580, H200): rounded to what the hardware can part.
    desired = all_of_them * percentage / 100
    good = abs(seen.multiprocessors - desired) <= max(2.0, all_of_them / 50)
    return place.check(
        MULTIPROCESSORS,
        PASS if good else FAIL,
        found,
        f"about {desired:.0f}, {percentage:g} % of {all_of_them}",
        "" if good else f"reload {place.instance.unit}; clients that name a percentage themselves have less",
    )


def _allocation(place: _Place, seen: Seen, trial: Trial) -> Check:
    from mpsctl.adapters.cuda import OUT_OF_MEMORY

    within_mib, past_mib = _within_mib(place), (place.limit_mib or 0) + _PAST_MIB
    found = dict(zip(trial.allocate_mib, seen.allocated))
    within, past = found.get(within_mib), found.get(past_mib) if place.limit_mib is not None else OUT_OF_MEMORY
    expected = f"{within_mib} MiB are given"
    if place.limit_mib is not None:
        expected += f", and {past_mib} MiB refused with error {OUT_OF_MEMORY}"
    if within not in (0, None):
        return place.check(ALLOCATION, FAIL, f"{within_mib} MiB within the limit: error {within}", expected)
    if past == 0:
        return place.check(
            ALLOCATION, FAIL, f"{past_mib} MiB past the limit were given", expected, f"reload {place.instance.unit}"
        )
    if past not in (OUT_OF_MEMORY, None):
        return place.check(ALLOCATION, WARN, f"{past_mib} MiB past the limit: error {past}", expected)
    if within is None or past is None:
        return place.check(
            ALLOCATION, CANNOT_TELL, "the card has not enough free to try without disturbing others", expected
        )
    limited = f", {past_mib} MiB refused with error {past}" if place.limit_mib is not None else ""
    return place.check(ALLOCATION, PASS, f"{within_mib} MiB given and freed{limited}", expected)


def _kernel(place: _Place, seen: Seen) -> Check:
    expected = "a small kernel's right result"
    if seen.kernel_right is None:
        return place.check(KERNEL, CANNOT_TELL, seen.kernel_problem or "no kernel was run", expected)
    found = "right" if seen.kernel_right else seen.kernel_problem or "the result is wrong"
    return place.check(KERNEL, PASS if seen.kernel_right else FAIL, found, expected)
