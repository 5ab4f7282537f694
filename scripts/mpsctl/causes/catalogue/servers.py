"""What is wrong with servers, and what becomes of their clients."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "left-over-server": Cause(
        "an MPS server lives on whose control daemon is gone. It holds the GPU, no new client can join it, and in"
        " exclusive mode no other server gets the GPU",
        "wait until its clients have ended, end that one server by its process id, then restart the instance"
        " (`systemctl restart mps-control@INSTANCE`)",
    ),
    "server-crash-loop": Cause(
        "the daemon starts servers that end at once, again and again; every client gets 805 or 30",
        "read the server's own lines above its end and the kernel's log; a directory that its user may not enter and"
        " a GPU before Volta are the known causes",
    ),
    "server-failed": Cause(
        "a server ended with a failure before it had a client, which then gets 805 or 30; the daemon starts another one"
        " for the next client",
        "read the server's own lines above its end and the kernel's log; then start the client again",
    ),
    "server-gone": Cause(
        "the server ended under its clients (it crashed, or was killed, or its daemon was): each of them gets 806 and"
        " must be started again. The daemon starts another server for the next client",
        "start the clients again; never kill a server or a daemon that has clients: `systemctl stop` drains first",
    ),
    "daemon-went-away": Cause(
        "the daemon was restarting while the client connected; in that moment clients see 1, 805, 806 or 999, or run"
        " without MPS",
        "start the client again, under a supervisor that does so; `mpsctl status` shows the restarts",
    ),
    "server-stopped": Cause(
        "the server is stopped (SIGSTOP, a debugger): its clients hang",
        "let it go on (SIGCONT), and find who stopped it",
    ),
    "server-not-ready": Cause(
        "the server is starting, or recovers from a fault and waits for the old clients to end, or ends a client",
        "try again in a second; clients of before the fault must end first",
    ),
    "client-fault": Cause(
        "one client's fatal fault (an illegal address, for one) is every client's on that server: all see the same"
        " error. The server's log names one of them, which often is a bystander (driver 580, H200)",
        "start them all again; find the culprit with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1, outside MPS",
    ),
    "stuck-at-worker-thread": Cause(
        "the client connected, and its worker thread was the last that the server said: told of drivers before 495"
        " with a memory limit, and of clients of another user",
        "update the driver, or set no memory limit; see whether another user's clients are there",
    ),
}
