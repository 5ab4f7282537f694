"""Facts in words: the one place where a process, a daemon, a client or an obstacle becomes a line for people."""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.model import client_variable
from mpsctl.model.client_variable import Bypass
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.finding import Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.shares import ALL
from mpsctl.observe import process_facts
from mpsctl.observe.door_facts import Place, RoomFacts, Waiting
from mpsctl.observe.facts import ABSENT, NO_RIGHT, NOT_TOLD, Answer, ClientFacts, DaemonProcess, OverLimit, Unread
from mpsctl.observe.process_facts import GpuProcess, Obstacle

SIMULATED = "simulated GPUs: a lab stands in for NVML, the PCI bus and the driver; the control daemon is real"


def unread(what: Unread) -> str:
    """Why something could not be read."""
    if what.words:
        return what.words
    reasons = {
        NO_RIGHT: "this user may not read it: ask as root",
        NOT_TOLD: "it is not told",
        ABSENT: "it is not there",
    }
    return f"{what.source}: {reasons.get(what.why, what.why)}"


def number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def who(user: Optional[str], uid: Optional[int]) -> str:
    return f"user {shown(user) if user else 'not told' if uid is None else uid}"


def mib(value: Optional[int]) -> str:
    return "not told" if value is None else f"{value} MiB"


def limit(in_bytes: int) -> str:
    """A memory limit to the byte, in MiB where it is whole MiB."""
    mibs, rest = divmod(in_bytes, 1 << 20)
    return f"{in_bytes} bytes" if rest else mib(mibs)


def memory(used_mib: Optional[int], memory_mib: Optional[int]) -> str:
    """What is used of a device's memory, beside all of it."""
    if memory_mib is None:
        return "memory not told"
    return f"{'not told' if used_mib is None else used_mib} of {memory_mib} MiB used"


def daemon(one: DaemonProcess, devices: Optional[Sequence[str]]) -> str:
    """A control daemon with its directory and what it offers by UUID."""
    where = shown(str(one.directory)) if one.directory else "a directory that cannot be read"
    inside = ", in another namespace" if one.elsewhere else ""
    inside = f", container {shown(one.container)}" if one.container else inside
    gpus = "GPUs that cannot be read" if devices is None else ", ".join(map(shown, devices)) or "no GPU"
    hangs = "it hangs: its environment does not come" if one.state == "D" else "command not told"
    command = shown(one.command) or hangs
    return f"control daemon {one.pid} ({command}, {who(one.user, one.uid)}{inside}) on {where} with {gpus}"


def session_holders(one: Answer) -> str:
    """Who holds a daemon's session, each with what ends it."""
    held = [f"pid {each.pid} of {who(each.user, each.uid)} (`{shown(each.command) or 'gone'}`)" for each in one.held_by]
    if one.unnamed:
        held.append(f"{number(one.unnamed, 'connection')} of processes that cannot be seen (ask as root)")
    stop = f"; `kill {' '.join(map(str, one.holders))}` ends it" if one.held_by else ""
    return ", ".join(held) + stop


def fault(server: int, connected: Sequence[int], alone: bool) -> str:
    """Who made a fatal fault on a server, as far as that is known: by name only where it had one client in its life."""
    if alone and len(connected) == 1:
        return f"client {connected[0]}, the only one that server {server} ever had, made a fatal fault"
    pids = f" (pid {', '.join(map(str, connected))})" if connected else ""
    return f"one of the clients of server {server}{pids} made a fatal fault, and which one is not told"


def client(one: ClientFacts) -> str:
    return f"client {one.pid} ({shown(one.command) or 'command not told'}, {who(one.user, one.uid)})"


def waiting_process(one: Waiting) -> str:
    """A client that waits, with its container or systemd unit."""
    where = f", container {shown(one.container)}" if one.container else f", {shown(one.unit)}" if one.unit else ""
    whose = f"user {one.uid}" + (f" ({shown(one.user)})" if one.user and one.user != str(one.uid) else "")
    return f"pid {one.pid} of {whose}{where} ({shown(one.command) or 'command not told'})"


def place_name(name: str) -> str:
    """All clients of an instance, or a share of them."""
    return "all clients" if name == ALL else f"share {shown(name)}"


def place(one: Place) -> str:
    """A place with how many are in and may be: ``8 of 8 clients``, ``share unit:api.service 2 of 4``."""
    has = f"{'not told how many' if one.has is None else one.has} of {one.most}"
    return f"{has} clients" if one.name == ALL else f"{place_name(one.name)} {has}"


def room(one: RoomFacts) -> str:
    """Each place that is held, in one line: who is in, what becomes of the next one, and who waits."""
    found = []
    for each in one.places:
        line = place(each)
        if each.full:
            line += ", the next one is refused" if one.refuse or not each.most else ", the next one waits"
        if each.waiting:
            line += f", {each.waiting} wait{'s' if each.waiting == 1 else ''}"
        found.append(line)
    found += [] if one.whole else ["and perhaps more, of whom the front door's notes know nothing any more"]
    return "; ".join(found)


def bypass(one: Bypass) -> str:
    """Why a client's own variable drops every limit."""
    begin = f"{client_variable.VARIABLE}={shown(one.value)}"
    if one.device is None:
        return f"{begin}: {shown(one.entry)!r} is not <device>=<integer>M or G, which drops every limit"
    return f"{begin}: it names device {shown(one.device)}, which the client cannot see, and that drops every limit"


def over(one: OverLimit) -> str:
    held = f"it holds {one.held_mib} MiB on device {one.ordinal}"
    if one.limit_mib is None:
        return f"{held}, and no line of the journal proves its limit"
    return f"{held}, above its limit of {one.limit_mib} MiB"


def without_limit(one: ClientFacts) -> Optional[str]:
    """Why it is known that no limit holds a client, or None."""
    lines = [bypass(one.bypass)] if one.bypass else []
    lines += [over(each) for each in one.over if each.limit_mib is not None]
    if one.without:
        devices = ", ".join(map(str, one.without))
        why = f"its server had no limit for device {devices} when it connected"
        if not one.began_here:
            why = f"it began with another server, and came to this one without a limit for device {devices}"
        lines.append(f"{why} ({one.since})")
    return "; ".join(lines) or None


def limit_untold(one: ClientFacts) -> Optional[str]:
    """Why it cannot be told whether a limit holds a client, or None."""
    lines = ["no line of the journal proves its server's limit"] if one.limit_untold else []
    lines += [] if one.readable else ["its environment cannot be read"]
    lines += [over(each) for each in one.over if each.limit_mib is None]
    return "; ".join(lines) or None


def older(one: ClientFacts) -> Optional[str]:
    """Which older limits a client holds, or None."""
    several = len(one.limits_mib) > 1
    return (
        "; ".join(
            f"holds {each.limit_mib} MiB{f' on device {each.ordinal}' if several else ''} since {one.since}, desired"
            f" {each.desired_mib} MiB: connected before the change"
            for each in one.older
        )
        or None
    )


_KINDS = {
    process_facts.CLIENT: "a client",
    process_facts.SERVER: "the server",
    process_facts.OUTSIDE: "outside MPS",
    process_facts.OF_ANOTHER: "of another daemon",
    process_facts.LEFT_OVER: "left over: an MPS server whose control daemon is gone",
    process_facts.OF_LEFT_OVER: "a client of a server whose control daemon is gone",
    process_facts.UNTOLD: "not told apart",
}


def process(one: GpuProcess) -> str:
    """A process on a GPU, what it is, and why."""
    where = f", container {shown(one.container)}" if one.container else ""
    held = "memory not told" if one.memory_mib is None else f"{one.memory_mib} MiB"
    about = f"pid {one.pid} ({shown(one.command) or 'command not told'}, {who(one.user, one.uid)}{where}, {held})"
    reasons = [obstacle(each).line for each in one.obstacles] or [_why(one)]
    why = next((line for line in reasons if line), "")
    return f"{about} is {_KINDS[one.kind]}{f': {why}' if why else ''}"


def _why(one: GpuProcess) -> str:
    if one.kind == process_facts.OF_ANOTHER and one.served_by is not None:
        on = f" on {shown(one.directory)}" if one.directory else ""
        return f"the server of the control daemon {one.served_by}{on}"
    if one.kind == process_facts.OF_ANOTHER:
        on = shown(one.directory) if one.directory else "a directory that cannot be read"
        return f"an MPS client of the daemon on {on}"
    if one.kind == process_facts.UNTOLD:
        return "which daemon is its is not told" if one.why_untold == NOT_TOLD else one.why_untold
    return ""


def obstacle(one: Obstacle) -> Reason:
    """What keeps a process or a user from an instance, with its cause in the catalogue and what to do."""
    mode = f"(mode {one.mode:04o}, owner {shown(one.owner)})"
    path = shown(str(one.path))
    named = shown(one.named or "(none)")
    words = {
        process_facts.DIRECTORY_CLOSED: (
            "pipe-directory-closed",
            f"{path}, on the way to the pipe directory, may not be entered by {one.user} {mode}",
            f"`chmod o+x {pasted(str(one.path))}`, and find what closed it",
        ),
        process_facts.NOT_IN_GROUP: (
            "not-in-group",
            f"{one.user} is not in the group that may connect: the front door refuses it (error 805)",
            "",
        ),
        process_facts.SOCKET_CLOSED: (
            "pipe-directory-closed",
            f"{one.user} may not connect to {path} {mode}",
            f"`chmod o+w {pasted(str(one.path))}`, and find what closed it",
        ),
        process_facts.UNSET: ("pipe-directory-missing", f"{PIPE_DIRECTORY} is not set in its environment", ""),
        process_facts.OTHER_DIRECTORY: (
            "pipe-directory-wrong",
            f"{PIPE_DIRECTORY}={named} instead of {' or '.join(one.expected)}",
            "",
        ),
        process_facts.DIRECTORY_ABSENT: ("no-daemon", f"{path} does not exist where the process stands", ""),
        process_facts.NOT_MOUNTED: (
            "container-without-pipe-directory",
            f"{path} does not exist where the process stands; its mount namespace does not have it: mount it",
            "",
        ),
        process_facts.OTHER_MOUNT: (
            "container-without-pipe-directory",
            f"{path} where the process stands is another directory than this host's of that name: mount this one",
            "",
        ),
        process_facts.NO_SOCKET: ("no-daemon", f"no socket `control` is in {path}", ""),
        process_facts.NO_GPU_OF_IT: (
            "visible-devices-renumbered",
            f"{VISIBLE_DEVICES}={named}, which names no GPU of this instance",
            "",
        ),
        process_facts.STARTED_BEFORE: (
            "started-before-daemon",
            "it was started before this daemon, and found none or lost it",
            "",
        ),
        process_facts.CANNOT_LOOK: ("", f"what it sees of the pipe directory cannot be looked at ({one.words})", ""),
        process_facts.HANGS: ("zombie-client", f"it has ended or cannot be woken (state {one.words})", ""),
        process_facts.ENVIRONMENT_UNREAD: ("", "its environment cannot be read", ""),
        process_facts.NOTHING_WRONG: (
            "",
            "its environment is right: it started while the daemon was down, or changed it itself",
            "",
        ),
    }
    return Reason(*words[one.kind])
