"""Who is connected to a listening unix socket: asked of the kernel, never guessed from a program's name.

The kernel's socket diagnostics (sock_diag(7), NETLINK_SOCK_DIAG with unix_diag) list every unix socket of our network
namespace: the file that it is bound to as device and inode, the socket at its other end, and of a listener whose
connections nobody has accepted yet. /proc/PID/fd tells which process has which socket. So a socket is found by its
file, whatever path leads there and in whichever mount namespace its clients are.

What the kernel does (Linux 4.18 to 6.18):

* An accepted socket is bound to its listener's file. One whose other end is closed has 0 for its peer.
* An accepted socket belongs to the network namespace of the process that connected, so those of containers are not in
  our list. They are found among the open files of whoever has the listener: root copies such a socket for a moment
  (pidfd_getfd(2)) and asks it who connected.
* A connection that waits in the backlog is told by the number of its client's socket, from whichever namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.model.peers import Peers

_SOCK_DIAG, _BY_FAMILY, _ERROR, _DONE = 4, 20, 2, 3
_REQUEST, _DUMP = 1, 0x300
_SHOW_FILE, _SHOW_PEER, _SHOW_WAITING = 2, 4, 8
_OF_FILE, _OF_PEER, _OF_WAITING = 1, 2, 3
"""linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h"""
_EVERY_STATE, _ESTABLISHED, _LISTEN = 0xFFFFFFFF, 1, 10
_HEADER, _MESSAGE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBIII"), struct.Struct("=HH")
_DUMP_S, _SCAN_S = 2.0, 3.0
"""How long the kernel's list may take, and how long processes are looked through for the sockets in it: every user can
have a million open files."""
_MOST_BYTES = 64 << 20
"""Of the kernel's list: some 60 bytes a socket."""
_PIDFD_GETFD = 438
"""pidfd_getfd(2), from Linux 5.6 on; the number is the same on every architecture that NVIDIA has a driver for."""
_CONTROL_SOCKETS = ("control", "control_privileged")


_File = tuple[int, int]
"""Device and inode, of which the kernel tells the lower 32 bits."""


class Refused(Exception):
    """The kernel does not list its sockets; the text says why."""


@dataclass(frozen=True)
class _Socket:
    """A row of the kernel's list; ``file`` is device and inode, ``peer`` 0 where the other end is closed."""

    inode: int
    state: int
    file: Optional[_File]
    peer: int = 0
    waiting: tuple[int, ...] = ()


class _CannotCopy(Exception):
    """The kernel, or our rights, do not allow a copy of another process's open file."""


def of_directory(pipe_directory: Path) -> Peers:
    """Who is connected to a control daemon by the sockets of its pipe directory. Its own servers do not count.

    Root is told all. Others are told of processes of their own, and how many connections there are beside.
    """
    return of_sockets([pipe_directory / name for name in _CONTROL_SOCKETS])


def of_sockets(paths: Sequence[Path]) -> Peers:
    """Who is connected to the sockets at these paths, each counted once; children of whoever listens do not count."""
    files = set()
    for path in paths:
        try:
            about = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return Peers(untold=f"{path} may not be looked at ({error.strerror})")
        files.add((about.st_dev, about.st_ino & 0xFFFFFFFF))
    if not files:
        return Peers()
    try:
        listed = _listed()
    except Refused as error:
        return Peers(untold=str(error))
    return _peers(listed, files)


def _peers(listed: Sequence[_Socket], files: set[_File]) -> Peers:
    mine = [one for one in listed if one.file in files]
    listeners = {one.inode for one in mine if one.state == _LISTEN}
    if not listeners:
        return Peers(untold=_why_nobody_listens(listed, files))
    accepted = [one.peer for one in mine if one.state == _ESTABLISHED and one.peer]
    waiting = [inode for one in mine for inode in one.waiting if inode]
    owners = _owners(listeners.union(accepted, waiting))
    listening = {pid for inode in listeners for pid in owners.get(inode, ())}
    holds = {pid for inode in accepted for pid in owners.get(inode, ())}
    waits = {pid for inode in waiting for pid in owners.get(inode, ())}
    unnamed = sum(inode not in owners for inode in accepted)
    untold = "" if listening else "whose the listening socket is cannot be seen: ask as root"
    known = {one.inode for one in listed}
    try:
        for peer in (peer for pid in listening for peer in _from_other_namespaces(pid, known, files)):
            if peer and procfs.alive(peer):
                holds.add(peer)
            else:
                unnamed += 1
    except _CannotCopy:
        untold = "connections from other network namespaces cannot be looked at here"
    # Process 1 listens for others, and every process may be its child.
    ours = listening.union(pid for pid in holds | waits if procfs.parent(pid) in listening - {1})
    return Peers(tuple(sorted(holds - ours)), tuple(sorted(waits - ours - holds)), unnamed, untold)


def _why_nobody_listens(listed: Sequence[_Socket], files: set[_File]) -> str:
    """Empty where it is certain. Some file systems (btrfs) show another device in stat(2) than the kernel has."""
    inodes = {inode for _, inode in files}
    if any(one.state == _LISTEN and one.file is not None and one.file[1] in inodes for one in listed):
        return "on this file system a socket cannot be told by its file"
    return ""


# -- the kernel's list


def _listed() -> list[_Socket]:
    """Every unix socket of our network namespace.

    :raises Refused: if the kernel does not tell.
    """
    # unix_diag_req: family, protocol, padding, states, inode, what is wanted, cookie
    wanted = struct.pack(
        "=BBHIIIII",
        socket.AF_UNIX,
        0,
        0,
        _EVERY_STATE,
        0,
        _SHOW_FILE | _SHOW_PEER | _SHOW_WAITING,
        0xFFFFFFFF,
        0xFFFFFFFF,
    )
    request = _HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + wanted
    try:
        with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)) as asked:
            asked.settimeout(_DUMP_S)
            asked.send(request)
            return list(_answer(asked))
    except socket.timeout:
        raise Refused(f"the kernel did not list its unix sockets within {_DUMP_S:g} s") from None
    except OSError as error:
        raise Refused(f"the kernel does not list its unix sockets ({error.strerror})") from None


def _answer(asked: socket.socket) -> Iterator[_Socket]:
    end_s, total = time.monotonic() + _DUMP_S, 0
    while True:
        data = asked.recv(1 << 17)
        total += len(data)
        if time.monotonic() > end_s or total > _MOST_BYTES:
            raise Refused("the kernel has too many unix sockets to list")
        while len(data) >= _HEADER.size:
            length, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            body = data[_HEADER.size : length]
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                raise OSError(-code, os.strerror(-code))
            if kind == _BY_FAMILY:
                yield _row(body)
            if length < _HEADER.size:
                raise Refused("the kernel's list of unix sockets cannot be read")
            data = data[(length + 3) & ~3 :]


def _row(body: bytes) -> _Socket:
    _, _, state, _, inode, _, _ = _MESSAGE.unpack_from(body)
    attributes = dict(_attributes(body[_MESSAGE.size :]))
    file, peer = attributes.get(_OF_FILE), attributes.get(_OF_PEER)
    waiting = attributes.get(_OF_WAITING, b"")
    return _Socket(
        inode,
        state,
        _file(file) if file else None,
        struct.unpack_from("=I", peer)[0] if peer else 0,
        struct.unpack(f"={len(waiting) // 4}I", waiting[: len(waiting) // 4 * 4]),
    )


def _file(value: bytes) -> _File:
    """Device and inode as stat(2) has them; the kernel packs a device as 12 bits and 20."""
    inode, device = struct.unpack_from("=II", value)
    return os.makedev(device >> 20, device & 0xFFFFF), inode


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


# -- whose sockets they are


def _owners(wanted: set[int]) -> dict[int, set[int]]:
    """The processes that have these sockets open, by socket, as far as they may be read and within the bound.

    Root's come first: another user's many open files keep nobody from finding the daemon.
    """
    found: dict[int, set[int]] = {}
    end_s = time.monotonic() + _SCAN_S
    for pid in sorted(procfs.pids(), key=lambda pid: procfs.uid(pid) != 0):
        for _, inode in procfs.open_sockets(pid):
            if inode in wanted:
                found.setdefault(inode, set()).add(pid)
            if time.monotonic() > end_s:
                return found
    return found


def _from_other_namespaces(pid: int, known: set[int], files: set[_File]) -> Iterator[int]:
    """Who is connected to the listening process ``pid`` by sockets that are not ``known``; 0 where that is not told.

    :raises _CannotCopy: if they cannot be looked at.
    """
    for descriptor, inode in procfs.open_sockets(pid):
        if inode in known:
            continue
        copy = _copy(pid, descriptor)
        if copy is None:
            continue
        with closing(copy) as one, suppress(OSError):
            if one.family == socket.AF_UNIX and _is_bound_to(pid, one, files) and not _is_closed(one):
                yield _who_connected(one)


def _copy(pid: int, descriptor: int) -> Optional[socket.socket]:
    """A copy of an open socket of another process, None once that is closed. Held for a moment, it changes nothing for
    either side.

    :raises _CannotCopy: if that is not allowed, or the kernel has no such call.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError:
        raise _CannotCopy from None
    try:
        made = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        problem = ctypes.get_errno()
    finally:
        os.close(process)
    if made >= 0:
        return socket.socket(fileno=made)
    if problem in (errno.EBADF, errno.ESRCH):
        return None
    raise _CannotCopy


def _is_bound_to(pid: int, one: socket.socket, files: set[_File]) -> bool:
    """Whether an accepted socket is a listener's of these files: it has the listener's own name."""
    name = one.getsockname()
    if not isinstance(name, str) or not name:
        return False
    about = (procfs.root(pid) / name.lstrip("/")).stat()
    return (about.st_dev, about.st_ino & 0xFFFFFFFF) in files


def _is_closed(one: socket.socket) -> bool:
    """Whether the other end is closed."""
    poll = select.poll()
    poll.register(one, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _who_connected(one: socket.socket) -> int:
    return int(struct.unpack("=iII", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
