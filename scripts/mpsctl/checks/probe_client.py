"""The probe client: a real CUDA client that comes through an instance as its users do, and says what it sees.

In single-user mode a client of another user waits until the first one's clients have ended, and the server is then
replaced (driver 580, H200). So the probe client comes as the user of the server that runs, or as the configured one; as
root only where neither is known. In multi-user mode it comes as root and as an unprivileged user. Where only the
members of a group may connect, it comes as one of them; who is none is judged by the processes that are there.

A probe client takes the memory of one context, and for a trial of the limit a little more than the limit for a moment.
Where that much is not free, the clients are near the driver's cap, or the front door has no place for one more, nothing
is started: the answer is unknown.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import hardware, procfs
from mpsctl.adapters.bounded import Call
from mpsctl.adapters.control_daemon import Daemon, Server
from mpsctl.checks import free_places, words
from mpsctl.model import fit
from mpsctl.model.costs import Costs
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import MpsctlError, NotReady
from mpsctl.model.finding import CRITICAL, NOTHING, OK, PERSON, RELOAD, UNKNOWN, WARNING, Check
from mpsctl.model.foreign import pasted
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.observe import front_door
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.host import HostFacts
from mpsctl.store import configuration, front_door_notes, measured
from mpsctl.store.world import World

if TYPE_CHECKING:
    from mpsctl.adapters.cuda import Seen, Trial

CONNECTS, LIMIT, MULTIPROCESSORS = "probe-client-under-mps", "probe-client-memory-limit", "probe-client-multiprocessors"
ALLOCATION, KERNEL = "probe-client-allocation", "probe-client-kernel"
SUMMARIES: Mapping[str, str] = {
    CONNECTS: "A client of the instance's users runs under MPS.",
    LIMIT: "It has no more memory free than its limit.",
    MULTIPROCESSORS: "It has the multiprocessors of its thread percentage.",
    ALLOCATION: "It is given memory within its limit, and none past it; with --allocate.",
    KERNEL: "A small kernel computes the right result; with --allocate.",
}
"""What each check says, for the documentation."""
TIMEOUT_S = 20.0
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
    gpu_name: str
    end_s: float

    @property
    def limit_mib(self) -> Optional[int]:
        limit, memory_mib = self.instance.limit, self.device.memory_mib
        return None if limit is None or memory_mib is None else limit.on(memory_mib)

    @property
    def reload(self) -> str:
        return f"systemctl reload {pasted(self.instance.unit)}"

    def check(
        self, name: str, level: str, found: str, expected: str = "", remedy: str = "", mends: str = PERSON
    ) -> Check:
        """A check of this place; what mends it counts where it is amiss."""
        user = procfs.user(self.uid) if self.uid is not None else None
        where = f", device {self.ordinal}" if len(self.uuids) > 1 else ""
        line = f"{words.who(user, self.uid)}{where}: {found}"
        facts = {"uid": self.uid, "device": self.ordinal}
        mended = mends if level in (CRITICAL, WARNING) else NOTHING
        return Check(name, level, line, expected, remedy, mends=mended, facts=facts)


def look(world: World, host: HostFacts, allocate: bool = False, timeout_s: float = TIMEOUT_S) -> dict[str, list[Check]]:
    """What probe clients through the instances of a look see, by instance, on each device and for each user.

    ``allocate`` adds an allocation within the limit, one past it, and a small kernel with a known result. All of one
    instance have ``timeout_s`` seconds together, and a process of their own: what hangs in one holds up no other. Where
    no server runs, the first probe client has one started, which stays.
    """
    calls = {
        name: Call(partial(look_at_one, world, one, allocate, timeout_s), 2 * timeout_s, "the probe client")
        for name, one in host.instances.items()
        if one.desired is not None
    }
    found: dict[str, list[Check]] = {}
    for name, call in calls.items():
        try:
            found[name] = call.answer()
        except NotReady as error:
            found[name] = [Check(CONNECTS, UNKNOWN, str(error), "an answer in time")]
    return found


def look_at_one(world: World, one: InstanceFacts, allocate: bool = False, timeout_s: float = TIMEOUT_S) -> list[Check]:
    """What probe clients through one instance see; nothing is raised that has a line for people."""
    try:
        return _look(world, one, allocate, timeout_s)
    except MpsctlError as error:
        found = f"no client could be sent: {error}"
        return [Check(CONNECTS, UNKNOWN, found, "one through the instance", f"see `mpsctl status {pasted(one.name)}`")]


def _look(world: World, one: InstanceFacts, allocate: bool, timeout_s: float) -> list[Check]:
    instance = one.desired
    if instance is None or not one.door_open:
        raise NotReady("the instance lets no clients in")
    assert one.door is not None  # it is open
    assert one.door.directory is not None
    daemon = world.daemon_of(instance.name, one.door.directory)
    users = users_of(world, instance, daemon)
    uuids = tuple(device.uuid for device in one.devices)
    end_s = world.now_s() + timeout_s
    checks: list[Check] = []
    with world.nvml() as nvml:
        for ordinal, device in enumerate(one.devices):
            card, costs = one.cards.get(device.uuid), one.costs.get(device.uuid)
            if card is None or costs is None:
                raise NotReady(f"NVML does not tell how much memory {device} has")
            for uid in users:
                place = _Place(world, instance, uuids, device, ordinal, uid, costs, card.name, end_s)
                servers = control.servers(daemon)
                clients = sum(len(control.clients(daemon, server.pid)) for server in servers)
                free_mib = nvml.load(device.uuid).free_mib  # of this moment: nobody is to be disturbed
                crowded = _crowded(place, card, clients, bool(servers), free_mib)
                if crowded is None:
                    look_for_place = free_places.why_none_after_ours if checks else free_places.why_none
                    no_place = look_for_place(world, instance, uid)
                    crowded = f"not tried: {no_place}" if no_place else None
                if crowded:
                    checks.append(place.check(CONNECTS, UNKNOWN, crowded, "room for one more client"))
                else:
                    checks += _probe(place, allocate, free_mib or 0)
    return checks


def users_of(world: World, instance: Instance, daemon: Daemon) -> list[int]:
    """The users as whom clients of ours can come without keeping anyone waiting.

    :raises NotReady: if that is nobody whom we may become, or another user's client waits already, who comes in first.
    """
    servers = control.servers(daemon)
    own = os.geteuid()
    if _serves_several(world, instance):
        return [own] if own else list(dict.fromkeys([0, _unprivileged(instance)]))
    uid = _single_user(instance, servers)
    if own not in (0, uid):
        raise NotReady(f"the server is user {uid}'s, and user {own} would wait behind it; run it as root")
    before = front_door.of_others(front_door_notes.read(world.places, instance.name).waiting, uid)
    if before:
        line = f"user {before[0].uid} waits at the front door (pid {before[0].pid})"
        raise NotReady(f"{line}, and a client of user {uid} would wait behind it; ask again when nobody waits")
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
        return [place.check(CONNECTS, UNKNOWN, "the time for probe clients was over", "an answer in time")]
    trial = _trial(place, allocate, free_mib)
    environment = {PIPE_DIRECTORY: place.instance.pipe_directory, VISIBLE_DEVICES: ",".join(place.uuids)}
    try:
        with world.cuda(environment, left_s, trial) as seen:
            return _judge(place, seen, trial, allocate, free_mib)
    except (cuda.CudaError, cuda.TooLate) as error:
        return [_did_not_start(place, error)]
    except NotReady as error:
        return [place.check(CONNECTS, UNKNOWN, str(error), "libcuda.so.1 of the driver")]


def _did_not_start(place: _Place, error: NotReady) -> Check:
    """What an error of a probe client says, of which some are no fault: others came first."""
    from mpsctl.adapters import cuda

    code = error.code if isinstance(error, cuda.CudaError) else None
    if code == cuda.TOO_MANY_CLIENTS:
        remedy = "ask again when clients have ended"
        return place.check(CONNECTS, UNKNOWN, str(error), "a client that starts", remedy)
    if code in (None, cuda.REFUSED):
        with suppress(NotReady):  # then the error says more
            no_place = free_places.why_none(place.world, place.instance, place.uid)
            if no_place is not None:
                return place.check(CONNECTS, UNKNOWN, f"{error}; {no_place}", "room for one more client")
    status = f"`mpsctl status {pasted(place.instance.name)}`, then its log"
    remedy = "look at the daemon and its server" if code is None else status
    return place.check(CONNECTS, CRITICAL, str(error), "a client that starts", remedy)


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
        return place.check(CONNECTS, UNKNOWN, "this driver does not tell a client whether it is under MPS", expected)
    if seen.under_mps:
        return place.check(CONNECTS, OK, f"under MPS, up within {seen.seconds:g} s", expected)
    return place.check(
        CONNECTS,
        CRITICAL,
        f"it ran outside MPS, with {seen.free_mib} MiB free to it",
        expected,
        f"this user must find {place.instance.pipe_directory}/control: see the permissions of every directory above it",
    )


def _limit(place: _Place, seen: Seen, card_free_mib: int) -> Check:
    limit_mib, free_mib = place.limit_mib, seen.free_mib
    if limit_mib is None:
        return place.check(LIMIT, OK, f"{free_mib} MiB free to it; no limit is managed", "no limit is desired")
    found, expected = f"{free_mib} MiB free to it", f"less than the limit of {limit_mib} MiB, by what a context takes"
    if free_mib >= limit_mib:
        return place.check(LIMIT, CRITICAL, found, expected, f"{place.reload}: no such limit is in force", RELOAD)
    if card_free_mib < limit_mib + place.costs.server_mib:
        return place.check(
            LIMIT, UNKNOWN, f"{found}, of {card_free_mib} MiB on the card: the card ends before the limit", expected
        )
    with_context_mib = free_mib + place.costs.context_mib
    if not place.costs.borrowed and with_context_mib + _TOLERANCE_MIB < limit_mib:
        return place.check(
            LIMIT,
            WARNING,
            f"{found}: with its context of {place.costs.context_mib} MiB a limit of about {with_context_mib} MiB",
            expected,
            f"the server has another limit than is desired: {place.reload}",
            RELOAD,
        )
    return place.check(LIMIT, OK, found, expected)


def _multiprocessors(place: _Place, seen: Seen) -> Check:
    percentage, found = place.instance.thread_percentage, f"{seen.multiprocessors} multiprocessors"
    if percentage is None:
        return place.check(MULTIPROCESSORS, OK, f"{found}; no percentage is managed", "no percentage is desired")
    all_of_them = measured.multiprocessors_of(place.world, place.gpu_name)
    if all_of_them is None:
        return place.check(
            MULTIPROCESSORS,
            UNKNOWN,
            f"{found}; how many the whole device has was not measured",
            f"{percentage:g} % of them",
            "run `mpsctl measure --threads 100` on a GPU of this model",
        )
    # 25 % of 132 is 33 and gives 32, 50 % gives 66 (driver 580, H200): rounded to what the hardware can part.
    desired = all_of_them * percentage / 100
    good = abs(seen.multiprocessors - desired) <= max(2.0, all_of_them / 50)
    return place.check(
        MULTIPROCESSORS,
        OK if good else CRITICAL,
        found,
        f"about {desired:.0f}, {percentage:g} % of {all_of_them}",
        "" if good else f"{place.reload}; clients that name a percentage themselves have less",
        RELOAD,
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
        return place.check(ALLOCATION, CRITICAL, f"{within_mib} MiB within the limit: error {within}", expected)
    if past == 0:
        return place.check(
            ALLOCATION, CRITICAL, f"{past_mib} MiB past the limit were given", expected, place.reload, RELOAD
        )
    if past not in (OUT_OF_MEMORY, None):
        return place.check(ALLOCATION, WARNING, f"{past_mib} MiB past the limit: error {past}", expected)
    if within is None or past is None:
        return place.check(
            ALLOCATION, UNKNOWN, "the card has not enough free to try without disturbing others", expected
        )
    limited = f", {past_mib} MiB refused with error {past}" if place.limit_mib is not None else ""
    return place.check(ALLOCATION, OK, f"{within_mib} MiB given and freed{limited}", expected)


def _kernel(place: _Place, seen: Seen) -> Check:
    expected = "a small kernel's right result"
    if seen.kernel_right is None:
        return place.check(KERNEL, UNKNOWN, seen.kernel_problem or "no kernel was run", expected)
    found = "right" if seen.kernel_right else seen.kernel_problem or "the result is wrong"
    return place.check(KERNEL, OK if seen.kernel_right else CRITICAL, found, expected)
