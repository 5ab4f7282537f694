"""Stand-ins for everything outside mpsctl: NVML, systemd, control daemons, processes and the clock.

``Host`` puts them together. It behaves as the measured ones do (control daemons 535, 550, 555; driver 580 on
an H200): the daemon refuses nothing, rounds what it shows, forgets at its end, and hands its defaults to a
server only when that starts.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import files
from mpsctl.adapters.control_daemon import Daemon, NotServed, Unreachable
from mpsctl.adapters.nvml import Nvml
from mpsctl.lifecycle import apply, prepare, stop
from mpsctl.model import settings
from mpsctl.model.errors import MpsctlError, NotInForce, NotReady
from mpsctl.model.gpu import Gpu, Load, MigDevice
from mpsctl.model.names import door_unit
from mpsctl.model.peers import Peers
from mpsctl.model.places import Places
from mpsctl.model.shares import Whose
from mpsctl.store import admission, configuration
from mpsctl.store.world import World

H200_MIB = 143_771
RESERVED_MIB = 616
"""What the driver keeps of an H200 for itself (driver 580)."""


def uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-{number:08x}-1111-2222-3333-444444444444"


def h200(index: int, **changes: object) -> Gpu:
    """An H200 as driver 580 shows it, fresh after a boot."""
    gpu = Gpu(
        index=index,
        uuid=uuid(index),
        pci_address=f"0000:{0x10 + index:02x}:00.0",
        name="NVIDIA H200",
        memory_mib=H200_MIB,
        compute_mode="default",
        persistence=True,
        mig_enabled=False,
        compute_capability=(9, 0),
    )
    return replace(gpu, **changes)  # type: ignore[arg-type]


def split_by_mig(index: int, slices: int = 2) -> Gpu:
    devices = tuple(
        MigDevice(uuid(100 * (index + 1) + n, "MIG"), "NVIDIA H200 MIG 1g.18gb", 16_384) for n in range(slices)
    )
    return h200(index, mig_enabled=True, mig_devices=devices)


DAEMON_FILES = {
    "control": 0o666,
    "control_privileged": 0o755,
    "control_lock": 0o644,
    "log": 0o777,
    "nvidia-cuda-mps-control.pid": 0o644,
}
"""What a running daemon has in its pipe directory (550 on); sockets and the FIFO are plain files here."""


class Clock:
    """Time that only passes while somebody sleeps. ``when(s, act)`` does something at a later moment."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._due: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        due = [act for moment, act in self._due if moment <= self.now_s]
        self._due = [(moment, act) for moment, act in self._due if moment > self.now_s]
        for act in due:
            act()

    def when(self, in_s: float, act: Callable[[], None]) -> None:
        self._due.append((self.now_s + in_s, act))


class FakeNvml:
    """NVML of a host whose GPUs are data.

    ``driver_up`` is False while the driver is not loaded; ``lost`` holds the indices of GPUs that do not
    answer; ``refuses`` is NVML's word when a compute mode is set; ``clients_mib`` are MPS clients, ``others_mib``
    servers and processes outside MPS, by pid with what they hold; ``held_mib`` is what clients hold, by the
    device's UUID and the process id; None where NVML does not tell. ``outside_mib`` are those that are no clients,
    by the device's UUID; ``hangs`` makes it never answer; ``loads`` is how busy a
    device is, by UUID.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.all = list(gpus)
        self.driver_up = True
        self.lost: set[int] = set()
        self.refuses: Optional[str] = None
        self.modes_set: list[tuple[int, str]] = []
        self.on_mode: Callable[[str], None] = lambda mode: None
        self.clients_mib: dict[int, int] = {}
        self.others_mib: dict[int, int] = {}
        self.held_mib: Optional[dict[str, dict[int, Optional[int]]]] = {}
        self.outside_mib: dict[str, dict[int, Optional[int]]] = {}
        self.hangs = False
        self.times_opened = 0
        self.loads: dict[str, Load] = {}

    @contextmanager
    def opened(self) -> Iterator[Nvml]:
        self.times_opened += 1
        while self.hangs:
            time.sleep(60)
        if not self.driver_up:
            raise NotReady("NVML does not answer: Driver Not Loaded; load the NVIDIA driver and look at `nvidia-smi`")
        yield self

    def driver_version(self) -> str:
        return "580.159.04"

    def cuda_version(self) -> Optional[int]:
        return 13000

    def gpus(self) -> list[Gpu]:
        return [gpu for gpu in self.all if gpu.index not in self.lost]

    def gpu(self, index: int) -> Gpu:
        return next(gpu for gpu in self.all if gpu.index == index)

    def set_compute_mode(self, gpu: Gpu, mode: str) -> None:
        if self.refuses or gpu.compute_mode is None:
            raise NotInForce(f"{gpu}: compute mode {mode} was refused by NVML: {self.refuses or 'Not Supported'}")
        self.modes_set.append((gpu.index, mode))
        self.on_mode(mode)
        self.all = [replace(one, compute_mode=mode) if one.index == gpu.index else one for one in self.all]

    def compute_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        if self.held_mib is None:
            return None
        clients = {**self.clients_mib, **self.held_mib.get(uuid, {})}
        return {**self.others_mib, **self.outside_mib.get(uuid, {}), **clients}

    def client_memory_mib(self, uuid: str) -> Optional[dict[int, Optional[int]]]:
        return None if self.held_mib is None else {**self.clients_mib, **self.held_mib.get(uuid, {})}

    def load(self, uuid: str) -> Load:
        if uuid in self.loads:
            return self.loads[uuid]
        listed = self.compute_memory_mib(uuid)
        if listed is None:
            return Load()
        used_mib = RESERVED_MIB + sum(mib or 0 for mib in listed.values())
        sizes_mib = {one.uuid: one.memory_mib for gpu in self.all for one in gpu.mig_devices}
        sizes_mib.update((gpu.uuid, gpu.memory_mib) for gpu in self.all)
        size_mib = sizes_mib[uuid]
        return Load(utilisation_percent=0) if size_mib is None else Load(used_mib, max(0, size_mib - used_mib), 0)

    def reboot(self) -> None:
        """The driver forgets compute modes."""
        self.all = [replace(gpu, compute_mode=gpu.compute_mode and "default") for gpu in self.all]


@dataclass
class Process:
    """A row of /proc. ``environment`` None: another user may not read it; ``mounts`` is its mount namespace. One in
    ``state`` D takes no signal."""

    name: str
    command: str
    environment: Optional[dict[str, str]]
    started_at: int
    uid: int = 0
    gids: tuple[int, ...] = ()
    state: str = "S"
    parent: int = 1
    container: Optional[str] = None
    group: str = ""
    job: str = ""
    root: Path = Path("/")
    mounts: int = 1
    session: Optional[str] = None
    replaced: Optional[str] = None
    unit: Optional[str] = None
    ignores: frozenset[signal.Signals] = frozenset()


@dataclass
class FakeServer:
    """An MPS server: it has the daemon's defaults of the moment it started."""

    limits: dict[str, int]
    percentage: float
    state: str = "ACTIVE"
    clients: list[int] = field(default_factory=list)


def limit_bytes(text: str) -> int:
    """What the daemon makes of the text of a memory limit: it refuses nothing."""
    number = re.match(r"-?\d+", text)
    if not number:
        return 0
    unit = 30 if text[number.end() : number.end() + 1] in ("g", "G") else 20
    return (int(number[0]) << unit) % (1 << 64)


def shown(limit: int) -> list[str]:
    """What its getter prints: whole GiB from 1 GiB on, nothing for none."""
    if not limit:
        return []
    return [f"{limit >> 30}G" if limit >= 1 << 30 else f"{limit >> 20}M"]


def made_as_by_a_daemon(path: Path) -> None:
    """One of the things that a control daemon makes in its directory, by its name, where it is not there yet."""
    if path.exists():
        return
    if path.name.startswith("control") and path.name != "control_lock":
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_PATH)  # its own name may be too long for an address
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
    elif path.name == "log":
        os.mkfifo(path)
    else:
        path.touch()


class FakeDaemon:
    """A control daemon.

    ``unreachable`` and ``not_served`` are what a session meets, ``holders`` who has the session then, by pid, and
    ``holders_untold`` why that is not known; ``deaf_to`` is a part of a setter that is taken without effect;
    ``before_command`` may do anything before a command is carried out.
    ``log`` is what it and its servers wrote to the journal; ``answer_to_terminate`` None: it does as it is told.
    """

    def __init__(self, pid: int = 0, version: int = 550) -> None:
        self.pid, self.version = pid, version
        self.limits: dict[str, int] = {}
        self.percentage = 100.0
        self.priority = 0
        self.servers: dict[int, FakeServer] = {}
        self.unreachable = self.not_served = False
        self.holders: tuple[int, ...] = ()
        self.holders_untold = ""
        self.deaf_to: Optional[str] = None
        self.before_command: Callable[[str], None] = lambda command: None
        self.on_quit: Callable[[], None] = lambda: None
        self.on_start_server: Callable[[int], None] = lambda uid: None
        self.commands: list[str] = []
        self.log: list[str] = []
        self.terminated: list[int] = []
        self.answer_to_terminate: Optional[str] = None
        self._seconds = 0

    @property
    def setters(self) -> list[str]:
        return [command for command in self.commands if command.startswith("set_")]

    def start_server(self, pid: int, clients: Sequence[int] = ()) -> FakeServer:
        self.servers[pid] = FakeServer(dict(self.limits), self.percentage)
        self.write("Control", pid, f"Starting new server {pid} for user 0")
        self.write("Server", pid, f"Active Threads Percentage set to {self.percentage:.1f}")
        for device, limit in self.limits.items():
            self._write_limit(pid, device, limit)
        for client in clients:
            self.connect(pid, client)
        return self.servers[pid]

    def connect(self, server: int, client: int) -> None:
        """A process connects: twice, as a real one does."""
        self.servers[server].clients.append(client)
        for context in (0, 1):
            self.write("Server", server, f"Client {{PID: {client}, Context ID: {context}}} connected")

    def leave(self, server: int, client: int) -> None:
        self.servers[server].clients.remove(client)
        self.write("Server", server, f"Client process {client} disconnected")

    def write(self, who: str, pid: int, what: str) -> None:
        self._seconds += 1
        minutes, seconds = divmod(self._seconds, 60)
        self.log.append(f"[2026-11-29 14:{minutes:02}:{seconds:02}.000 {who} {pid:5}] {what}")

    def _write_limit(self, server: int, device: str, limit: int) -> None:
        if limit:
            self.write("Server", server, f"Device pinned memory limit for device {device} set to 0x{limit:x} bytes")

    def ask(self, commands: Sequence[str], deadline_s: float = 10) -> list[list[str]]:
        answers = []
        for command in commands:
            self.before_command(command)
            if self.unreachable:
                raise Unreachable("no control daemon listens on it (Cannot find MPS control daemon process)")
            if self.not_served:
                peers = Peers(self.holders, untold=self.holders_untold)
                raise NotServed("the control daemon did not answer within 10 s", peers)
            self.commands.append(command)
            if command.startswith("set_default_"):  # as every command, whoever sends it
                self.write("Control", self.pid, f"Cmd:{command}")
            answers.append(self._answer(command))
        return answers

    def _answer(self, command: str) -> list[str]:
        verb, *words = command.split()
        if verb == "quit":
            self.on_quit()
            raise Unreachable("no control daemon listens any more")
        if verb == "start_server":
            self.on_start_server(int(words[1]))  # says nothing, whatever becomes of it
            return []
        if verb == "get_server_list":
            return [str(pid) for pid in self.servers]
        if verb == "get_server_status" and self.version < 550:
            return [f'Unknown command "{verb}"']
        if verb.startswith("set_") and self.deaf_to is not None and self.deaf_to in command:
            return [f"{self.percentage:.1f}"] if "percentage" in verb else []
        if "_default_" in verb:
            return self._default(verb, words)
        return self._of_server(verb, words)

    def _default(self, verb: str, words: Sequence[str]) -> list[str]:
        if verb.endswith("client_priority"):
            if verb.startswith("get"):
                return [str(self.priority)]
            if words and words[0] in ("2", "-1"):
                return ["Invalid priority value - must be 0 or 1!"]
            self.priority = 1 if words[:1] == ["1"] else 0
            return []
        if verb.endswith("active_thread_percentage"):
            if verb.startswith("set"):
                self.percentage = _percentage(words, self.percentage)
            return [f"{self.percentage:.1f}"]
        return _limit(verb, words, self.limits)

    def _of_server(self, verb: str, words: Sequence[str]) -> list[str]:
        server = self.servers.get(int(words[0]))
        if server is None:
            return [f"Server {words[0]} not found"]
        if verb == "get_server_status":
            return [server.state]
        if verb == "get_client_list":
            return [str(pid) for pid in server.clients]
        if verb == "terminate_client":
            if self.answer_to_terminate is not None:
                return [self.answer_to_terminate]
            self.terminated.append(int(words[1]))
            self.leave(int(words[0]), int(words[1]))
            return ["0"]
        if verb.endswith("active_thread_percentage"):
            if verb.startswith("set"):
                server.percentage = _percentage(words[1:], server.percentage)
            return [f"{server.percentage:.1f}"]
        answer = _limit(verb, words[1:], server.limits)
        if verb.startswith("set"):
            self._write_limit(int(words[0]), words[1], server.limits[words[1]])
        return answer


def _percentage(words: Sequence[str], old: float) -> float:
    number = re.match(r"\d+(\.\d+)?", words[0]) if words else None
    return float(number[0]) if number and 0 < float(number[0]) <= 100 else old


def _limit(verb: str, words: Sequence[str], limits: dict[str, int]) -> list[str]:
    if verb.startswith("get"):
        return shown(limits.get(words[0], 0))
    limits[words[0]] = limit_bytes(words[1])
    return []


@dataclass
class Unit:
    """A unit of systemd."""

    active_state: str = "inactive"
    sub_state: str = "dead"
    main_pid: int = 0
    enabled: bool = False
    result: str = "success"
    stale: bool = False
    invocation: str = ""
    restarts: int = 0
    load_state: str = "loaded"
    active_since_s: float = 0
    active_since_utc: str = ""
    listen: str = ""


class FakeSystemd:
    """systemd: ``units`` by name, ``acts`` in the order in which they were asked for, ``jobs`` by unit.

    ``entries`` are those of the journal with all their fields, ``journals`` the lines of each start by its invocation
    id; ``late`` lines come only once settled. ``boot`` is what systemd itself said since boot, None where that may not
    be read.
    """

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.acts: list[str] = []
        self.jobs: dict[str, str] = {}
        self.fails: dict[str, str] = {}
        self.journals: dict[str, list[str]] = {}
        self.entries: list[dict[str, str]] = []
        self.boot: Optional[list[str]] = []
        self.kernel: list[str] = []
        self.late = 0
        self.journal_reads = 0
        self.read_back_s: list[Optional[float]] = []
        self.shows = 0
        self.sessions: dict[str, str] = {}
        self.carry_out: Callable[[str, str], Optional[str]] = lambda verb, unit: None

    def unit(self, name: str) -> Unit:
        return self.units.setdefault(name, Unit())

    def show(self, units: Sequence[str]) -> dict[str, Mapping[str, str]]:
        self.shows += 1
        return {name: self._shown(name, self.units.get(name, Unit())) for name in units}

    def begin_show(self, units: Sequence[str]) -> Callable[[], dict[str, Mapping[str, str]]]:
        return lambda: self.show(units)

    def _shown(self, name: str, unit: Unit) -> Mapping[str, str]:
        return {
            "Id": name,
            "LoadState": unit.load_state,
            "ActiveEnterTimestampMonotonic": str(int(unit.active_since_s * 1_000_000)),
            "ActiveEnterTimestamp": unit.active_since_utc,
            "ActiveState": unit.active_state,
            "SubState": unit.sub_state,
            "MainPID": str(unit.main_pid),
            "NRestarts": str(unit.restarts),
            "Result": unit.result,
            "NeedDaemonReload": "yes" if unit.stale else "no",
            "InvocationID": unit.invocation,
            "Listen": unit.listen,
        }

    def enabled(self, unit: str) -> bool:
        return self.units.get(unit, Unit()).enabled

    def act(self, verb: str, units: Sequence[str] = ()) -> Optional[str]:
        self.acts.append(" ".join([verb, *units]))
        if verb in self.fails:
            return self.fails[verb]
        if verb == "daemon-reload":
            for unit in self.units.values():
                unit.stale = False
        problems = [self._act_on(verb, name) for name in units]
        return next((problem for problem in problems if problem), None)

    def _act_on(self, verb: str, name: str) -> Optional[str]:
        if verb not in ("stop", "disable") and self.unit(name).load_state == "masked":
            return f"Failed to {verb} {name}: Unit {name} is masked."
        if verb in ("enable", "disable"):
            self.unit(name).enabled = verb == "enable"
            return None
        return self.carry_out(verb, name)

    def request_start(self, unit: str) -> Optional[str]:
        self.acts.append(f"request start {unit}")
        return self.fails.get("start")

    def kill_main(self, unit: str) -> Optional[str]:
        self.acts.append(f"kill {unit}")
        return self.fails.get("kill")

    def job(self, unit: str) -> Optional[str]:
        return self.jobs.get(unit)

    def session_state(self, session: str) -> Optional[str]:
        return self.sessions.get(session)

    def journal(self, unit: str, lines: int) -> list[str]:
        return [f"the last words of {unit}"]

    def kernel_log(self, lines: int) -> list[str]:
        return self.kernel[-lines:]

    def journal_entries(
        self, wanted: Mapping[str, str], fields: Sequence[str], last_s: float, most: int
    ) -> list[dict[str, str]]:
        self.read_back_s.append(last_s)
        found = [one for one in self.entries if all(one.get(name) == value for name, value in wanted.items())]
        return [{name: one[name] for name in fields if name in one} for one in found[-most:]]

    def journal_of_start(self, invocation: str, wanted: str, settled: bool = False) -> list[str]:
        self.journal_reads += 1
        lines = [line for line in self.journals.get(invocation, []) if re.search(wanted, line)]
        return lines[: len(lines) - self.late] if self.late and not settled else lines

    def begin_journal_of_start(
        self, invocation: str, wanted: str, last_s: Optional[float] = None
    ) -> Callable[[], list[str]]:
        self.read_back_s.append(last_s)
        return lambda: self.journal_of_start(invocation, wanted)

    def journal_of_boot(self, wanted: str) -> Optional[list[str]]:
        return None if self.boot is None else [line for line in self.boot if re.search(wanted, line)]


class Host:
    """A host: its files under ``root``, and fakes for the rest.

    ``open_logs`` are daemons by pid into whose logs everybody can write.

    ``start``, ``stop`` and so on do to an instance what systemd does with the unit: the program's own verbs
    around a daemon.
    """

    def __init__(self, root: Path, gpus: Sequence[Gpu]) -> None:
        self.places = Places(root)
        self.pipe_root = root / "mps"
        self.clock = Clock()
        self.nvml = FakeNvml(gpus)
        self.systemd = FakeSystemd()
        self.systemd.carry_out = self._carry_out
        self.processes: dict[int, Process] = {}
        self.daemons: dict[Path, FakeDaemon] = {}
        self.new_daemon: Callable[[int], FakeDaemon] = FakeDaemon
        self.clock_set_s = 0.0
        """how far somebody set the wall clock"""
        self.with_doors = True
        """whether an instance's start stands its front door up, as its unit has it (Wants=)"""
        self.open_logs: set[int] = set()
        self.said: list[str] = []
        self.signals: list[tuple[int, signal.Signals]] = []
        self._next_pid = 5000
        self._listeners: dict[str, socket.socket] = {}

    @property
    def world(self) -> World:
        def opened() -> AbstractContextManager[Nvml]:
            return self.nvml.opened()

        return World(
            places=self.places,
            nvml=opened,
            systemd=self.systemd,
            daemon=self._daemon,
            now_s=self.clock.now,
            wall_s=self.wall_s,
            sleep_s=self.clock.sleep,
            say=self.said.append,
        )

    def wall_s(self) -> float:
        """The wall clock, an hour at most after whatever the daemons' logs say."""
        return time.mktime((2026, 11, 29, 14, 30, 0, 0, 0, -1)) + self.clock.now_s - 1000 + self.clock_set_s

    def _daemon(self, pipe_directory: Path, lock: Optional[Path]) -> Daemon:
        if pipe_directory not in self.daemons:
            absent = FakeDaemon()
            absent.unreachable = True
            return absent
        return self.daemons[pipe_directory]

    # -- the desired state

    def conf(self, name: str = "0", more: Optional[Mapping[str, object]] = None, **values: object) -> str:
        """The text of an instance's file; keys by their names in it, None leaves one out."""
        desired = {"GPUs": "%i", "PipeDirectory": f"{self.pipe_root}/%i", **(more or {}), **values}
        lines = [f"# Managed by mps-fleet: instance {name}"]
        for section in settings.SECTIONS:
            keys = [str(setting.key) for setting in settings.of_section(section)]
            lines.append(f"[{section}]")
            lines += [f"{key}={desired[key]}" for key in keys if desired.get(key) is not None]
        return "\n".join(lines) + "\n"

    def desired(self, name: str = "0", **values: object) -> Path:
        """Write an instance's file; its public pipe directory."""
        path = self.places.conf(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.conf(name, values))
        return self.pipe_root / name

    # -- processes

    def process(
        self, name: str, command: str, environment: Optional[dict[str, str]] = None, uid: int = 0, pid: int = 0
    ) -> int:
        self._next_pid += 1
        pid = pid or self._next_pid
        self.processes[pid] = Process(name[:15], command, environment, int(self.clock.now_s * 100), uid)
        return pid

    def whose(self, pid: int, uid: int) -> Whose:
        """As ``control_groups.whose``; all that stands in a process's group is root's."""
        found = self.processes.get(pid)
        return Whose(uid) if found is None else Whose(uid, found.group, found.container or "", job=found.job)

    def groups_of(self, pid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As ``control_groups.paths``; what stands behind a ``//`` in a process's group is a user's."""
        found = self.processes.get(pid)
        made, _, below = ("" if found is None else found.group).partition("//")
        roots = tuple(filter(None, made.split("/")))
        return (*roots, *filter(None, below.split("/"))), roots

    def launch(self, environment: dict[str, str]) -> FakeDaemon:
        """A control daemon, as ExecStart does it."""
        flags = environment.pop("MPS_CONTROL_FLAGS", "")
        command = f"/usr/bin/nvidia-cuda-mps-control -f {flags}".strip()
        pid = self.process("nvidia-cuda-mps-control", command, environment)
        daemon = self.new_daemon(pid)
        daemon.pid = pid
        daemon.on_quit = lambda: self.kill(pid)
        daemon.on_start_server = lambda uid: self._start_server(daemon, environment["CUDA_VISIBLE_DEVICES"], uid)
        served = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        for name, mode in DAEMON_FILES.items():
            made_as_by_a_daemon(served / name)
            (served / name).chmod(mode)
        self.daemons[Path(environment["CUDA_MPS_PIPE_DIRECTORY"])] = daemon
        return daemon

    def _start_server(self, daemon: FakeDaemon, devices: str, uid: int) -> None:
        """A server needs a context: on a prohibited GPU it ends at once."""
        if not any(gpu.compute_mode == "prohibited" for gpu in self.nvml.all if gpu.uuid in devices.split(",")):
            daemon.start_server(self.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, uid))

    def client(self, pid: int = 0, variable: Optional[str] = None, uid: int = 1000, **environment: str) -> int:
        """A CUDA process, with its own limit variable if one is given; its pid."""
        if variable is not None:
            environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = variable
        return self.process("python3", "python3 serve.py", environment, uid, pid)

    def kill(self, pid: int) -> None:
        """The process ends, and with a daemon all it knew; its sockets stay."""
        self.processes.pop(pid, None)
        for daemon in self.daemons.values():
            if daemon.pid == pid:
                daemon.unreachable = True
                daemon.servers.clear()

    def signal(self, pid: int, started_at: int, number: signal.Signals) -> bool:
        """A process gets a signal, and ends by it unless it ignores it or cannot be ended; its server sees it leave."""
        process = self.processes.get(pid)
        if process is None or process.started_at != started_at:
            return False
        self.signals.append((pid, number))
        if process.state != "D" and number not in process.ignores:
            self.end(pid)
        return True

    def end(self, pid: int) -> None:
        """A client's process ends, and its server sees it leave."""
        self.kill(pid)
        for daemon in self.daemons.values():
            for number, server in daemon.servers.items():
                if pid in server.clients:
                    daemon.leave(number, pid)

    def log_is_closed(self, pipe_directory: Path, owner: int = 0, public: bool = False) -> Optional[bool]:
        """Whether only root can write into the log of the daemon that serves a directory."""
        daemon = self.daemons.get(pipe_directory)
        return None if daemon is None else daemon.pid not in self.open_logs

    # -- the unit

    def prepared(self, name: str = "0") -> FakeDaemon:
        """ExecStartPre and ExecStart: a daemon that runs, its limits not yet set."""
        desired = configuration.load(self.world, name)
        with_door = self.with_doors and desired.front_door  # Wants= of the unit, as the role writes it then
        if with_door and self.systemd.unit(door_unit(name)).active_state != "active":
            self.stand_door(name, Path(desired.pipe_directory))
        environment = prepare.prepare(self.world, name)
        daemon = self.launch(
            {
                "CUDA_MPS_PIPE_DIRECTORY": str(environment.pipe_directory),
                "CUDA_VISIBLE_DEVICES": ",".join(environment.devices),
                "MPS_CONTROL_FLAGS": environment.flags,
            }
        )
        unit = self.systemd.unit(f"mps-control@{name}.service")
        unit.main_pid, unit.active_state, unit.sub_state = daemon.pid, "activating", "start-post"
        unit.invocation = f"{daemon.pid:032x}"
        self.systemd.journals[unit.invocation] = daemon.log
        return daemon

    def start(self, name: str = "0") -> FakeDaemon:
        daemon = self.prepared(name)
        apply.apply(self.world, name, daemon.pid)
        unit = self.systemd.unit(f"mps-control@{name}.service")
        unit.active_state, unit.sub_state, unit.active_since_s = "active", "running", self.clock.now_s
        return daemon

    def running(self, name: str = "0") -> FakeDaemon:
        """The daemon of an instance that has been started."""
        pid = self.systemd.unit(f"mps-control@{name}.service").main_pid
        return next(daemon for daemon in self.daemons.values() if daemon.pid == pid)

    def stop(self, name: str = "0") -> None:
        """ExecStop and ExecStopPost of a real stop."""
        unit_name = f"mps-control@{name}.service"
        unit = self.systemd.unit(unit_name)
        self.systemd.jobs[unit_name] = "stop"
        stop.stop(self.world, name, unit.main_pid or None)
        stop.release(self.world, name)
        del self.systemd.jobs[unit_name]
        unit.main_pid, unit.active_state, unit.sub_state = 0, "inactive", "dead"

    def restart(self, name: str = "0") -> FakeDaemon:
        unit_name = f"mps-control@{name}.service"
        self.systemd.jobs[unit_name] = "restart"
        stop.stop(self.world, name, self.systemd.unit(unit_name).main_pid)
        stop.release(self.world, name)
        del self.systemd.jobs[unit_name]
        return self.start(name)

    def _carry_out(self, verb: str, unit_name: str) -> Optional[str]:
        name = unit_name.removeprefix("mps-control@").removesuffix(".service")
        unit = self.systemd.unit(unit_name)
        if unit_name.startswith("mps-front-door@") and unit_name.endswith(".socket"):
            self._carry_out_door(verb, unit_name.removeprefix("mps-front-door@").removesuffix(".socket"))
            return None
        if not unit_name.startswith("mps-control@"):
            unit.active_state = "inactive" if verb == "stop" else "active"
            return None
        try:
            if verb == "start":
                self.start(name)
            elif verb == "restart":
                self.restart(name)
            elif verb == "reload":
                apply.apply(self.world, name, unit.main_pid)
            elif verb == "stop" and unit.main_pid:
                self.stop(name)
        except MpsctlError as error:
            return f"Job for {unit_name} failed: {error}"
        return None

    # -- the front door

    def _carry_out_door(self, verb: str, name: str) -> None:
        if verb in ("start", "restart"):
            self.stand_door(name)
        elif verb == "stop":
            self.close_socket(name)
            self.systemd.unit(door_unit(name)).active_state = "inactive"

    def close_socket(self, name: str = "0") -> None:
        """The socket of a front door is closed, and its file stays."""
        if name in self._listeners:
            self._listeners.pop(name).close()

    def stand_door(self, name: str = "0", public: Optional[Path] = None) -> None:
        """What systemd does at a start of the socket's unit: the socket, and the name that clients look for."""
        public = public or self.pipe_root / name
        files.make_directory(public / "control_lock")
        door = public / "front-door"
        door.unlink(missing_ok=True)
        self.close_socket(name)
        self._listeners[name] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listeners[name].bind(str(door))
        self._listeners[name].listen()
        door.chmod(0o666)
        files.replace_symlink(public / "control", "front-door")
        self.show_door(name, public)

    def show_door(self, name: str = "0", public: Optional[Path] = None) -> None:
        """systemd shows the socket's unit as it is while the socket listens."""
        door = (public or self.pipe_root / name) / "front-door"
        unit = self.systemd.unit(door_unit(name))
        unit.active_state, unit.sub_state, unit.enabled = "active", "listening", True
        unit.listen = f"{door} (SequentialPacket)"

    def own(self, name: str = "0") -> Path:
        """The daemon's own directory."""
        return self.places.pipe(name)

    def tell_door(self, state: str, name: str = "0") -> None:
        """The front door is told another state than it was."""
        told = admission.read(self.places, name)
        assert told is not None
        admission.write(self.places, name, replace(told, state=state))

    # -- looking

    def door_is_open(self, name: str = "0") -> bool:
        """Whether the front door is told to let clients in."""
        told = admission.read(self.places, name)
        return told is not None and told.state == admission.OPEN

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Every path under the root with its mode, its time and what it holds."""
        found: dict[str, tuple[object, ...]] = {}
        lock = self.places.host_lock  # taken and given back by every run
        for path in sorted(self.places.root.rglob("*")):
            if path in (lock, lock.parent, lock.parent.parent):
                continue
            about = path.lstat()
            content: object = None
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = path.read_bytes()
            found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_uid, content)
        return found


class Temporary:
    """Daemons lent for the time, by pipe directory."""

    def __init__(self, host: Host) -> None:
        self.host, self.ended = host, 0
        self.given: list[tuple[Path, tuple[str, ...]]] = []

    @contextmanager
    def daemon(self, pipe_directory: Path, devices: Sequence[str]) -> Iterator[None]:
        self.given.append((pipe_directory, tuple(devices)))
        one = self.host.launch(
            {"CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory), "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        )
        try:
            yield
        finally:
            self.ended += 1
            self.host.kill(one.pid)
