"""The desired state of one instance (one control daemon)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional

from mpsctl.model import gpu as gpu_names
from mpsctl.model.checked_values import ADMIT, PROHIBITED, REFUSE, REPORT, RESTORE, WARN
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted
from mpsctl.model.names import door_unit
from mpsctl.model.quantity import Quantity
from mpsctl.model.settings import VARIABLES
from mpsctl.model.shares import Room, Shares


@dataclass(frozen=True)
class Instance:
    """What is desired of one instance. ``None`` means not managed.

    ``limit`` is what one client may take on each device, ``thread_percentage`` the share of the
    multiprocessors in percent, ``client_priority`` 0 (normal) or 1 (below normal), ``expected_clients`` how
    many clients are to fit on each device, ``over_expected`` what becomes of one more, or of one beyond its share in
    ``shares``: ADMIT, WAIT or REFUSE. ``limit_bypass`` says what becomes of a client that shook off its limit: REPORT,
    REFUSE at the door, or TERMINATE after ``limit_bypass_grace_s`` seconds. ``distributed_jobs`` is what is said of
    ranks of a distributed training run among its clients: IGNORE, WARN or FAIL. ``unresponsive_daemon`` is what
    becomes of a daemon that answers nothing: REPORT or RESTART. ``client_wait_s`` is how many seconds a client waits at
    the front door. Only root and the members of ``group`` may connect, or everyone where it is None. Without
    ``front_door`` the daemon's own sockets stand in ``pipe_directory``. What the keys of its file are called:
    ``settings``.
    """

    name: str
    gpus: tuple[str, ...]
    pipe_directory: str
    compute_mode: Optional[str] = None
    when_down: str = RESTORE
    multi_user: bool = False
    server_user: Optional[str] = None
    group: Optional[str] = None
    limit: Optional[Quantity] = None
    thread_percentage: Optional[float] = None
    client_priority: Optional[int] = None
    expected_clients: Optional[int] = None
    over_expected: str = ADMIT
    shares: Optional[Shares] = None
    driver_timeout_s: int = 90
    stop_timeout_s: int = 20
    limit_bypass: str = REPORT
    limit_bypass_grace_s: int = 60
    distributed_jobs: str = WARN
    unresponsive_daemon: str = REPORT
    client_wait_s: int = 60
    front_door: bool = True

    @property
    def eager_server(self) -> Optional[str]:
        """The user whose server is started before the first client comes, or None: it comes with the client.

        In multi-user mode every client is served by root's (driver 580, H200).
        """
        return "root" if self.multi_user else self.server_user

    @property
    def compute_mode_when_down(self) -> Optional[str]:
        """What the mode has to be while no daemon serves the GPUs, or None where that is not ours to say."""
        return PROHIBITED if self.when_down == PROHIBITED else None

    @property
    def room(self) -> Optional[Room]:
        """How many clients it takes at once, users as they are named; None where that is not held."""
        if self.over_expected == ADMIT:
            return None
        return Room(self.expected_clients, self.shares or Shares(), self.over_expected == REFUSE)

    @property
    def unit(self) -> str:
        return f"mps-control@{self.name}.service"

    @property
    def door(self) -> str:
        """The unit of the socket that its clients find."""
        return door_unit(self.name)


def check_together(instance: Instance) -> None:
    """What only makes sense together.

    :raises BadValue: for a prohibited GPU that no server would hold, a server that nobody would use, and a group that
        nobody would judge.
    """
    if instance.when_down == PROHIBITED:
        if instance.compute_mode != gpu_names.EXCLUSIVE_PROCESS:
            raise _refused(
                "WhenDown",
                f"prohibited with the compute mode {instance.compute_mode or 'not managed'}",
                "exclusive_process: in another mode nothing would keep the GPU for MPS",
                "set mps_compute_mode to exclusive_process, or mps_when_down to restore",
            )
        if instance.eager_server is None:
            raise _refused(
                "WhenDown",
                "prohibited without a server that takes the GPU at once",
                "mps_server_user, or mps_multi_user",
                "name the user whose clients connect",
            )
    if instance.multi_user and instance.server_user not in (None, "root", "0"):
        raise _refused(
            "ServerUser",
            f"{instance.server_user!r} with mps_multi_user",
            "no user: in multi-user mode root's server serves everyone",
            "take one of the two",
        )
    check_group_is_judged(instance.group, instance.front_door)
    _check_admission(instance)


def _check_admission(instance: Instance) -> None:
    held = instance.over_expected != ADMIT
    if held and instance.expected_clients is None and not instance.shares:
        raise _refused(
            "OverExpected",
            f"{instance.over_expected} without a number of clients",
            "mps_expected_clients or mps_shares, which it holds",
            "say how many clients there may be, or write admit",
        )
    if instance.shares and not held:
        raise _refused(
            "Shares",
            "shares with mps_over_expected: admit",
            "wait or refuse: what becomes of a client beyond its share",
            "write mps_over_expected: wait",
        )
    for share in instance.shares or ():
        if instance.expected_clients is not None and share.clients > instance.expected_clients:
            raise _refused(
                "Shares",
                f"{share}, with mps_expected_clients {instance.expected_clients}",
                "no share above the number of all clients",
                "lower the share, or raise mps_expected_clients",
            )
    if instance.front_door:
        return
    if held:
        raise _refused(
            "OverExpected",
            f"{instance.over_expected} without the front door",
            "admit: the front door alone holds a number of clients",
            "write admit, or mps_front_door: true",
        )
    if instance.limit_bypass == REFUSE:
        raise _refused(
            "LimitBypass",
            "refuse without the front door",
            "report or terminate: the front door alone refuses clients",
            "write report, or mps_front_door: true",
        )


def check_group_is_judged(group: Optional[str], front_door: bool) -> None:
    """:raises BadValue: for a group that nobody would judge."""
    if group is not None and not front_door:
        raise _refused(
            "Group",
            f"{quoted(group)} without the front door",
            "everyone: the front door alone judges who may connect",
            "set it to null, or mps_front_door to true",
        )


def _refused(key: str, found: str, expected: str, remedy: str) -> BadValue:
    return BadValue(found, expected, remedy, key, VARIABLES[key])


def check_gpus(instances: Iterable[Instance]) -> None:
    """Two instances on one device, as far as their names tell: two daemons would fight for it.

    :raises BadValue: naming both instances; the variable is ``mps_instances``.
    """
    owners: dict[str, str] = {}
    names: set[str] = set()
    for instance in instances:
        if instance.name in names:
            raise BadValue(
                f"two instances named {instance.name!r}", "one", "rename one of them", variable="mps_instances"
            )
        names.add(instance.name)
        for reference in instance.gpus:
            if reference in owners:
                raise one_gpu_twice(reference, owners[reference], instance.name)
            owners[reference] = instance.name


def one_gpu_twice(what: str, first: str, second: str) -> BadValue:
    """The refusal of two instances on one GPU."""
    return BadValue(
        f"GPU {what} in the instances {first!r} and {second!r}",
        "one instance for each GPU",
        "give it to one of them",
        key="GPUs",
        variable="mps_instances",
    )
