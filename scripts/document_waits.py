#!/usr/bin/env python3
"""The section of docs/reliability.md on waits: each with its end, which is read from the code, units and playbooks.

What is awaited and what happens at the end stands here; the lengths do not. scripts/document_faults.py writes the page.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Sequence

import yaml

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = PROJECT / "scripts" / "mpsctl"

_HEAD = """\
## Every wait has an end

Lengths are seconds, as the code has them; a test finds each wait that is missing here. Two waits have no end of ours. A
process in the kernel (state D) takes no signal: such a one is left behind, and named. And a client that came to the
socket is systemd's until the door runs: nothing of ours can speak to it before that.
"""


@dataclass(frozen=True)
class Wait:
    """``place`` is MODULE.NAME below mpsctl; ``what`` is awaited, and ``then`` happens when the time is over."""

    place: str
    what: str
    then: str


OF_PROGRAM = (
    Wait("lifecycle.host_lock.BOUND_S", "another run that changes this host", "refused with its pid; nothing changed"),
    Wait("cli.reconcile.INPUT_S", "the next bytes of a request", "refused; nothing was begun"),
    Wait("adapters.systemd._TIMEOUT_S", "an answer of systemd", "unknown, or an error that names the command"),
    Wait("adapters.systemd._JOBS_TIMEOUT_S", "the jobs of one call of systemctl", "an error; the jobs go on"),
    Wait("adapters.systemd._JOURNAL_TIMEOUT_S", "lines of the journal", "unknown what the log says"),
    Wait("adapters.nvml.BOUND_S", "one call of NVML", "that GPU is left out"),
    Wait("adapters.nvml._NEXT_BOUND_S", "one call about a GPU that did not answer before", "that GPU is left out"),
    Wait("observe.asked.NVML_TIMEOUT_S", "all of NVML, for one look", "unknown what the GPUs are"),
    Wait("observe.gpus.TIMEOUT_S", "all of NVML, where a look asks itself", "unknown what the GPUs are"),
    Wait("observe.daemons.TIMEOUT_S", "what /proc tells of MPS processes", "unknown who runs"),
    Wait("observe.host.DAEMON_TIMEOUT_S", "a control daemon, for one bounded look", "it is unresponsive"),
    Wait("observe.host._JAMMED_TIMEOUT_S", "one that the front door found jammed", "it is unresponsive"),
    Wait("observe.host.INSTANCE_TIMEOUT_S", "the look at one instance", "unknown how that instance is"),
    Wait("observe.host._TOGETHER_TIMEOUT_S", "the same, in one process with others", "unknown how it is"),
    Wait("lifecycle.health.INSTANCE_TIMEOUT_S", "the same, each minute", "unknown how that instance is"),
    Wait("cli.top.LOOK_S", "one look of `mpsctl top`", "given up, said, and begun anew"),
    Wait("adapters.control_daemon.DEADLINE_S", "one session with a control daemon", "not served; its peers are named"),
    Wait("store.quiet.WAIT_S", "who is being passed on, before a daemon is asked", "nobody calls it unresponsive"),
    Wait("store.quiet.MOST_S", "a look at the daemon, by the front door", "the door passes clients on again"),
    Wait("adapters.selinux._TIMEOUT_S", "semodule, with the policy module", "an error that names the command"),
    Wait("adapters.unix_peers._DUMP_S", "the kernel's list of sockets", "unknown who holds the session"),
    Wait("adapters.unix_peers._SCAN_S", "the owners of these sockets", "unknown who holds the session"),
    Wait("adapters.bounded._END_S", "the end of a child that has answered", "SIGKILL"),
    Wait("lifecycle.apply._START_DEADLINE_S", "a daemon that was just started", "the start fails and is tried again"),
    Wait("lifecycle.apply._EXEC_DEADLINE_S", "the daemon's program in its process", "the start fails, tried again"),
    Wait("lifecycle.apply._SERVER_LOG_S", "the server's line about a limit", "the reload fails; clients stay out"),
    Wait("lifecycle.gpu_claims._LOCK_S", "other starts that look which GPUs are free", "the start waits on"),
    Wait("lifecycle.drain._LEAST_LOOK_S", "a daemon, at the last look of a drain", "its clients cannot be counted"),
    Wait("lifecycle.drain._LAST_LOOK_S", "a daemon that is to end, once its door is closed", "it is left alone"),
    Wait("lifecycle.terminate.DAEMON_BOUND_S", "the daemon, to take one client off", "that client is left alone"),
    Wait("lifecycle.terminate._BY_ITSELF_S", "the end of clients that were taken off", "SIGTERM"),
    Wait("lifecycle.terminate._TERM_S", "the same after SIGTERM", "SIGKILL"),
    Wait("lifecycle.terminate._KILL_S", "the same after SIGKILL", "named, with its state"),
    Wait("adapters.scontrol.TIMEOUT_S", "an answer of Slurm's scontrol", "an error; a Prolog or Epilog fails by it"),
    Wait(
        "lifecycle.slurm_job.READY_S", "a Prolog: its instances, to be ready", "Slurm drains the node with the reason"
    ),
    Wait("lifecycle.terminate.BOUND_S", "all of these together", "named"),
    Wait("lifecycle.evict.BOUND_S", "`mpsctl evict`, unless `--timeout` says more", "who is connected still is named"),
    Wait("lifecycle.evict._ANSWER_S", "the same: a daemon, to answer one look or take one off", "it is asked no more"),
    Wait("lifecycle.evict._LAST_S", "`mpsctl evict --end`: what is left of its bound at SIGKILL", "who lives is named"),
    Wait("lifecycle.stop._TAKE_OFF_S", "a stop: the daemon, to take clients off after their grace", "it quits"),
    Wait("lifecycle.stop._LEAST_QUIT_S", "a stop: what the daemon has at least to quit", "systemd ends it"),
    Wait("lifecycle.stop._GRACE_S", "a stop: its process, and a front door that does not let go", "systemd ends it"),
    Wait("lifecycle.stop.OVERTIME_S", "a stop beyond `mps_stop_timeout_s`, all together", "systemd ends it"),
    Wait("store.admission.BOUND_S", "a client that is just being passed on", "an error that names the front door"),
    Wait("lifecycle.admit._REFUSE_ALL_S", "the same, once the daemon is gone", "the front door asks systemd"),
    Wait("lifecycle.admit._SETTLE_S", "the same, to open what a killed run had closed", "it stays so, and is told"),
    Wait("front_door.greeting._HEARING_S", "the daemon's greeting, when it is learned", "the client waits on"),
    Wait("front_door.servers.SESSION_S", "the door's session with the daemon", "asked again"),
    Wait("front_door.readiness._START_SESSION_S", "the session that asks for a server", "asked again"),
    Wait("front_door.readiness._START_S", "the start of a server", "started again"),
    Wait("model.shares.PLACE_HOLDS_S", "the first context of a client that was let in", "its place is given away"),
    Wait("front_door.environments._BOUND_S", "the environment of a client, where it is judged", "it comes in unread"),
    Wait("front_door.jam._ANSWER_S", "the answer of a daemon that may be jammed", "the health look is started"),
    Wait("front_door.worker._END_S", "what the door is doing when it ends", "left undone"),
    Wait("checks.free_places._ENDING_S", "a probe client that ended leaves the daemon's list", "the next is not tried"),
    Wait("store.admission.DEFAULT_WAIT_S", "a client, where the door knows no other length", "error 805"),
    Wait("checks.probe_client.TIMEOUT_S", "a probe client", "unknown; it is ended"),
    Wait("causes.seen.NVML_TIMEOUT_S", "NVML, for the doctor", "unknown"),
    Wait("causes.seen.INSTANCE_TIMEOUT_S", "an instance, for the doctor", "unknown"),
    Wait("causes.consult.TIMEOUT_S", "the doctor's look at a process or at texts", "said; the rest is told"),
    Wait("causes.apple_gpu._TIMEOUT_S", "a Mac's list of its displays", "no GPU is named"),
    Wait("model.checked_values.DRAIN_TIMEOUT_S", "clients, by `mpsctl drain` without a bound", "named, and left"),
    Wait("measuring.bench._READY_S", "bench: its processes", "the run is given up"),
    Wait("measuring.bench._REPORT_S", "bench: their figures", "the run is given up"),
    Wait("measuring.loopback._READY_S", "loopback: its ranks", "the run is given up"),
    Wait("measuring.loopback._LEFT_S", "loopback: the GPU, to let go", "named as left"),
    Wait("measuring.comparison._SETTLE_S", "a comparison: the GPU, to come to rest", "measured all the same"),
    Wait("measuring.idle_gpu._DAEMON_START_S", "a temporary daemon", "refused"),
    Wait("measuring.measure._DEADLINE_S", "measure: all of it", "ended, with what hangs"),
    Wait("measuring.measure._CLIENT_TIMEOUT_S", "measure: one client", "ended"),
    Wait("adapters.copies._TERM_S", "a measured command after SIGTERM", "SIGKILL"),
    Wait("adapters.copies._KILL_S", "the same after SIGKILL", "left behind"),
    Wait("adapters.temporary_daemon._END_S", "the end of a temporary daemon", "SIGKILL"),
    Wait("adapters.worker_pool._END_S", "the end of measuring processes", "SIGKILL"),
)

_NO_WAIT = re.compile(
    r"_(FIRST|LONGEST|LATE|SLOWEST)_|POLLS?_S|PAUSES?_|_PACE|HOLDS|AGAIN|WINDOW|RECENT|_LATE_S|SPARE|STABLE|WARM_UP|SAMPLE"
    r"|\._LOOK_S|SECOND_LOOK|AFTER_FAULT|PRUNE|_GO_S|EVERY|IN_A_ROW|ARRIVING|_SLOW_S"
)
"""Pauses between two looks, ages, windows: what is no bound by its name."""


def is_no_wait(place: str) -> bool:
    """Whether a length is no bound, by its name."""
    return _NO_WAIT.search(place) is not None


def lengths() -> Iterator[str]:
    """Every length in seconds that a module of the program names, as MODULE.NAME."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from (f"{module}.{name.id}" for name in names if name.id.endswith("_S"))


def _length_s(place: str) -> str:
    module, _, name = place.rpartition(".")
    return f"{getattr(importlib.import_module(f'mpsctl.{module}'), name):g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _of_program() -> str:
    bootstrap = (PROJECT / "plugins" / "plugin_utils" / "mps_role" / "bootstrap.py").read_text()
    arriving_s = re.findall(r"^INPUT_S = (\d+)$", bootstrap, re.MULTILINE)[0]
    rows = [
        ("the next bytes of the program, where it travels", arriving_s, "given up; nothing was begun", "`bootstrap.py`")
    ]
    rows += [
        (one.what, _length_s(one.place), one.then, f"`{one.place.rpartition('.')[0].replace('.', '/')}.py`")
        for one in OF_PROGRAM
    ]
    return _table(("in `mpsctl`, what is awaited", "at most", "then", "where"), rows)


def _of_door() -> str:
    from mpsctl.front_door.bounds import Bounds

    bounds = Bounds()
    service = (PROJECT / "roles/mps/templates/mps-front-door@.service.j2").read_text()
    longest_s = re.findall(r"^ExecStopPost=.*pause_s < (\d+)", service, re.MULTILINE)[0]
    rows = [
        (
            "the door's service, by a client that came before it runs (in connect() itself where the backlog is full)",
            "no end of ours",
            "the door greets it, and the bounds below begin. systemd starts the service for as long as somebody stands"
            " there, with the pauses of the last line; `systemctl status mps-front-door@0` says why it does not run",
        ),
        ("both messages of a client that connected", f"{bounds.silent_s:g}", "error 805"),
        ("the daemon's greeting", f"{bounds.daemon_greeting_s:g}", "the client waits on; the daemon may be jammed"),
        ("the daemon's answer to a client", f"{bounds.answer_s:g}", "error 805; the daemon may be jammed"),
        ("a daemon that gave none, with its end kept open", f"{bounds.kept_open_s:g}", "its end is closed"),
        ("a client's last message", f"{bounds.last_message_s:g}", "it is passed on all the same"),
        ("the next client", f"{bounds.idle_s:g}", "the service ends; systemd holds the socket"),
        ("the next start of a service that ends by itself, 1 s at first", longest_s, "it starts; the socket stands"),
    ]
    return _table(("at the front door, what is awaited", "at most", "then"), rows)


def _of_settings() -> str:
    from mpsctl.model.settings import SETTINGS

    rows = [
        (f"`{one.variable}`", str(one.default), one.meaning.rstrip(".")) for one in SETTINGS if one.name.endswith("_s")
    ]
    return _table(("variable", "default", "what it is"), rows)


def _of_units() -> str:
    rows = []
    for path in sorted((PROJECT / "roles" / "mps" / "templates").glob("*.j2")):
        for line in path.read_text().splitlines():
            found = re.fullmatch(r"(Timeout\w*Sec)=(.*)", line)
            if found:
                value = re.sub(r"\{\{ (\w+) \| int \+ (\d+) \}\}", r"`\1` + \2", found[2])
                rows.append((f"`{path.name.removesuffix('.j2')}`", f"`{found[1]}`", value))
    return _table(("unit", "setting", "seconds"), rows)


def tasks(found: Any) -> Iterator[dict[str, Any]]:
    """Every task of a file of plays or tasks, out of its blocks."""
    for one in found or ():
        for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from tasks(one.get(key))
        if "hosts" not in one and "block" not in one:
            yield one


def task_files() -> list[Path]:
    """The files of the playbooks and of the role that hold tasks."""
    return sorted([*PROJECT.glob("playbooks/**/*.yml"), *PROJECT.glob("roles/mps/tasks/*.yml"), PROJECT / "site.yml"])


def _of_playbooks() -> str:
    known: dict[str, str] = yaml.safe_load((PROJECT / "roles/mps/vars/main.yml").read_text())
    rows = []
    for path in task_files():
        for task in tasks(yaml.safe_load(path.read_text())):
            rebooted = task.get("mps_reboot")
            if "timeout" not in task and rebooted is None:
                continue
            value = str(task["timeout"] if rebooted is None else rebooted["reboot_timeout"])
            name = re.fullmatch(r"\{\{ (_mps_\w+) \}\}", value)
            value = str(known[name[1]]) if name else value
            value = _in_short(value)
            if "until" in task:
                value += f", tried {_in_short(str(task['retries']))} times"
            rows.append((f"`{path.relative_to(PROJECT)}`", task["name"], value))
    return _table(("file", "task", "seconds"), rows)


def _in_short(value: str) -> str:
    """A template's variable by its name, with what is added to it."""
    value = re.sub(r"\{\{ (\w+)(?: \| default\(\d+\))? \| int \+ (\d+) \}\}", r"`\1` + \2", value)
    return re.sub(r"\{\{ (\w+) \| default\(\d+\) \}\}", r"`\1`", value)


def section() -> str:
    """The whole section."""
    parts = (_HEAD, _of_program(), _of_door(), _of_settings(), _AFTER_UNITS, _of_units(), _AFTER_TASKS, _of_playbooks())
    return "\n".join(parts)


_AFTER_UNITS = """\
What systemd waits for a unit's commands; at the end it ends them, and the start or the stop has failed. A reload has
the length of a start.
"""
_AFTER_TASKS = """\
What the controller waits for one host in a task. At the end that host has failed, by its name, and the others go on;
what still runs there may go on too, as after a playbook that was killed. `undrain_timeout_s` is 300 and
`reboot_timeout_s` 600, where they are not set.
"""
