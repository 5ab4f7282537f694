"""On a lab host: `mpsctl top` on a terminal of 80 columns, and what was seen there, as one line of JSON.

Given are a shell command that is run once looks stand on the screen, a pattern that is then awaited on it, and how top
is ended: q, or the name of a signal.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Callable

LONG_S = 60.0


class Terminal:
    """What was written on it so far stands in ``seen``."""

    def __init__(self, *command: str) -> None:
        self.seen = ""
        self.pid, self._other = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def read(self, until: Callable[[str], object]) -> bool:
        """Read on until what is new is enough, or nobody writes any more; whether it is."""
        begin, end_s = len(self.seen), time.monotonic() + LONG_S
        while not until(self.seen[begin:]) and time.monotonic() < end_s:
            if select.select([self._other], [], [], 1)[0]:
                try:
                    self.seen += os.read(self._other, 65536).decode(errors="replace")
                except OSError:
                    break
        return bool(until(self.seen[begin:]))

    def lookers(self) -> list[int]:
        """The processes that it began and that live on."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=True
        )
        return sorted(map(int, listed.stdout.split()))

    def end(self, how: str) -> int:
        """The exit code, once it has ended by a key or a signal."""
        if how == "q":
            os.write(self._other, b"q")
        else:
            os.kill(self.pid, getattr(signal, how))
        self.read(never)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def never(_: str) -> bool:
    return False


def looks(text: str) -> int:
    return text.count("\x1b[J") - text.count("\x1b[H\x1b[J")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def main(command: str, awaited: str, how: str) -> None:
    terminal = Terminal("/usr/local/bin/mpsctl", "top", "--interval", "0.5")
    began = terminal.read(lambda new: "INSTANCE" in new and looks(new) > 2)
    lookers = [terminal.lookers()]
    subprocess.run(command, shell=True, check=True)
    found = terminal.read(lambda new: re.search(awaited, plain(new)))
    lookers.append(terminal.lookers())
    code = terminal.end(how)
    screens = re.findall(r"\x1b\[\?1049[hl]", terminal.seen)
    lines = [line for look in terminal.seen.split("\x1b[H")[1:] for line in plain(look).splitlines()]
    told = {
        "began": began,
        "found": found,
        "code": code,
        "restored": screens[-1:] == ["\x1b[?1049l"],
        "longest": max(map(len, lines)),
        "lookers": lookers,
        "last": plain(terminal.seen[terminal.seen.rfind("\x1b[H") :]),
    }
    print(json.dumps(told))


main(*sys.argv[1:])
