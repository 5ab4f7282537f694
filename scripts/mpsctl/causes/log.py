"""The lines of control daemons and servers: what went wrong there. Lines of no known form are passed over.

The forms are those of the control daemons 535 to 580 and of NVIDIA's documentation; a line may have anything before
it, as container runtimes put their own times there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional, Sequence

from mpsctl.adapters import daemon_log
from mpsctl.adapters.daemon_log import Entry
from mpsctl.causes import symptoms
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.model import quantity
from mpsctl.model.checked_values import DAEMON_DIRECTORY_MAX_BYTES
from mpsctl.model.errors import BadValue

_DIRECTORY = re.compile(
    r"To connect CUDA applications to this daemon, set (?P<v2>env )?CUDA_MPS_PIPE_DIRECTORY=(?P<path>.+)"
)
_STARTING = re.compile(r"Starting new server (?P<pid>\d+) for user (?P<uid>\d+)")
_READY = re.compile(r"NEW SERVER (?P<pid>\d+): Ready")
_EXITED = re.compile(r"Server (?P<pid>\d+) exited with status (?P<status>-?\d+)")
_PENDING = re.compile(r"NEW CLIENT (?P<pid>\d+) from user (?P<uid>\d+): .*pending list")
_NEW_CLIENT = re.compile(r"NEW CLIENT (?P<pid>-?\d+) from user (?P<uid>\d+)")
_COMMAND = re.compile(r"Cmd: ?(?P<words>.*)")
_SET_LIMIT = re.compile(r"set_(?:default_)?device_pinned_mem_limit(?P<words>.*)")
_LIMIT = re.compile(r"Device pinned memory limit for device \S+ set to 0x(?P<bytes>[0-9a-fA-F]+) bytes")
_CULPRIT = re.compile(r"Client \{PID: (?P<pid>\d+), Context(?: ID)?: \d+\} encountered a fatal GPU error")
_FAULT = re.compile(r"handling a fatal GPU error|sticky error set|encountered a fatal GPU error")
_WORKER = re.compile(r"Creating worker thread")
_AFTER_WORKER = re.compile(r"is associated|is ACTIVE|exiting|disconnected|assuming client|New client|connected")

LOOP = 2
"""Servers of one user that ended badly, at least so many in one log, are a loop."""
_GREATEST_BYTES = quantity.MAX_MIB << 20


@dataclass
class _Seen:
    """What is known on the way through a log."""

    protocol_3: Optional[str] = None
    starts: int = 0
    set_in_start: list[int] = field(default_factory=lambda: [0])
    owners: dict[int, int] = field(default_factory=dict)
    """servers that live, with their users"""
    ready: set[int] = field(default_factory=set)
    bad_ends: dict[int, list[str]] = field(default_factory=dict)
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


def diagnose_log(lines: Sequence[str]) -> list[Diagnosis]:
    """What the lines of one log tell, oldest first: of control, server, kernel and programs alike."""
    seen = _Seen()
    others: list[str] = []
    for line in lines:
        entry = daemon_log.entry(line)
        if entry is None:
            others.append(line)
        elif entry.who == "Control":
            _control(seen, entry, line.strip())
            others.append(entry.what)
        else:
            _server(seen, entry, line.strip())
            others.append(entry.what)
    text = symptoms.read_lines(others)
    return [*_conclude(seen, text), *text.diagnoses()]


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
    if ready:
        seen.ready.add(int(ready["pid"]))
        uid = seen.owners.get(int(ready["pid"]))
        seen.pending = {key: value for key, value in seen.pending.items() if key[1] != uid}
    if exited:
        uid = seen.owners.pop(int(exited["pid"]), -1)
        if exited["status"] != "0":
            seen.bad_ends.setdefault(uid, []).append(line)
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
    if len(path.encode()) > DAEMON_DIRECTORY_MAX_BYTES:
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
    if _FAULT.search(what):
        culprit = _CULPRIT.search(what)
        who = [f"the client that made the fault is pid {culprit['pid']}"] if culprit else []
        seen.found.append(diagnose("client-fault", CERTAIN, line, *who))
    if "is associated" in what:
        seen.associated = line
    if _WORKER.search(what):
        seen.worker = line
    elif _AFTER_WORKER.search(what):
        seen.worker = None


def _conclude(seen: _Seen, text: symptoms.Understood) -> list[Diagnosis]:
    found = []
    bad = {uid: ends for uid, ends in seen.bad_ends.items() if len(ends) >= LOOP}
    failed = bool(seen.bad_ends) or any("Failed to start" in line for line in seen.legacy)
    if seen.legacy and failed:
        found.append(diagnose("gpu-older-than-volta", CERTAIN, *seen.legacy))
    for uid, ends in bad.items():
        whose = [] if uid < 0 else [f"{len(ends)} servers of user {uid} ended badly"]
        found.append(diagnose("server-crash-loop", CERTAIN, *whose, *seen.fatal[:2], *ends[:4]))
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
