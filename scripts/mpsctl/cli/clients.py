"""The verb clients: who is connected, what was left over, and the end of one client."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from typing import Any, Optional, Sequence

from mpsctl.cli import output, table
from mpsctl.model import duration
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.observe import leftovers
from mpsctl.observe.leftovers import Connected, Found
from mpsctl.store import configuration
from mpsctl.store.world import World

_COMMAND_WIDTH = 48
_HEAD = ("INSTANCE", "PID", "USER", "AGE", "MEMORY", "LIMIT", "SERVER", "CONTAINER", "STATE", "COMMAND")


def clients(world: World, options: argparse.Namespace) -> int:
    """List the clients, or end one of them; the exit code."""
    for name in options.instances:
        configuration.load(world, name)
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
    return NotReady.exit_code if found.unknown or found.problem else 0


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "instances": {
            name: {"clients": [row.as_json() for row in rows], "unknown": found.unknown.get(name)}
            for name, rows in found.connected.items()
        },
        "left_over": [asdict(one) for one in found.left_over],
        "problem": found.problem,
    }


def _show(found: Found) -> None:
    rows = [_row(one) for every in found.connected.values() for one in every]
    if rows:
        for line in table.lines(_HEAD, rows):
            output.say(line)
    else:
        output.say("no client is connected" if found.connected else "this host has no instance")
    for name, why in found.unknown.items():
        output.say(f"! {name}: cannot tell who is connected: {why}")
    if found.problem:
        output.say(f"! cannot tell what else holds memory: {found.problem}")
    for left in found.left_over:
        held = ", ".join(f"{'not told' if mib is None else f'{mib} MiB'} on {u}" for u, mib in left.memory_mib.items())
        who = f"pid {left.pid} ({left.command or 'command not told'}, user {left.user or 'not told'})"
        whose = f"client of {left.instance}" if left.instance else "no client of an instance"
        output.say(f"left over: {who}, {whose}, holds {held or 'not told'}: {left.why}")


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
            raise NotReady(f"who is connected cannot be told: {'; '.join(found.unknown.values())}; nothing was done")
        raise BadValue(
            f"pid {pid}, which is no client of an instance", "a client", "take one that `mpsctl clients` lists"
        )
    if not options.yes and not _asked(target, options.json):
        output.say(f"{target.client} is left alone", stream=sys.stderr)
        return 1
    instance = configuration.load(world, target.instance)
    main_pid = int(world.systemd.show([instance.unit])[instance.unit].get("MainPID") or 0)
    daemon = terminate.running_daemon(world, instance, main_pid)
    (ended,) = terminate.end(world, daemon, [(target.server, target.client)])
    if options.json:
        output.say_json({"instance": target.instance, **ended.as_json()})
    else:
        output.say(f"{target.client}: {'; '.join(ended.steps) or 'nothing was done'}")
    if ended.problem:
        output.say(f"mpsctl clients: {target.client} could not be ended: {ended.problem}", stream=sys.stderr)
    return 4 if ended.problem else 0


def _asked(target: Connected, json_: bool) -> bool:
    """Whether the person at the terminal says yes.

    :raises BadValue: if there is none to ask.
    """
    if json_ or not sys.stdin.isatty():
        raise BadValue("no terminal to ask at", "a yes before a client is ended", "add --yes")
    age = duration.text(target.age_s)
    output.say(f"{target.client}, {age} old, of instance {target.instance}, loses its work on the GPU.")
    return input("End it? [y/N] ").strip().lower() in ("y", "yes")
