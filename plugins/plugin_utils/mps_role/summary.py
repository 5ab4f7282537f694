"""What a run did, in a line for hosts that are alike: the one place where sentences are made of statements.

What goes in is what the actions of this project hand back under ``KEY``, and why hosts failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from . import (
    hosts,
    project,  # noqa: F401 (it makes mpsctl importable)
)

from mpsctl.converge import statement  # isort: skip
from mpsctl.model.foreign import shown  # isort: skip

KEY = "mps_run"
"""Where an action's result has what this module reads: ``told`` makes it."""
LOOK, CHANGE = "look", "change"
"""The parts of a run: what was found to do, and what was done."""

_MOST_OF_REASON, _MOST_OF_VALUE = 600, 60
_MOST_NAMES = 2

Said = Mapping[str, Any]
"""A statement, as JSON has it."""


def told(part: str, check: bool, statements: Sequence[Said], changes: Optional[bool] = None) -> dict[str, Any]:
    """What an action's result has under ``KEY``. ``check`` is Ansible's check mode: then it would be done. ``changes``
    is whether there is a change at all; without it, whether there are statements."""
    return {
        "part": part,
        "check": check,
        "statements": list(statements),
        "changes": bool(statements) if changes is None else changes,
    }


def of_steps(steps: Iterable[Mapping[str, Any]]) -> list[Said]:
    """The statements of steps, as mpsctl answers with them."""
    return [one for step in steps for one in step.get("statements") or ()]


class Phrase(NamedTuple):
    """One thing that was done, and the same as what would be done."""

    done: str
    would: str


# -- the statements of one host


def phrases(statements: Sequence[Said]) -> list[Phrase]:
    """What the statements of one host say, in a few words each; those of like instances and GPUs together."""
    found = [part for make in _PARTS for part in make(statements)]
    if not found and statements:
        found = [Phrase("systemd's units reloaded", "reload systemd's units")]
    return found


def _of(statements: Sequence[Said], what: str) -> list[Said]:
    return [one for one in statements if one["what"] == what]


def _instances(statements: Sequence[Said], *whats: str) -> list[str]:
    return [str(one["instance"]) for one in statements if one["what"] in whats and one.get("instance") is not None]


def _names(statements: Sequence[Said], what: str) -> list[str]:
    """Of units and files that belong to no instance."""
    return [str(one["name"]) for one in _of(statements, what) if one.get("instance") is None and one.get("name")]


def _noun(names: Sequence[Any]) -> str:
    """Instances by their names; None stands for all, where nobody asked the host which there are."""
    if None in names:
        return "all instances"
    return f"instance{'s' if len(names) > 1 else ''} {hosts.listed(names)}"


def _program(statements: Sequence[Said]) -> Iterable[Phrase]:
    for one in _of(statements, statement.PACKAGE_INSTALLED):
        yield Phrase(f"package of {one['name']} installed", f"install the package of {one['name']}")
    if _of(statements, statement.PROGRAM_INSTALLED):
        yield Phrase("mpsctl installed", "install mpsctl")


_NOUNS = {
    "device_memory_limit": "limit",
    "active_thread_percentage": "thread percentage",
    "client_priority": "priority",
    "instances": "GPUs",
    "pipe_root": "pipe directory",
}
"""What settings are called where their variables have longer names."""


def _settings(statements: Sequence[Said]) -> Iterable[Phrase]:
    live = set(_instances(statements, statement.RELOADED))
    by_mode = set(_instances(statements, statement.COMPUTE_MODE))
    like: dict[tuple[str, Any, Any, bool], list[str]] = {}
    for one in _of(statements, statement.SETTING):
        if one["name"] == "compute_mode" and one["instance"] in by_mode:
            continue  # the GPUs' own modes say more
        key = (one["name"], one.get("before"), one.get("after"), one["instance"] in live)
        like.setdefault(key, []).append(one["instance"])
    for (name, before, after, is_live), instances in like.items():
        in_seconds = " s" if name.endswith("_s") else ""
        noun = _NOUNS.get(name, name.removesuffix("_s").replace("_", " "))
        values = f"{_value(before, in_seconds)} to {_value(after, in_seconds)}"
        change = f"{noun} {values}{' live' if is_live else ''} on {hosts.listed(instances)}"
        yield Phrase(change, f"change {change}")


def _value(value: Optional[str], unit: str = "") -> str:
    return "none" if value is None else f"{shown(value, _MOST_OF_VALUE)}{unit}"


def _ends(statements: Sequence[Said]) -> Iterable[Phrase]:
    like: dict[Any, list[Any]] = {}
    for one in _of(statements, statement.DRAINED):
        like.setdefault(one.get("count"), []).append(one.get("instance"))
    for count, names in like.items():
        who = {None: "", 0: "", 1: " of 1 client"}.get(count, f" of {count} clients{' each' if len(names) > 1 else ''}")
        yield Phrase(f"{_noun(names)} drained{who}", f"drain {_noun(names)}{who}")
    for what, done, would in (
        (statement.UNDRAINED, "lets clients in again", "let clients in again on"),
        (statement.INSTANCE_REMOVED, "stopped and removed", "stop and remove"),
    ):
        names = [one.get("instance") for one in _of(statements, what)]
        if names:
            several = done.replace("lets", "let") if len(names) > 1 else done
            yield Phrase(f"{_noun(names)} {several}", f"{would} {_noun(names)}")


def _starts(statements: Sequence[Said]) -> Iterable[Phrase]:
    written = _instances(statements, statement.INSTANCE_WRITTEN)
    started = _instances(statements, statement.STARTED)
    restarted = _instances(statements, statement.RESTARTED)
    changed = {*_instances(statements, statement.SETTING, statement.COMPUTE_MODE, statement.DOOR_OPENED), *written}
    reloaded = [name for name in _instances(statements, statement.RELOADED) if name not in changed]
    running = {*started, *restarted, *_instances(statements, statement.RELOADED)}
    enabled = [name for name in _instances(statements, statement.ENABLED) if name not in {*running, *written}]
    for names, done, would in (
        ([name for name in written if name in started], "set up and started", "set up and start"),
        ([name for name in written if name not in started], "set up", "set up"),
        ([name for name in started if name not in written], "started", "start"),
        (restarted, "restarted", "restart"),
        (reloaded, "reloaded, its limits in force again", "reload"),
        (enabled, "enabled to start at boot", "enable at boot"),
    ):
        if names:
            several = done.replace("its limits", "their limits") if len(names) > 1 else done
            unique = list(dict.fromkeys(names))
            yield Phrase(f"{_noun(unique)} {several}", f"{would} {_noun(unique)}")


def _modes(statements: Sequence[Said]) -> Iterable[Phrase]:
    like: dict[tuple[Any, Any], list[int]] = {}
    for one in _of(statements, statement.COMPUTE_MODE):
        gpus = like.setdefault((one["before"], one["after"]), [])
        if one["gpu"] not in gpus:
            gpus.append(one["gpu"])
    for (before, after), gpus in like.items():
        change = f"compute mode {_value(before)} to {_value(after)} on GPU {hosts.listed(sorted(gpus))}"
        yield Phrase(change, f"change {change}")


def _doors(statements: Sequence[Said]) -> Iterable[Phrase]:
    for what, done, would in (
        (statement.DOOR_OPENED, "started", "start"),
        (statement.DOOR_REMOVED, "taken away", "take away"),
    ):
        names = _instances(statements, what)
        if names:
            yield Phrase(
                f"front door of {hosts.listed(names)} {done}", f"{would} the front door of {hosts.listed(names)}"
            )


def _units(statements: Sequence[Said]) -> Iterable[Phrase]:
    started = _names(statements, statement.STARTED)
    for what, done, would in (
        (statement.FILE_WRITTEN, "written", "write"),
        (statement.STARTED, "started", "start"),
        (statement.RESTARTED, "restarted", "restart"),
        (statement.ENABLED, "enabled to start at boot", "enable at boot"),
        (statement.STOPPED, "stopped", "stop"),
    ):
        names = [name for name in _names(statements, what) if what != statement.ENABLED or name not in started]
        if what == statement.FILE_WRITTEN:
            names += [str(one["name"]) for one in _of(statements, what) if one.get("instance") is not None]
        yield from _few(names, done, would, "file" if what == statement.FILE_WRITTEN else "unit")


def _few(names: Sequence[str], done: str, would: str, noun: str) -> Iterable[Phrase]:
    if names:
        what = f"{len(names)} {noun}s" if len(names) > _MOST_NAMES else " and ".join(names)
        yield Phrase(f"{what} {done}", f"{would} {what}")


def _rest(statements: Sequence[Said]) -> Iterable[Phrase]:
    for what, done, would in (
        (statement.POLICY_LOADED, "SELinux module loaded", "load the SELinux module"),
        (statement.POLICY_REMOVED, "SELinux module taken out", "take the SELinux module out"),
    ):
        if _of(statements, what):
            yield Phrase(done, would)
    remains = _names(statements, statement.REMAINS_REMOVED)
    if remains:
        what = "remains of an earlier run"
        yield Phrase(f"{what} removed ({len(remains)})", f"remove {what} ({len(remains)})")
    yield from _few(_names(statements, statement.FILE_REMOVED), "removed", "remove", "file")
    if _of(statements, statement.PROGRAM_REMOVED):
        yield Phrase("mpsctl removed", "remove mpsctl")
    if _of(statements, statement.REBOOTED):
        yield Phrase("rebooted", "reboot")


_PARTS = (_program, _settings, _ends, _starts, _modes, _doors, _units, _rest)


# -- a run over hosts


@dataclass
class HostRun:
    """One host's part in a run. ``planned`` is None where it was not looked at, ``done`` where nothing was begun."""

    check: bool = False
    planned: Optional[list[Said]] = None
    done: Optional[list[Said]] = None
    changes: bool = False
    """whether there is something to do, or was"""
    reason: Optional[str] = None
    """why it failed at last"""
    refused: bool = False
    unreachable: bool = False

    @property
    def untouched(self) -> bool:
        """Whether something was found to do, and nothing was begun."""
        return not self.check and self.done is None and self.planned is not None and self.changes


@dataclass
class Summary:
    """What is known of all hosts of a run."""

    hosts: dict[str, HostRun] = field(default_factory=dict)
    all_or_nothing: bool = False
    """whether no host is changed where one refuses"""
    is_ours: bool = False
    """whether an action of this project's took part"""

    def of(self, host: str) -> HostRun:
        return self.hosts.setdefault(host, HostRun())

    def take(self, host: str, result: Mapping[str, Any]) -> None:
        """Note a result of one of this project's actions; that of another says nothing."""
        self.all_or_nothing = self.all_or_nothing or bool(result.get("all_or_nothing"))
        found = result.get(KEY)
        if not isinstance(found, Mapping):
            return
        run = self.of(host)
        statements = list(found["statements"])
        if found["part"] == LOOK:
            run.changes = bool(found["changes"])
        else:
            run.changes = bool(found["changes"]) or (run.done is not None and run.changes)
        run.check = run.check or bool(found["check"])
        if found["part"] == LOOK:
            run.planned = statements
        else:
            run.done = [*(run.done or ()), *statements]

    def fail(self, host: str, result: Mapping[str, Any], unreachable: bool = False, ours: bool = False) -> None:
        """Note why a host failed; what is said last holds. ``ours`` is whether an action of this project's did."""
        self.is_ours = self.is_ours or ours
        refusals = result.get("refusals")
        if isinstance(refusals, Mapping):  # of the variables of many hosts, told by one
            for name, lines in refusals.items():
                run = self.of(str(name))
                run.reason, run.refused = "; ".join(map(str, lines)), True
            return
        self.take(host, result)
        run = self.of(host)
        reason = result.get("refused") or result.get("msg") or result.get("stderr") or "no reason was given"
        run.reason = str(reason).removeprefix(f"{host}: ")
        run.refused, run.unreachable = bool(result.get("refused")), unreachable

    def lines(self, failed: Iterable[str]) -> list[str]:
        """The summary, a line for hosts that are alike; none where no host did anything of this project's.

        ``failed`` are the hosts that failed for good, and not only for a while.
        """
        bad = set(failed) | {name for name, run in self.hosts.items() if run.refused}
        ours = {name for name, run in self.hosts.items() if run.planned is not None or run.done is not None}
        known = {name: run for name, run in self.hosts.items() if name in bad | ours}
        if not (ours or self.is_ours):
            return []
        said = {name: _told(run) for name, run in known.items() if _told(run)}
        idle = [name for name, run in known.items() if not _told(run) and not run.untouched and name not in bad]
        waiting = [name for name, run in known.items() if run.untouched and name not in bad]
        found = [f"{self._span(group)}: {line}" for line, group in hosts.alike(said)]
        if found and bad and self.all_or_nothing and any(run.check for run in known.values()):
            found.insert(0, "nothing would be changed, as mps_all_or_nothing is set and a host fails; without that:")
        if idle:
            found.append(f"nothing to do: {self._count(idle)}")
        if waiting:
            why = ", as mps_all_or_nothing is set" if self.all_or_nothing and not said else ""
            found.append(f"not begun and untouched{why}: {self._span(waiting)}")
        reasons = {name: _reason(known[name]) for name in bad if name in known}
        return found + [f"{line[0]}: {self._span(group)}: {line[1]}" for line, group in hosts.alike(reasons)]

    def _span(self, names: Sequence[str]) -> str:
        return hosts.span(names, self.hosts)

    def _count(self, names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else f"{len(names)} hosts"


def _told(run: HostRun) -> str:
    """What was done on a host, or with check mode would be; empty where that is nothing."""
    if not run.changes or run.untouched:
        return ""
    if run.check:
        found = phrases([*(run.planned or ()), *(run.done or ())])
        return f"would {'; '.join(one.would for one in found) or 'change'}"
    return "; ".join(one.done for one in phrases(run.done or ())) or "changed"


def _reason(run: HostRun) -> tuple[str, str]:
    kind = "refused" if run.refused else "unreachable" if run.unreachable else "failed"
    said = "; ".join(line.strip() for line in str(run.reason or "no reason was given").splitlines() if line.strip())
    return kind, shown(said, _MOST_OF_REASON)
