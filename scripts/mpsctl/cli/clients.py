"""The verb clients: who is connected, what was left over, and the end of one client."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Optional, Sequence

from mpsctl.checks import waits, words
from mpsctl.checks.judgement import STATUS
from mpsctl.checks.report import Report, report
from mpsctl.cli import output, table
from mpsctl.model import duration
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.foreign import shown
from mpsctl.observe import leftovers, plain
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.leftovers import Connected, Found, Why
from mpsctl.store import configuration
from mpsctl.store.world import World

_COMMAND_WIDTH = 48
_ANSWERS, _FILE = "daemon-answers", "configuration"
_HEAD = ("INSTANCE", "PID", "USER", "AGE", "MEMORY", "LIMIT", "SERVER", "CONTAINER", "STATE", "COMMAND")


def clients(world: World, options: argparse.Namespace) -> int:
    """List the clients, or end one of them; the exit code.

    :raises BadValue: for an instance that has no file, or what is no client.
    :raises NotReady: if nobody can tell whether the one to end is a client.
    """
    for name in options.instances:
        configuration.load(world, name)
    if options.yes and options.terminate is None:
        raise BadValue("--yes without --terminate", "both", "name the client to end")
    wanted = None if options.terminate is None else _pid(options.terminate)
    found = leftovers.look(world, options.instances or None)
    if wanted is not None:
        return _terminate(world, options, found, wanted)
    if options.json:
        output.say_json(_as_json(found))
    else:
        _show(found)
    return NotReady.exit_code if found.unknown or found.host.gpus.unread else 0


def _unknown(found: Found) -> dict[str, str]:
    """Why nobody can tell who is connected to an instance, by its name."""
    judged = report(found.host, STATUS)
    return {one.name: _why_unknown(judged, one) for one in found.unknown}


def _why_unknown(judged: Report, one: InstanceFacts) -> str:
    if one.unread is not None:
        return words.unread(one.unread)
    return judged.check(one.name, _ANSWERS if one.desired else _FILE).found


def _as_json(found: Found) -> dict[str, Any]:
    """Format 2, as the other verbs have it: facts as plain data, and why something is left over as its kind."""
    unknown = _unknown(found)
    unread = found.host.gpus.unread
    return {
        "format": 2,
        "instances": {
            name: {
                "clients": [_row_as_json(row) for row in rows],
                "unknown": unknown.get(name),
                "waiting": plain.of(found.host.instances[name].waiting),
                "room": plain.of(found.host.instances[name].room),
            }
            for name, rows in found.connected.items()
        },
        "left_over": [{**plain.of(one), "says": why_left_over(one.why)} for one in found.left_over],
        "gpus_unread": words.unread(unread) if unread else None,
    }


def _row_as_json(one: Connected) -> dict[str, Any]:
    left_over = one.left_over.kind if one.left_over else None
    return {**plain.of(one.client), "server": one.server, "age_s": one.age_s, "left_over": left_over}


def _show(found: Found) -> None:
    rows = [_row(one) for every in found.connected.values() for one in every]
    if rows:
        for line in table.lines(_HEAD, rows):
            output.say(line)
    else:
        output.say("no client is connected" if found.connected else "this host has no instance")
    for one in found.host.instances.values():
        if one.room is not None:
            output.say(f"{one.name}: places: {words.room(one.room)}")
        for each in one.waiting:
            output.say(f"{one.name}: waiting: {waits.reason(one, each).line}")
    for name, why in _unknown(found).items():
        output.say(f"! {name}: cannot tell who is connected: {why}")
    if found.host.gpus.unread:
        output.say(f"! cannot tell what else holds memory: {words.unread(found.host.gpus.unread)}")
    for left in found.left_over:
        held = ", ".join(f"{words.mib(mib)} on {uuid}" for uuid, mib in left.memory_mib.items())
        about = f"pid {left.pid} ({shown(left.command) or 'command not told'}, {words.who(left.user, left.uid)})"
        whose = f"client of {left.instance}" if left.instance else "no client of an instance"
        output.say(f"left over: {about}, {whose}, holds {held or 'not told'}: {why_left_over(left.why)}")


def _row(one: Connected) -> tuple[str, ...]:
    client = one.client
    command = shown(client.command)
    return (
        one.instance,
        str(client.pid),
        shown(client.user) if client.user else "?" if client.uid is None else str(client.uid),
        duration.text(one.age_s) if one.age_s is not None else "?",
        _mib(client.memory_mib),
        _mib(client.limits_mib),
        str(one.server),
        shown(client.container[:12]) if client.container else "-",
        (client.state or "gone") + (" left over" if one.left_over else ""),
        (command if len(command) <= _COMMAND_WIDTH else f"{command[: _COMMAND_WIDTH - 1]}…") or "?",
    )


def _mib(values: Sequence[Optional[int]]) -> str:
    return ", ".join("?" if mib is None else f"{mib} MiB" for mib in values) or "?"


def _pid(text: str) -> int:
    """:raises BadValue: if it is no process id."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise BadValue(f"--terminate {text!r}", "a process id", "take one that `mpsctl clients` lists")
    return int(text)


def _terminate(world: World, options: argparse.Namespace, found: Found, pid: int) -> int:
    from mpsctl.lifecycle import acts, terminate

    target = next((one for rows in found.connected.values() for one in rows if one.client.pid == pid), None)
    if target is None:
        unknown = _unknown(found)
        if unknown:
            raise NotReady(f"who is connected cannot be told: {'; '.join(unknown.values())}; nothing was done")
        raise BadValue(
            f"pid {pid}, which is no client of an instance", "a client", "take one that `mpsctl clients` lists"
        )
    who = words.client(target.client)
    if not options.yes and not _asked(target, options.json):
        output.say(f"{who} is left alone", stream=sys.stderr)
        return 1
    instance = found.host.every[target.instance]
    daemon = terminate.running_daemon(world, instance, found.host.units[target.instance].main_pid)
    (ended,) = terminate.end(world, daemon, [(target.server, target.client)])
    acts.tell(world, acts.END_CLIENT, f"{who}: {'; '.join(ended.steps) or ended.problem}", target.instance)
    if options.json:
        output.say_json({"instance": target.instance, **ended.as_json()})
    else:
        output.say(f"{who}: {'; '.join(ended.steps) or 'nothing was done'}")
    if ended.problem:
        output.say(f"mpsctl clients: {who} could not be ended: {ended.problem}", stream=sys.stderr)
    return 4 if ended.problem else 0


def _asked(target: Connected, json_: bool) -> bool:
    """Whether the person at the terminal says yes.

    :raises BadValue: if there is none to ask.
    """
    if json_ or not sys.stdin.isatty():
        raise BadValue("no terminal to ask at", "a yes before a client is ended", "add --yes")
    age = duration.text(target.age_s)
    output.say(f"{words.client(target.client)}, {age} old, of instance {target.instance}, loses its work on the GPU.")
    return input("End it? [y/N] ").strip().lower() in ("y", "yes")


def why_left_over(one: Why) -> str:
    """Why a process is taken for left over."""
    of = shown(one.of)
    sentences = {
        leftovers.GONE: "its process is gone and the GPU is still in its name",
        leftovers.ZOMBIE: (
            f"it has ended (zombie) and its parent, pid {one.parent} ({shown(one.parent_command)}), has not taken note"
        ),
        leftovers.HANGS: (
            "it waits in the kernel (state D) and no signal ends it; see dmesg: the GPU may need a reset"
        ),
        leftovers.SERVER: "an MPS server whose control daemon is gone: end it when its clients are gone, then restart"
        " the instance of its GPU",
        leftovers.CONTAINER: f"of container {of}, which nothing runs any more: its parent is process 1",
        leftovers.SESSION: f"of login session {of}, which has ended, and its parent with it",
        leftovers.JOB: f"of batch job {of}, which has no slurmstepd any more, and its parent is gone",
    }
    return sentences[one.kind]
