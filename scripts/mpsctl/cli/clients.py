"""The verb clients: who is connected, what was left over, and the end of one client."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Optional, Sequence

from mpsctl.checks import daemon_checks, left_over, unit_checks, words
from mpsctl.checks.judgement import View, make
from mpsctl.cli import output, table
from mpsctl.model import duration
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.finding import OK
from mpsctl.observe import leftovers, plain
from mpsctl.observe.leftovers import Connected, Found
from mpsctl.store import configuration
from mpsctl.store.world import World

_COMMAND_WIDTH = 48
_HEAD = ("INSTANCE", "PID", "USER", "AGE", "MEMORY", "LIMIT", "SERVER", "CONTAINER", "STATE", "COMMAND")


def clients(world: World, options: argparse.Namespace) -> int:
    """List the clients, or end one of them; the exit code."""
    configuration.require(world, options.instances)
    if options.yes and options.terminate is None:
        raise BadValue("--yes without --terminate", "both", "name the client to end")
    wanted = None if options.terminate is None else _pid(options.terminate)
    found = leftovers.look(world, options.instances or configuration.names(world))
    if wanted is not None:
        return _terminate(world, options, found, wanted)
    if options.json:
        output.say_json(_as_json(found))
    else:
        _show(found)
    return NotReady.exit_code if found.unknown or found.host.gpus.unread else 0


def _as_json(found: Found) -> dict[str, Any]:
    gpus = found.host.gpus
    return {
        "instances": {
            name: {
                "clients": [_client_as_json(row) for row in rows],
                "unknown": _why_unknown(found, name) if name in found.unknown else None,
            }
            for name, rows in found.connected.items()
        },
        "left_over": [{**plain.of(one), "why": left_over.why(one.mark)} for one in found.left_over],
        "problem": words.unread(gpus.unread) if gpus.unread else None,
    }


def _client_as_json(row: Connected) -> dict[str, Any]:
    return {**plain.of(row.client), "server": row.server, "age_s": row.age_s, "left_over": plain.of(row.left_over)}


def _why_unknown(found: Found, name: str) -> str:
    """Why the clients of an instance cannot be told: what is judged of its file and of its daemon's answer."""
    view = View(found.host, found.host.instances[name])
    checks = make((unit_checks.configuration, daemon_checks.daemon_answers), view)
    return next((one.found for one in checks if one.level != OK), "its daemon did not tell")


def _show(found: Found) -> None:
    rows = [_row(one) for every in found.connected.values() for one in every]
    if rows:
        for line in table.lines(_HEAD, rows):
            output.say(line)
    else:
        output.say("no client is connected" if found.connected else "this host has no instance")
    for name in found.unknown:
        output.say(f"? {name}: who is connected is not known: {_why_unknown(found, name)}")
    if found.host.gpus.unread:
        output.say(f"? what else holds memory is not known: {words.unread(found.host.gpus.unread)}")
    for left in found.left_over:
        held = ", ".join(f"{'not told' if mib is None else f'{mib} MiB'} on {u}" for u, mib in left.memory_mib.items())
        who = f"pid {left.pid} ({left.command or 'command not told'}, user {left.user or 'not told'})"
        whose = f"client of {left.instance}" if left.instance else "no client of an instance"
        output.say(f"left over: {who}, {whose}, holds {held or 'not told'}: {left_over.why(left.mark)}")


def _row(one: Connected) -> tuple[str, ...]:
    client = one.client
    command = client.command if len(client.command) <= _COMMAND_WIDTH else f"{client.command[: _COMMAND_WIDTH - 1]}…"
    return (
        one.instance,
        str(client.pid),
        client.user or ("?" if client.uid is None else str(client.uid)),
        duration.text(one.age_s) if one.age_s is not None else "?",
        _mib(client.memory_mib),
        _mib(client.limits_mib),
        str(one.server),
        client.container[:12] if client.container else "-",
        (client.state or "gone") + (" left over" if one.left_over else ""),
        command or "?",
    )


def _mib(values: Sequence[Optional[int]]) -> str:
    return ", ".join("?" if mib is None else f"{mib} MiB" for mib in values) or "?"


def _pid(text: str) -> int:
    """:raises BadValue: if it is no process id."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise BadValue(f"--terminate {text!r}", "a process id", "take one that `mpsctl clients` lists")
    return int(text)


def _terminate(world: World, options: argparse.Namespace, found: Found, pid: int) -> int:
    from mpsctl.lifecycle import terminate

    target = next((one for rows in found.connected.values() for one in rows if one.client.pid == pid), None)
    if target is None:
        if found.unknown:
            why = "; ".join(_why_unknown(found, name) for name in found.unknown)
            raise NotReady(f"who is connected is not known: {why}; nothing was done")
        raise BadValue(
            f"pid {pid}, which is no client of an instance", "a client", "take one that `mpsctl clients` lists"
        )
    if not options.yes and not _asked(target, options.json):
        output.say(f"{words.client(target.client)} is left alone", stream=sys.stderr)
        return 1
    one = found.host.instances[target.instance]
    assert one.desired is not None  # else its daemon was not asked, and nobody is known to be connected
    daemon = terminate.running_daemon(world, one.desired, one.pid)
    (ended,) = terminate.end(world, daemon, [(target.server, target.client)])
    if options.json:
        output.say_json({"instance": target.instance, **ended.as_json()})
    else:
        output.say(f"{words.client(target.client)}: {'; '.join(ended.steps) or 'nothing was done'}")
    if ended.problem:
        output.say(
            f"mpsctl clients: {words.client(target.client)} could not be ended: {ended.problem}", stream=sys.stderr
        )
    return 4 if ended.problem else 0


def _asked(target: Connected, json_: bool) -> bool:
    """Whether the person at the terminal says yes.

    :raises BadValue: if there is none to ask.
    """
    if json_ or not sys.stdin.isatty():
        raise BadValue("no terminal to ask at", "a yes before a client is ended", "add --yes")
    age = duration.text(target.age_s)
    who = words.client(target.client)
    output.say(f"{who}, {age} old, of instance {target.instance}, loses its work on the GPU.")
    return input("End it? [y/N] ").strip().lower() in ("y", "yes")
