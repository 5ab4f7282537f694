"""What the control daemon and its servers say in the journal.

In the foreground the daemon writes both its own lines and its servers' to standard output (driver 580,
H200), so one start of the unit is one stream, found by systemd's invocation id. Its lines are the only exact
source for a memory limit: the getters round, the server writes the bytes. What the journal no longer has is
not known: every answer below may be None.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Iterable, Mapping, Optional

from mpsctl.model.pattern import Pattern

_LINE = Pattern(r"\[(?P<when>[0-9-]+ [0-9:.]+) +(?P<who>[A-Z]\w+(?: [A-Z]\w+)?) +(?P<pid>\d+)\] (?P<what>.*)")
_LIMIT = Pattern(r"Device pinned memory limit for device (?P<device>\S+) set to 0x(?P<bytes>[0-9a-fA-F]+) bytes")
_CONNECTED = Pattern(r"Client \{PID: (?P<pid>\d+), Context(?: ID)?: (?P<context>\d+)\} connected")
_DISCONNECTED = Pattern(r"Client process (?P<pid>\d+) disconnected")
_PENDING = Pattern(r"NEW CLIENT (?P<pid>\d+) from user (?P<uid>\d+): .*pending list")
_STARTING = Pattern(r"Starting new server (?P<pid>\d+) for user (?P<uid>\d+)")
_HIDDEN = Pattern(r"NEW CLIENT 0 from user \d+")
_FAULTED = Pattern(r"Client \{PID: (?P<pid>\d+), Context(?: ID)?: \d+\} encountered a fatal GPU error")
_VERSION = Pattern(r"CUDA MPS Control binary version: (?P<version>\d+)")
_DEFAULT_SET = Pattern(r"Cmd:set_default_device_pinned_mem_limit (?P<device>\S+) (?P<value>\S+)$")
_AMOUNT = Pattern(r"(?P<number>[1-9][0-9]*)(?P<unit>[MG]?)B?", re.IGNORECASE)
_READY = Pattern(r"NEW SERVER (?P<pid>\d+): Ready")
_EXITED = Pattern(r"Server (?P<pid>\d+) exited with status (?P<status>-?\d+)")

WANTED = (
    "pinned memory limit|Client|NEW CLIENT|NEW SERVER|Starting new server|exited with status|binary version"
    "|Cmd:set_default_device"
)
"""A pattern for journalctl's --grep that keeps every line that is read here."""


EVERY_LINE = "."


@dataclass(frozen=True)
class Entry:
    """One line: ``who`` is Control, Server, Other (a server before it is one) or Legacy Server (before Volta)."""

    when: str
    who: str
    pid: int
    what: str


def entry(line: str) -> Optional[Entry]:
    """A line of a control daemon or a server, whatever stands before it; None for any other."""
    match = _LINE.search(line)
    return Entry(match["when"], match["who"], int(match["pid"]), match["what"].rstrip()) if match else None


@dataclass
class ClientLog:
    """One connected client: since when, and the limits in bytes that its server had then, by device.

    No entry for a device means that no limit line came before it: it got in without one, or the line is
    no longer in the journal (see ServerLog.whole). A process begins with context 0. One that began with another server,
    which has ended, comes with context 1 alone, and has no limit here (driver 580, H200): ``began_here`` is false.
    """

    pid: int
    since: str
    limit_bytes: dict[str, int]
    began_here: bool = True


@dataclass(frozen=True)
class Fault:
    """A fatal fault of a server's clients. ``named`` is the pid in the log's line, ``connected`` are those that were
    connected at that moment.

    The line names a bystander where more than one client is connected, 10 times of 10 (driver 580, H200), so ``named``
    is no proof; ``alone`` is whether the server had no other client in its life.
    """

    when: str
    named: int
    connected: tuple[int, ...]
    alone: bool


@dataclass
class ServerLog:
    """One server: its limits in bytes now, by device (ordinal or UUID as the daemon was told), and its clients.

    Of two names for one device the last that was set counts, and stands last in ``limit_bytes``. ``whole`` is
    whether the journal still has the server's first line, and so all that came after it.
    """

    pid: int
    whole: bool = False
    limit_bytes: dict[str, int] = field(default_factory=dict)
    clients: dict[int, ClientLog] = field(default_factory=dict)
    exit_status: Optional[int] = None
    uid: Optional[int] = None
    ready: bool = False
    """whether the daemon said that it serves"""
    served: bool = False
    """whether a client ever connected"""
    left: list[int] = field(default_factory=list)
    """clients that were connected when it ended: one that is killed reports status 0 (driver 580, H200)"""
    faults: list[Fault] = field(default_factory=list)
    """since the last client connected"""
    ever: set[int] = field(default_factory=set)
    """every client that it had"""
    ended_s: Optional[float] = None
    """when it ended, in seconds since 1970"""


@dataclass
class DaemonLog:
    """One start of a daemon; its servers in the order in which they were started.

    ``waiting`` are clients that were queued and have not connected since, by pid: uid. ``hidden`` counts clients
    that came with process id 0: another pid namespace hides theirs.
    """

    servers: dict[int, ServerLog] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    hidden: int = 0
    cuda_version: Optional[int] = None
    """what the daemon's binary belongs to, as 13000 for CUDA 13.0; daemons up to 555 do not tell"""
    lines: int = 0
    """how many of its lines the journal has"""
    default_bytes: dict[str, Optional[int]] = field(default_factory=dict)
    """the default limits in bytes that the daemon was last told, by device as in the command; None where nobody knows
    what the daemon makes of the text"""


_WHEN = Pattern(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")


def seconds(when: str) -> Optional[float]:
    """The local time at the beginning of a line, in seconds since 1970; None where it is no time."""
    match = _WHEN.match(when)
    if match is None:
        return None
    try:
        year, month, day, hour, minute, second = map(int, match.groups())
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def amount_bytes(text: str) -> Optional[int]:
    """What the daemon makes of a memory limit: G is 2^30, M and no unit are 2^20 (control daemons 535, 550, 555).

    None for anything but a whole number with such a unit.
    """
    match = _AMOUNT.fullmatch(text)
    return int(match["number"]) << (30 if match["unit"] in ("g", "G") else 20) if match else None


def of_device(by_device: Mapping[str, Optional[int]], ordinal: int, uuid: str) -> Optional[int]:
    """The value of one device of the daemon, whose keys may be ordinals or UUIDs; the last that was set counts.

    Ordinals are the daemon's own, counted in its CUDA_VISIBLE_DEVICES; a UUID may be cut short behind its prefix.
    """
    found = None
    for key, value in by_device.items():
        name = key.lower()
        if key == str(ordinal) or (name.startswith(("gpu-", "mig-")) and uuid.lower().startswith(name)):
            found = value
    return found


def read(lines: Iterable[str]) -> DaemonLog:
    """Read the lines of one start, oldest first. Lines of no known form are passed over."""
    log = DaemonLog()
    for line in lines:
        found = entry(line)
        log.lines += 1
        if found:
            _take(log, found.when, found.who, found.pid, found.what)
    return log


def _take(log: DaemonLog, when: str, who: str, pid: int, what: str) -> None:
    if who != "Server":
        _take_from_control(log, when, what)
        return
    server = log.servers.setdefault(pid, ServerLog(pid))
    limit = _LIMIT.search(what)
    if limit:
        server.limit_bytes.pop(limit["device"], None)
        server.limit_bytes[limit["device"]] = int(limit["bytes"], 16)
        return
    connected = _CONNECTED.search(what)
    if connected:
        client = int(connected["pid"])
        log.waiting.pop(client, None)
        # A process connects twice, then once for each further context: the first time counts.
        if client not in server.clients:
            server.faults.clear()
        server.served = True
        server.ever.add(client)
        began_here = connected["context"] == "0"
        limit_bytes = dict(server.limit_bytes) if began_here else {}
        server.clients.setdefault(client, ClientLog(client, when, limit_bytes, began_here))
        return
    faulted = _FAULTED.search(what)
    if faulted:
        named = int(faulted["pid"])
        connected_then = tuple(dict.fromkeys([*server.clients, named]))
        server.faults.append(Fault(when, named, connected_then, server.whole and server.ever == {named}))
        return
    gone = _DISCONNECTED.search(what)
    if gone:
        server.clients.pop(int(gone["pid"]), None)


def _take_from_control(log: DaemonLog, when: str, what: str) -> None:
    version = _VERSION.search(what)
    if version:
        log.cuda_version = int(version["version"])
        return
    told = _DEFAULT_SET.search(what)
    if told:
        log.default_bytes.pop(told["device"], None)
        log.default_bytes[told["device"]] = amount_bytes(told["value"])
        return
    if _HIDDEN.search(what):
        log.hidden += 1
        return
    pending = _PENDING.search(what)
    if pending:
        log.waiting[int(pending["pid"])] = int(pending["uid"])
        return
    starting = _STARTING.search(what)
    if starting:
        # A process id that was a server's before is another server now.
        log.servers.pop(int(starting["pid"]), None)
        log.servers[int(starting["pid"])] = ServerLog(int(starting["pid"]), whole=True, uid=int(starting["uid"]))
        return
    ready = _READY.search(what)
    if ready:
        log.servers.setdefault(int(ready["pid"]), ServerLog(int(ready["pid"]))).ready = True
        return
    exited = _EXITED.search(what)
    if exited and int(exited["pid"]) in log.servers:
        server = log.servers[int(exited["pid"])]
        server.exit_status = int(exited["status"])
        server.ended_s = seconds(when)
        server.left = list(server.clients)
        server.clients.clear()
