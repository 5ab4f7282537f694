"""The lines of control daemons and servers: what went wrong there. Lines of no known form are passed over.

The forms are those of the control daemons 535 to 580 and of NVIDIA's documentation; a line may have anything before
it, as container runtimes put their own times there. Lines have the local time of the machine that wrote them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Optional, Sequence

from mpsctl.adapters import daemon_log
from mpsctl.adapters.daemon_log import Entry
from mpsctl.causes import symptoms
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose, quoted
from mpsctl.checks.server_checks import RECENT_S, WINDOW_S
from mpsctl.checks.words import fault as words_of_fault
from mpsctl.model import duration, quantity
from mpsctl.model.checked_values import DAEMON_DIRECTORY_MAX_BYTES
from mpsctl.model.errors import BadValue
from mpsctl.model.pattern import Pattern

_DIRECTORY = Pattern(
    r"To connect CUDA applications to this daemon, set (?P<v2>env )?CUDA_MPS_PIPE_DIRECTORY=(?P<path>.+)"
)
_STARTING = Pattern(r"Starting new server (?P<pid>\d+) for user (?P<uid>\d+)")
_READY = Pattern(r"NEW SERVER (?P<pid>\d+): Ready")
_EXITED = Pattern(r"Server (?P<pid>\d+) exited with status (?P<status>-?\d+)")
_PENDING = Pattern(r"NEW CLIENT (?P<pid>\d+) from user (?P<uid>\d+): .*pending list")
_NEW_CLIENT = Pattern(r"NEW CLIENT (?P<pid>-?\d+) from user (?P<uid>\d+)")
_COMMAND = Pattern(r"Cmd: ?(?P<words>.*)")
_SET_LIMIT = Pattern(r"set_(?:default_)?device_pinned_mem_limit(?P<words>.*)")
_LIMIT = Pattern(r"Device pinned memory limit for device \S+ set to 0x(?P<bytes>[0-9a-fA-F]+) bytes")
_STARTUP = Pattern(r"Startup|Initializing server process")
"""The first that a server says of itself, before it is one."""
_CONNECTED = Pattern(r"Client \{PID: (?P<pid>\d+), Context(?: ID)?: \d+\} connected")
_DISCONNECTED = Pattern(r"Client process (?P<pid>\d+) disconnected")
_NAMED = Pattern(r"Client \{PID: (?P<pid>\d+), Context(?: ID)?: \d+\} encountered a fatal GPU error")
_FAULT = Pattern(r"handling a fatal GPU error|sticky error set|encountered a fatal GPU error")
_WORKER = Pattern(r"Creating worker thread")
_AFTER_WORKER = Pattern(r"is associated|is ACTIVE|exiting|disconnected|assuming client|New client|connected")

LOOP = 2
"""Servers of one user that ended badly, at least so many and each within WINDOW_S of the one before, are a loop."""
_GREATEST_BYTES = quantity.MAX_MIB << 20


@dataclass(frozen=True)
class _End:
    """A server that ended badly: when, in seconds since 1970 (None: the line does not tell), and the line."""

    when_s: Optional[float]
    line: str


@dataclass
class _Server:
    """What a server said: whether the log has its beginning, who is connected, and who ever was."""

    whole: bool = False
    connected: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    """the lines of a fault, until the next client connects"""
    at_fault: set[int] = field(default_factory=set)
    """who was connected then"""


@dataclass
class _Seen:
    """What is known on the way through a log."""

    last_s: Optional[float] = None
    """when the last line was written"""
    servers: dict[int, _Server] = field(default_factory=dict)

    protocol_3: Optional[str] = None
    starts: int = 0
    set_in_start: list[int] = field(default_factory=lambda: [0])
    owners: dict[int, int] = field(default_factory=dict)
    """servers that live, with their users"""
    ready: set[int] = field(default_factory=set)
    bad_ends: dict[int, list[_End]] = field(default_factory=dict)
    fatal: list[str] = field(default_factory=list)
    legacy: list[str] = field(default_factory=list)
    pending: dict[tuple[int, int], str] = field(default_factory=dict)
    starting: dict[int, int] = field(default_factory=dict)
    associated: Optional[str] = None
    worker: Optional[str] = None
    command: Optional[tuple[str, str]] = None
    answered: bool = False
    set_keys: dict[str, str] = field(default_factory=dict)
    found: list[Diagnosis] = field(default_factory=list)


def diagnose_log(lines: Sequence[str], now_s: Optional[float] = None) -> list[Diagnosis]:
    """What the lines of one log tell, oldest first: of control, server, kernel and programs alike.

    ``now_s`` is the time of the look in seconds since 1970; None for a log that somebody brought, whose last line is
    then the present.
    """
    seen = _Seen()
    others: list[str] = []
    for line in lines:
        entry = daemon_log.entry(line)
        if entry is None:
            others.append(line)
            continue
        seen.last_s = daemon_log.seconds(entry.when) or seen.last_s
        if entry.who == "Control":
            _control(seen, entry, quoted(line))
        else:
            _server(seen, entry, quoted(line))
        others.append(entry.what)
    text = symptoms.read_lines(others)
    over = seen.last_s if now_s is None else now_s
    return [*_conclude(seen, text, over, of_host=now_s is not None), *text.diagnoses()]


def known_lines(lines: Sequence[str]) -> int:
    """How many of the lines are a control daemon's or a server's."""
    return sum(1 for line in lines if daemon_log.entry(line))


def _control(seen: _Seen, entry: Entry, line: str) -> None:
    what = entry.what
    directory = _DIRECTORY.search(what)
    if directory:
        seen.protocol_3 = None if directory["v2"] else line
        seen.found += _directory(directory["path"].strip(), line)
    if what.startswith("Starting control daemon"):
        seen.starts += 1
        seen.set_in_start.append(0)
        seen.owners.clear()
        seen.ready.clear()
        seen.pending.clear()
    starting, ready, exited = _STARTING.search(what), _READY.search(what), _EXITED.search(what)
    if starting:
        seen.owners[int(starting["pid"])] = int(starting["uid"])
        # A process id that was a server's before is another server now.
        _tell_fault(seen, int(starting["pid"]))
        seen.servers[int(starting["pid"])] = _Server(whole=True)
    if ready:
        seen.ready.add(int(ready["pid"]))
        uid = seen.owners.get(int(ready["pid"]))
        seen.pending = {key: value for key, value in seen.pending.items() if key[1] != uid}
    if exited:
        uid = seen.owners.pop(int(exited["pid"]), -1)
        if exited["status"] != "0":
            seen.bad_ends.setdefault(uid, []).append(_End(daemon_log.seconds(entry.when), line))
    if "fatal exception" in what:
        seen.fatal.append(line)
    client, pending = _NEW_CLIENT.search(what), _PENDING.search(what)
    if client and client["pid"] == "0":
        seen.found.append(diagnose("clients-hidden-by-pid-namespace", LIKELY, line))
    if pending:
        seen.pending[int(pending["pid"]), int(pending["uid"])] = line
    elif client:
        seen.pending.pop((int(client["pid"]), int(client["uid"])), None)
    if "Invalid device ordinal" in what:
        seen.found.append(diagnose("limit-for-no-device", CERTAIN, line))
    _session(seen, what, line)


def _directory(path: str, line: str) -> list[Diagnosis]:
    if path == "/tmp/nvidia-mps":
        return [diagnose("default-pipe-directory", CERTAIN, line)]
    if len(os.fsencode(path)) > DAEMON_DIRECTORY_MAX_BYTES:
        return [diagnose("pipe-directory-too-long", LIKELY, line)]
    return []


def _session(seen: _Seen, what: str, line: str) -> None:
    """The commands of a front-end and what it was answered: ``Cmd:`` …, the answer's lines, ``UI closed``."""
    command = _COMMAND.match(what)
    if command:
        _answered(seen)
        seen.command, seen.answered = (command["words"].strip(), line), False
        _setter(seen, command["words"].strip(), line)
    elif what == "UI closed":
        _answered(seen)
        seen.command = None
    elif seen.command is not None:
        seen.answered = True


def _setter(seen: _Seen, words: str, line: str) -> None:
    match = _SET_LIMIT.match(words)
    if words.startswith("set_"):
        seen.set_in_start[-1] += 1
    if not match:
        return
    parts = match["words"].split()
    if not parts:
        return
    value = parts[-1]
    seen.set_keys[" ".join(parts[:-1])] = value
    try:
        quantity.parse(re.sub(r"(?i)(?<=[mg])b$", "", value).upper())
        misread = value.endswith("%")
    except BadValue:
        misread = not re.fullmatch(r"0[MG]?", value)
    if misread:
        seen.found.append(diagnose("limit-misread", CERTAIN, line))


def _answered(seen: _Seen) -> None:
    """A getter for a name under which a limit was set, and that was answered with nothing."""
    if seen.command is None or seen.answered:
        return
    words, line = seen.command
    match = re.match(r"get_(?:default_)?device_pinned_mem_limit(?P<words>.*)", words)
    key = " ".join(match["words"].split()) if match else ""
    if match and seen.set_keys.get(key, "0").strip("0MGmg") != "":
        seen.found.append(diagnose("limit-not-stored", LIKELY, line, "no answer before the session's end"))


def _server(seen: _Seen, entry: Entry, line: str) -> None:
    what = entry.what
    if entry.who == "Legacy Server":
        seen.legacy.append(line)
    limit = _LIMIT.search(what)
    if limit and int(limit["bytes"], 16) > _GREATEST_BYTES:
        seen.found.append(diagnose("limit-misread", CERTAIN, line, "more than any GPU has: it limits nobody"))
    _client(seen, entry, line)
    if "is associated" in what:
        seen.associated = line
    if _WORKER.search(what):
        seen.worker = line
    elif _AFTER_WORKER.search(what):
        seen.worker = None


def _client(seen: _Seen, entry: Entry, line: str) -> None:
    """Clients that come and go, and their faults, which are told together once the next client comes."""
    server = seen.servers.setdefault(entry.pid, _Server())
    if entry.who == "Other" and _STARTUP.match(entry.what) and not server.ever:
        server.whole = True
    connected, gone = _CONNECTED.search(entry.what), _DISCONNECTED.search(entry.what)
    if connected:
        pid = int(connected["pid"])
        if pid not in server.connected:
            _tell_fault(seen, entry.pid)
        server.connected.add(pid)
        server.ever.add(pid)
    if _FAULT.search(entry.what):
        if not server.faults:
            server.at_fault = set(server.connected)
        server.faults.append(line)
        named = _NAMED.search(entry.what)
        if named:
            server.at_fault.add(int(named["pid"]))
            server.ever.add(int(named["pid"]))
    if gone:
        server.connected.discard(int(gone["pid"]))


def _tell_fault(seen: _Seen, pid: int) -> None:
    """The fault of a server's clients, if there was one, with those that were connected then.

    The log's own name for the culprit was a bystander's in 10 of 10 trials with several clients (driver 580, H200).
    """
    server = seen.servers.get(pid)
    if server is None or not server.faults:
        return
    alone = server.whole and len(server.ever) == 1
    who = words_of_fault(pid, sorted(server.at_fault), alone)
    seen.found.append(diagnose("client-fault", CERTAIN, who, *server.faults))
    server.faults, server.at_fault = [], set()


def _conclude(seen: _Seen, text: symptoms.Understood, now_s: Optional[float], of_host: bool) -> list[Diagnosis]:
    for pid in list(seen.servers):
        _tell_fault(seen, pid)
    found = []
    failed = bool(seen.bad_ends) or any("Failed to start" in line for line in seen.legacy)
    if seen.legacy and failed:
        found.append(diagnose("gpu-older-than-volta", CERTAIN, *seen.legacy))
    for uid, ends in seen.bad_ends.items():
        loop = _loop(ends)
        goes_on = bool(loop) and _is_recent(loop[-1], now_s)
        if not loop or (of_host and not goes_on):
            continue
        whose = [] if uid < 0 else [f"{len(loop)} servers of user {uid} ended badly"]
        over = [] if goes_on else [f"it is over: the last one ended {_before(loop[-1], now_s)} before the log's end"]
        lines = [end.line for end in loop[:4]]
        sure = CERTAIN if goes_on else POSSIBLE
        found.append(diagnose("server-crash-loop", sure, *whose, *over, *seen.fatal[:2], *lines))
        if uid > 0 and not seen.legacy:
            found.append(
                diagnose("pipe-directory-closed", POSSIBLE, f"only servers of user {uid} end, who is not root")
            )
    for (client, uid), line in seen.pending.items():
        other = [(pid, owner) for pid, owner in seen.owners.items() if owner != uid and pid in seen.ready]
        if other:
            pid, owner = other[-1]
            who = f"client {client} of user {uid} waits while server {pid} of user {owner} lives"
            found.append(diagnose("waiting-behind-another-user", CERTAIN, line, who))
    if seen.starts > 1 and seen.set_in_start[-1] == 0 and any(seen.set_in_start[:-1]):
        found.append(
            diagnose("limits-lost-at-restart", CERTAIN, f"{seen.starts} starts, and no set_ command after the last")
        )
    busy = symptoms.BY_CODE[46]
    if seen.associated and busy in text.errors:
        found.append(diagnose("attached-then-busy", LIKELY, seen.associated, text.lines[46]))
    if seen.worker:
        found.append(diagnose("stuck-at-worker-thread", POSSIBLE, seen.worker, "the last that the log has of it"))
    if seen.protocol_3:
        found.append(diagnose("protocol-3", CERTAIN, seen.protocol_3))
    return found + seen.found


def _loop(ends: Sequence[_End]) -> list[_End]:
    """The last row of bad ends, each within WINDOW_S of the one before; empty where it is shorter than a loop."""
    row: list[_End] = []
    best: list[_End] = []
    for end in ends:
        row = [*row, end] if row and _gap_s(row[-1], end) <= WINDOW_S else [end]
        best = row if len(row) >= LOOP else best
    return best


def _gap_s(earlier: _End, later: _End) -> float:
    """How far two ends are apart; 0 where a line does not tell."""
    if earlier.when_s is None or later.when_s is None:
        return 0
    return later.when_s - earlier.when_s


def _is_recent(end: _End, now_s: Optional[float]) -> bool:
    return end.when_s is None or now_s is None or now_s - end.when_s < RECENT_S


def _before(end: _End, now_s: Optional[float]) -> str:
    return duration.text(max(0.0, (now_s or 0) - (end.when_s or 0)))
