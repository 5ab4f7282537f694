"""What can be seen of a host, as typed facts. No sentence and no judgement stands here; None means: not told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional

from mpsctl.adapters.daemon_log import DaemonLog
from mpsctl.model.client_variable import Bypass
from mpsctl.model.costs import Costs
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import BadValue, MpsctlError
from mpsctl.model.fit import Card
from mpsctl.model.gpu import Device, Gpu, Load
from mpsctl.model.instance import Instance
from mpsctl.observe.door_facts import DoorFacts, RoomFacts, UnitFacts, Waiting
from mpsctl.observe.process_facts import GpuProcess, Obstacle
from mpsctl.store import record
from mpsctl.store.desired_values import DesiredValue
from mpsctl.store.drains import Drain

NOT_TOLD, NO_RIGHT, NO_ANSWER, ABSENT = "not told", "no right", "no answer", "absent"

Held = Mapping[int, Optional[int]]
"""What NVML lists: by process id what each holds in MiB, None where it does not tell."""


@dataclass(frozen=True)
class Unread:
    """Something that could not be read: ``source`` is what was asked, ``why`` one of the words above, ``words`` what
    the source itself said."""

    source: str
    why: str
    words: str = ""


@dataclass
class GpuFacts:
    """The GPUs and who is on them, as NVML showed them at one moment; ``unread`` is why it showed nothing.

    ``compute``, ``clients`` and ``loads`` are by the UUID of each GPU and MIG device, None where NVML does not tell.
    ``cuda`` is the CUDA version that the driver serves, as 13000 for 13.0.
    """

    gpus: list[Gpu] = field(default_factory=list)
    driver: Optional[str] = None
    cuda: Optional[int] = None
    compute: dict[str, Optional[Held]] = field(default_factory=dict)
    clients: dict[str, Optional[Held]] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    unread: Optional[Unread] = None
    upgraded_underneath: bool = False
    """whether NVML's library and the loaded driver are of different releases"""

    def load(self, uuid: str) -> Load:
        return self.loads.get(uuid, Load())


@dataclass(frozen=True)
class DaemonProcess:
    """A control daemon's process, whoever started it.

    ``directory`` is the pipe directory that it serves and ``visible`` its CUDA_VISIBLE_DEVICES, by its environment;
    ``readable`` is whether that could be read. ``elsewhere`` is whether its directory is not this host's of that name:
    a container has its own. ``missing`` are files that every daemon makes there and that are gone; None: not looked at.
    ``roots`` is whether root started it: anybody can have a process of this name and environment.
    """

    pid: int
    command: str
    uid: Optional[int]
    user: Optional[str]
    container: Optional[str] = None
    state: str = "S"
    parent: int = 0
    readable: bool = False
    directory: Optional[Path] = None
    visible: Optional[str] = None
    elsewhere: bool = False
    missing: Optional[tuple[str, ...]] = None
    roots: bool = False


@dataclass(frozen=True)
class ServerProcess:
    """An MPS server's process. ``daemon`` is its control daemon's, None where that is gone: the server is left over."""

    pid: int
    uid: Optional[int]
    user: Optional[str]
    daemon: Optional[int]
    state: str = "S"


@dataclass(frozen=True)
class MainProcess:
    """The main process of an instance's unit.

    ``serves`` is what it was started with, None where that may not be read or is no daemon's; ``replaced`` whether its
    file is not the installed one any more, in words; ``several_users`` whether it was told to serve several users.
    """

    pid: int
    alive: bool
    state: str
    parent: int
    readable: bool
    serves: Optional[DaemonEnvironment]
    several_users: bool
    replaced: Optional[str] = None

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger stopped it: it accepts connections and never answers."""
        return self.state in ("T", "t")


@dataclass(frozen=True)
class Value:
    """One limit of the defaults or of a server: how it is set and read, and what the getter printed.

    ``server`` is the server's pid, None for the defaults.
    """

    desired: DesiredValue
    shown: Optional[str]
    server: Optional[int] = None

    @property
    def in_force(self) -> bool:
        return self.desired.in_force([] if self.shown is None else [self.shown])

    @property
    def only_unproven(self) -> bool:
        """Whether what the getter shows agrees with what is desired, and is only too coarse to prove it."""
        return not self.in_force and self.desired.said_bytes is None and self.shown == self.desired.reads


@dataclass(frozen=True)
class OverLimit:
    """A client that holds more than a limit on the device of an ordinal; ``limit_mib`` None: the log does not tell
    which, and ``held_mib`` is more than what is desired now."""

    ordinal: int
    held_mib: int
    limit_mib: Optional[int]


@dataclass(frozen=True)
class OlderLimit:
    """A client's limit on the device of an ordinal that is not what is desired now: it connected before the change."""

    ordinal: int
    limit_mib: int
    desired_mib: int


@dataclass(frozen=True)
class RankFacts:
    """The rank of a distributed run that a client is, as its launcher told it; ``run`` names the run."""

    number: int
    size: int
    launcher: str
    run: tuple[str, ...]
    nccl_mapped: bool = False
    multi_rank_allowed: bool = False


@dataclass
class ClientFacts:
    """One client of a server. Lists go by the ordinals of the daemon's devices.

    ``limits_mib`` is what the server's log says it connected with, ``memory_mib`` what NVML says it holds. ``state`` is
    the kernel's letter, empty where the process is gone. ``bypass`` is what in its environment drops every limit,
    ``over`` where it holds more than its limit, ``without`` the ordinals for which its server had no limit for it when
    it connected, and ``began_here`` whether it did not begin with a server that ended; ``limit_untold`` is whether the
    journal no longer has the line that would tell.
    """

    pid: int
    uid: Optional[int]
    user: Optional[str]
    command: str
    since: Optional[str]
    limits_mib: list[Optional[int]]
    memory_mib: list[Optional[int]]
    started_at: Optional[int]
    state: str = ""
    container: Optional[str] = None
    readable: bool = True
    bypass: Optional[Bypass] = None
    over: tuple[OverLimit, ...] = ()
    older: tuple[OlderLimit, ...] = ()
    without: tuple[int, ...] = ()
    began_here: bool = True
    limit_untold: bool = False
    rank: Optional[RankFacts] = None

    @property
    def unlimited(self) -> bool:
        """Whether it is known that no limit holds it."""
        return self.bypass is not None or bool(self.without) or any(one.limit_mib is not None for one in self.over)


@dataclass
class ServerFacts:
    """A server of the daemon; ``state`` is None where the daemon does not tell (535). ``process_state`` is the kernel's
    letter, ``of_main`` whether it is a child of the unit's main process (None where it cannot be told)."""

    pid: int
    uid: Optional[int]
    state: Optional[str]
    process_state: str = ""
    of_main: Optional[bool] = None
    values: list[Value] = field(default_factory=list)
    clients: list[ClientFacts] = field(default_factory=list)


ANSWERED, NOT_ASKED, STOPPED, NOT_SERVED, UNREACHABLE, REFUSED = (
    "answered",
    "not asked",
    "stopped",
    "not served",
    "unreachable",
    "refused",
)


@dataclass(frozen=True)
class SessionHolder:
    """A process that is connected to a daemon which serves nobody else; ``command`` is empty once it is gone."""

    pid: int
    uid: Optional[int]
    user: Optional[str]
    command: str


@dataclass(frozen=True)
class Answer:
    """Whether the control daemon told what it was asked: one of the words above, and why not in the source's words.

    ``held_by`` are those that were connected when it was not served, by the peers of its sockets, and ``unnamed`` how
    many more whose process is not known; ``holders_untold`` is why it cannot be told who else was, or empty.
    ``disturbed`` is whether the front door may have been passing clients on then.
    """

    kind: str = NOT_ASKED
    words: str = ""
    held_by: tuple[SessionHolder, ...] = ()
    unnamed: int = 0
    holders_untold: str = ""
    disturbed: bool = False

    @property
    def complete(self) -> bool:
        return self.kind == ANSWERED

    @property
    def held(self) -> bool:
        """Whether somebody holds the one session that a daemon serves at a time."""
        return bool(self.held_by or self.unnamed)

    @property
    def holders(self) -> tuple[int, ...]:
        """Who does, by process id."""
        return tuple(one.pid for one in self.held_by)


@dataclass
class InstanceFacts:
    """One instance as found. ``desired`` is None where its file is refused (``refused`` says why).

    ``devices`` are the desired ones, empty where ``devices_refused``. ``log`` is the unit's present start in the
    journal. ``processes`` are by the UUID of the device, without those whose processes NVML does not list.
    ``in_force_s`` is how long its limits have been in force, ``short_lives`` how many starts in a row did not last.
    """

    name: str
    unit: UnitFacts
    desired: Optional[Instance] = None
    refused: Optional[BadValue] = None
    devices: tuple[Device, ...] = ()
    devices_refused: Optional[BadValue] = None
    drain: Optional[Drain] = None
    short_lives: int = 0
    in_force_s: Optional[float] = None
    door: Optional[DoorFacts] = None
    door_open: bool = False
    """whether clients come to the daemon that runs, through the front door or without one"""
    serves_public: Optional[Path] = None
    """the public directory that the daemon itself serves, without a front door; None where it has one of its own"""
    jammed: bool = False
    """whether its daemon is jammed, as the front door found or this look: it answers no question about a server any
    more, and neither holds anybody its session nor is a server stopped"""
    main: Optional[MainProcess] = None
    group_id: Optional[int] = None
    group_refused: Optional[BadValue] = None
    room_refused: Optional[BadValue] = None
    """why the shares are not what the host can hold: a user that it does not have"""
    missing_files: Optional[tuple[str, ...]] = None
    """files that its daemon made and that are gone; None: the directory cannot be read"""
    directory_closed: Optional[bool] = None
    """whether only root and the daemon's servers come to the daemon's own directory; None: not looked at"""
    guards_limits: Optional[bool] = None
    """whether the daemon lets nobody but root change limits (550 on); None: not told"""
    closed_for_now: bool = False
    """whether clients come to the daemon itself, and its directory is closed as the instance lets nobody in"""
    access: Optional[Obstacle] = None
    """what keeps those that may connect from the pipe directory"""
    client_file: Optional[str] = None
    """the text of the file of variables for clients; None: there is none"""
    client_file_unread: Optional[Unread] = None
    connects_as: str = ""
    server_user_unknown: bool = False
    answer: Answer = field(default_factory=Answer)
    limits_refused: Optional[MpsctlError] = None
    """why it is not known which memory limits are desired: a GPU that is gone, or one whose memory is not told"""
    values: list[Value] = field(default_factory=list)
    servers: list[ServerFacts] = field(default_factory=list)
    log: DaemonLog = field(default_factory=DaemonLog)
    log_unread: Optional[Unread] = None
    log_trusted: Optional[bool] = None
    """whether only the daemon and its servers can have written its log; None: not told"""
    waiting: list[Waiting] = field(default_factory=list)
    """before the front door and in the daemon's pending list, the longest first"""
    room: Optional[RoomFacts] = None
    """how many clients are in and may be; None where the front door holds no number"""
    processes: dict[str, list[GpuProcess]] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    """what is known of each device, by UUID, for the arithmetic of what fits; without those whose memory is not told"""
    costs: dict[str, Costs] = field(default_factory=dict)
    """what a client's context and the server take there"""
    unread: Optional[Unread] = None
    """why the look at this instance as a whole failed"""

    @property
    def active(self) -> bool:
        return self.unit.active

    @property
    def lasts(self) -> bool:
        """Whether this start has lasted so long that it is none of a loop of crashes."""
        return self.in_force_s is not None and self.in_force_s >= record.STABLE_AFTER_S

    @property
    def pid(self) -> int:
        return self.unit.main_pid

    @property
    def without_door(self) -> bool:
        """Whether clients come to the daemon's own sockets: as desired, or until the restart that brings a front door.
        A daemon that stands behind a front door does so until its restart."""
        desired = self.desired is not None and not self.desired.front_door
        return self.serves_public is not None or (desired and not self.pid)

    @property
    def public(self) -> Optional[Path]:
        return Path(self.desired.pipe_directory) if self.desired else None

    @property
    def found_at(self) -> Optional[Path]:
        """Where clients find it now: what its daemon serves itself, where its front door stands, else as desired."""
        door = self.door.unit if self.door is not None else None
        at_door = door.listens_on.parent if door is not None and door.active and door.listens_on is not None else None
        return self.serves_public or at_door or self.public

    @property
    def serves(self) -> tuple[str, ...]:
        """The devices of the running daemon by UUID, whatever is desired."""
        return self.main.serves.devices if self.main and self.main.serves else ()

    @property
    def every_value(self) -> list[Value]:
        return [*self.values, *(value for server in self.servers for value in server.values)]

    @property
    def clients(self) -> list[ClientFacts]:
        return [client for server in self.servers for client in server.clients]

    @property
    def clients_unknown(self) -> bool:
        """Whether a daemon is there and nobody knows who is connected."""
        return self.unread is not None or (self.pid != 0 and not self.answer.complete)

    @property
    def unresponsive(self) -> bool:
        """Whether the daemon's process lives, was asked, and nobody answered."""
        asked = self.answer.kind in (STOPPED, NOT_SERVED, UNREACHABLE)
        return asked and self.main is not None and self.main.alive
