"""Connections by the thousand before one front door; it runs on the host.

It prints "there", with how many connections it holds, once they are all there, and ends with its standard input.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import suppress


def main() -> int:
    """Connections of user ``uid`` that say nothing: ``count`` of them, or, with a last word ``fill``, no more than the
    socket's backlog takes."""
    path, uid, count = f"{sys.argv[1]}/control", int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    held = []
    with suppress(BlockingIOError):
        for _ in range(count):
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            held[-1].setblocking(sys.argv[4:] != ["fill"])
            held[-1].connect(path)
    print(f"there {len(held)}", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
