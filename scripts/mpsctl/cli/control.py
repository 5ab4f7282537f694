"""The verb control: NVIDIA's own commands, for root, with a deadline and the names of those who are in the way."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
import time
from typing import Any, Sequence, TextIO

from mpsctl.adapters import procfs
from mpsctl.adapters.control_daemon import NotServed
from mpsctl.cli import checked, output
from mpsctl.lifecycle import acts
from mpsctl.model import daemon_commands, daemon_environment
from mpsctl.model.checked_values import check_timeout_s
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.observe import plain
from mpsctl.observe.asked import unit_of
from mpsctl.observe.instance import no_answer
from mpsctl.store import configuration
from mpsctl.store.world import World

_POLL_S = 0.05


def control(world: World, options: argparse.Namespace) -> int:
    """Send commands to the daemon of an instance and print what it printed; the exit code.

    What the daemon makes of a command is in its words alone: it reports no success (control daemons 535, 550, 555).
    A session that broke off is tried again, so a command may reach the daemon twice.

    :raises BadValue: for what is no command, or one that ends clients without --force.
    :raises NotReady: if this is not root, nothing runs, or the daemon did not answer in time.
    """
    if os.geteuid() != 0:
        raise NotReady("commands to a control daemon are root's alone; run it as root")
    timeout_s = checked.option("--timeout-s", check_timeout_s, options.timeout_s)
    commands = daemon_commands.parse(_given(options.command, timeout_s))
    configuration.require(world, [options.instance])
    daemon_commands.check(commands, options.instance, options.force)
    by_hand = [command for command in commands if daemon_commands.is_by_hand(command)]
    try:
        answers = _ask(world, options.instance, commands, timeout_s)
    except NotServed as error:
        return _not_served(options, error)
    for command in commands:
        if not command.startswith("get_"):
            acts.tell(world, acts.CONTROL, f"`{command}` sent to the daemon", options.instance)
    warning = "" if not by_hand else _warning(options.instance, by_hand)
    if warning:
        output.say(f"mpsctl control: {warning}", stream=sys.stderr)
    if options.json:
        output.say_json(_as_json(options.instance, commands, answers, warning))
        return 0
    for line in (line for lines in answers for line in lines):
        output.say(line)
    return 0


def _given(words: Sequence[str], timeout_s: int) -> list[str]:
    """The lines with commands: one in the arguments, or those of standard input.

    :raises BadValue: where there is neither, or an option stands among the words of the command.
    """
    if words and words[0].startswith("-"):
        raise BadValue(f"{words[0]!r} behind the instance", "a command", "write options before the instance")
    if words:
        return [" ".join(words)]
    if sys.stdin is None or sys.stdin.isatty():
        raise BadValue("no command", "one behind the instance, or lines on standard input", "try get_server_list")
    return _read(sys.stdin, timeout_s).split("\n")


def _read(stream: TextIO, timeout_s: int) -> str:
    """:raises BadValue: if there is too much, or it does not end within ``timeout_s``."""
    most = daemon_commands.MOST_BYTES
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, OSError):
        text = stream.read(most + 1)
    else:
        text = _bytes_until(descriptor, time.monotonic() + timeout_s, most).decode(errors="replace")
    if len(text) > most:
        raise BadValue(f"more than {most} bytes on standard input", "a few commands", "send them in several calls")
    return text


def _bytes_until(descriptor: int, end_s: float, most: int) -> bytes:
    data = b""
    while len(data) <= most:
        if not select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))[0]:
            raise BadValue("a standard input that does not end", "lines with commands", "close it behind the last one")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data


def _ask(world: World, instance: str, commands: Sequence[str], timeout_s: int) -> list[list[str]]:
    """What the daemon printed, by command; nothing after a `quit` that ended it."""
    unit = unit_of(instance)
    pid = int(world.systemd.show([unit]).get(unit, {}).get("MainPID", "0") or 0)
    if not pid:
        raise NotReady(f"{unit} has no main process: nobody takes commands; start it with `systemctl start {unit}`")
    running = daemon_environment.of_process(procfs.environment(pid))
    if running is None:
        raise NotReady(f"pid {pid}, the main process of {unit}, is no control daemon, or has just ended; try again")
    daemon = world.hurried(world.now_s() + timeout_s, pid).daemon_of(instance, running.pipe_directory)
    try:
        return daemon.ask(commands, timeout_s)
    except NotReady:
        # The answer to the getter behind a quit never comes: whether the process ends is what counts.
        if daemon_commands.name(commands[0]) == daemon_commands.QUIT and _ends(world, pid, timeout_s):
            return [[]]
        raise


def _ends(world: World, pid: int, timeout_s: int) -> bool:
    """Whether a daemon that was asked to quit ends within the time."""
    end_s = world.now_s() + timeout_s
    while procfs.alive(pid) and world.now_s() < end_s:
        world.sleep_s(_POLL_S)
    return not procfs.alive(pid)


def _warning(instance: str, by_hand: Sequence[str]) -> str:
    return (
        f"warning: `{'`, `'.join(by_hand[:3])}`{' …' if len(by_hand) > 3 else ''} changes what the file of instance"
        f" {instance} says: the next reload or start sets that again; to keep it, change the role's variable"
    )


def _not_served(options: argparse.Namespace, error: NotServed) -> int:
    """Nobody answered: who holds the session stands in the error, and in JSON as fields."""
    if options.json:
        answer = no_answer(error)
        told = {"held_by": answer.held_by, "unnamed": answer.unnamed, "holders_untold": answer.holders_untold}
        output.say_json({"error": str(error), "exit_code": error.exit_code, **plain.of(told)})
    output.say(f"mpsctl control: {error}", stream=sys.stderr)
    return error.exit_code


def _as_json(instance: str, commands: Sequence[str], answers: Sequence[Sequence[str]], warning: str) -> dict[str, Any]:
    asked = [{"command": command, "answer": list(lines)} for command, lines in zip(commands, answers)]
    return {"instance": instance, "commands": asked, "warning": warning or None}
