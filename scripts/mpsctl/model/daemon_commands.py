"""Commands for NVIDIA's control daemon that a person gives: what is passed on, what is refused, what is warned of.

The daemon takes one command a line, its words between blanks, and knows a command by its whole first word as it is
written: `QUIT`, `qui` and `quit;` are unknown to it (control daemon 550).
"""

from __future__ import annotations

from typing import Optional, Sequence

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import pasted, shown

MOST_COMMANDS, MOST_CHARACTERS = 100, 1000
MOST_BYTES = MOST_COMMANDS * (MOST_CHARACTERS + 1)
QUIT = "quit"
_BY_HAND = "set_"


def parse(lines: Sequence[str]) -> list[str]:
    """The commands of some lines, their words one blank apart; lines without a word are left out.

    :raises BadValue: for a line with anything but printable ASCII, one that is too long, too many, or none at all.
    """
    commands = []
    for command in (line.strip(" ") for line in lines):
        if not (command.isascii() and command.isprintable()):
            found = f"a command with other characters than printable ASCII ({shown(command)!r})"
            raise BadValue(found, "one command, its words between blanks", "write each command on a line of its own")
        if len(command) > MOST_CHARACTERS:
            found = f"a command of {len(command)} characters"
            raise BadValue(found, f"at most {MOST_CHARACTERS}", "see NVIDIA's documentation for the commands")
        commands += [" ".join(command.split())] if command else []
    if not commands:
        raise BadValue("no command", "a command of NVIDIA's control daemon", "try get_server_list")
    if len(commands) > MOST_COMMANDS:
        raise BadValue(f"{len(commands)} commands", f"at most {MOST_COMMANDS}", "send them in several calls")
    return commands


def name(command: str) -> str:
    """The command's own word."""
    return command.partition(" ")[0]


def instead(command: str, instance: str) -> Optional[str]:
    """What to use instead of a command that ends clients or the daemon; None for every other command."""
    one = pasted(instance)
    return {
        QUIT: f"`mpsctl drain {one}`, then `systemctl stop mps-control@{one}`: systemd starts one that quits anew",
        "terminate_client": "`mpsctl clients --terminate PID`, which makes sure that it ends that process alone",
        "shutdown_server": f"`mpsctl drain {one} --terminate`, which waits for the server's clients first",
    }.get(name(command))


def is_by_hand(command: str) -> bool:
    """Whether a command sets a limit, a percentage or a priority, which an instance's file is for."""
    return command.startswith(_BY_HAND)


def check(commands: Sequence[str], instance: str, force: bool) -> None:
    """:raises BadValue: for a command that ends clients or the daemon without ``force``, and for `quit` with others."""
    for command in commands:
        better = instead(command, instance)
        if better and not force:
            raise BadValue(
                f"{command!r}, which ends clients", "a command that ends nobody", f"use {better}; or --force"
            )
    if len(commands) > 1 and any(name(command) == QUIT for command in commands):
        raise BadValue("quit among other commands", "quit alone", "send it in a call of its own")
