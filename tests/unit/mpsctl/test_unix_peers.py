"""Who is connected to a listening socket: real sockets and real processes, whatever those are called."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Iterator, Optional

import pytest

from mpsctl.adapters import hardware, procfs, unix_peers
from mpsctl.model.peers import Peers

_HEAD = "import os, socket, sys\ndef line(): return sys.stdin.readline().strip()\n"
DAEMON = f"""{_HEAD}
listening = []
for name in ("control", "control_privileged"):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.bind(os.path.join(sys.argv[1], name))
    one.listen(8)
    listening.append(one)
accepted = []
print("up", flush=True)
while True:
    word = line()
    if word == "accept":
        accepted.append(listening[0].accept()[0])
    elif word == "close":
        accepted.pop().close()
    elif word == "server":
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(writer)
            own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own.connect(os.path.join(sys.argv[1], "control"))
            for one in listening: one.close()
            print("done", flush=True)
            os.read(reader, 1)
            os._exit(0)
        continue
    elif not word:
        break
    print("done", flush=True)
"""
CLIENT = f"""{_HEAD}
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if sys.argv[1]:
    one.connect(sys.argv[1])
print("up", flush=True)
line()
"""


class Process:
    """A process that says "up" and then does what it is told, line by line, until its input ends."""

    def __init__(self, command: list[str], executable: Optional[str] = None) -> None:
        self._process = subprocess.Popen(
            command, executable=executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hear("up")

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self.hear("done")

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


Connect = Callable[..., Process]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def daemon(root: Path, stack: ExitStack) -> Process:
    made = Process([sys.executable, "-c", DAEMON, str(root)])
    stack.callback(made.end)
    return made


@pytest.fixture
def connect(root: Path, stack: ExitStack, daemon: Process) -> Connect:
    """Starts a process that connects and says nothing; ``inside`` is a command that starts it somewhere else."""

    def begin(name: str = "control", path: Optional[str] = None, inside: tuple[str, ...] = ()) -> Process:
        target = str(root / name) if path is None else path
        made = Process([*inside, sys.executable, "-c", CLIENT, target])
        stack.callback(made.end)
        return made

    return begin


def unshared(*options: str) -> tuple[str, ...]:
    """The command that starts a process in namespaces of its own, where this host allows it."""
    program = shutil.which("unshare")
    if program is None or subprocess.run([program, *options, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    return (program, *options)


def eventually(root: Path, wanted: Peers) -> Peers:
    """What is told, once it is what is wanted, or after 10 s: the kernel tells of a closed socket a moment later."""
    end = time.monotonic() + 10
    while True:
        found = unix_peers.of_directory(root)
        if found == wanted or time.monotonic() > end:
            return found
        time.sleep(0.02)


@pytest.mark.usefixtures("daemon")
def test_nobody_is_connected(root: Path) -> None:
    assert unix_peers.of_directory(root) == Peers()


def test_a_silent_connection_waits_until_it_is_accepted_and_then_holds(
    root: Path, daemon: Process, connect: Connect
) -> None:
    client = connect()
    assert unix_peers.of_directory(root) == Peers(waits=(client.pid,))
    assert not unix_peers.of_directory(root).held
    daemon.tell("accept")
    assert unix_peers.of_directory(root) == Peers(holds=(client.pid,))
    assert unix_peers.of_directory(root).held


def test_one_holds_and_the_others_wait(root: Path, daemon: Process, connect: Connect) -> None:
    first = connect()
    daemon.tell("accept")
    second, third = connect(), connect(name="control_privileged")
    assert unix_peers.of_directory(root) == Peers((first.pid,), tuple(sorted((second.pid, third.pid))))


def test_whoever_ended_or_was_sent_away_holds_nothing(root: Path, daemon: Process, connect: Connect) -> None:
    killed, sent_away, never_accepted = connect(), connect(), connect()
    daemon.tell("accept")
    daemon.tell("accept")
    daemon.tell("close")
    killed.end()
    never_accepted.end()
    assert eventually(root, Peers()) == Peers()
    assert procfs.alive(sent_away.pid)


def test_a_program_that_is_called_like_the_front_end_and_is_not_connected_holds_nothing(
    root: Path, tmp_path: Path, daemon: Process, stack: ExitStack
) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    copy = tmp_path / hardware.CONTROL_DAEMON
    shutil.copy(os.path.realpath(shell), copy)
    named = Process([hardware.CONTROL_DAEMON, "-c", "echo up; read line; true"], str(copy))
    stack.callback(named.end)
    assert hardware.mps_program(named.pid) == hardware.CONTROL_DAEMON
    assert unix_peers.of_directory(root) == Peers()


def test_a_connection_to_another_socket_is_not_counted(root: Path, connect: Connect, stack: ExitStack) -> None:
    other = root / "other"
    other.mkdir()
    second = Process([sys.executable, "-c", DAEMON, str(other)])
    stack.callback(second.end)
    client = connect(name="other/control")
    second.tell("accept")
    assert unix_peers.of_directory(root) == Peers()
    assert unix_peers.of_directory(other) == Peers(holds=(client.pid,))


def test_whatever_path_led_there(root: Path, daemon: Process, connect: Connect) -> None:
    public = root / "public"
    public.mkdir()
    (public / "control").symlink_to("../control")
    client = connect(path=f"{public}/../public/control")
    daemon.tell("accept")
    assert unix_peers.of_directory(root) == unix_peers.of_directory(public) == Peers(holds=(client.pid,))


def test_the_daemons_own_server_is_no_holder(root: Path, daemon: Process) -> None:
    daemon.tell("server")
    daemon.tell("accept")
    assert unix_peers.of_directory(root) == Peers()


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("options", [("--mount",), ("--net",), ("--mount", "--net", "--uts", "--ipc")])
def test_a_container(root: Path, daemon: Process, connect: Connect, options: tuple[str, ...], accepted: bool) -> None:
    """An accepted socket belongs to the network namespace of the process that connected."""
    client = connect(inside=unshared(*options))
    if accepted:
        daemon.tell("accept")
    expected = Peers(holds=(client.pid,)) if accepted else Peers(waits=(client.pid,))
    assert unix_peers.of_directory(root) == expected
    client.end()
    assert eventually(root, Peers()) == Peers()


def test_where_sockets_cannot_be_copied_a_container_is_not_taken_for_nobody(
    root: Path, daemon: Process, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    connect(inside=unshared("--net"))
    daemon.tell("accept")
    monkeypatch.setattr(os, "pidfd_open", refused)
    found = unix_peers.of_directory(root)
    assert (found.holds, bool(found.untold)) == ((), True)


def test_a_daemon_that_is_gone_has_no_holder(root: Path, daemon: Process, connect: Connect) -> None:
    connect()
    daemon.tell("accept")
    daemon.end()
    assert eventually(root, Peers()) == Peers()


def test_no_directory_has_no_holder(root: Path) -> None:
    assert unix_peers.of_directory(root / "nowhere") == Peers()


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT])
def test_refused_netlink_is_told_and_nobody_is_said_not_to_hold_it(
    root: Path, daemon: Process, connect: Connect, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    connect()
    daemon.tell("accept")

    def refused(*_: object, **__: object) -> socket.socket:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(socket, "socket", refused)
    found = unix_peers.of_directory(root)
    assert (found.holds, found.waits, found.unnamed, bool(found.untold)) == ((), (), 0, True)


def test_a_kernel_without_the_module_is_told(root: Path, daemon: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with an error where the list would be: a family that nobody listed has none."""
    monkeypatch.setattr(socket, "AF_UNIX", 45)
    assert unix_peers.of_directory(root).untold


def test_who_may_not_be_looked_at_is_counted_without_a_name(
    root: Path, daemon: Process, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    daemon.tell("accept")
    readable = procfs.open_sockets
    monkeypatch.setattr(procfs, "open_sockets", lambda pid: iter(()) if pid == client.pid else readable(pid))
    found = unix_peers.of_directory(root)
    assert (found.holds, found.unnamed, found.held, found.untold) == ((), 1, True, "")


def test_another_user_is_told_that_he_cannot_see_the_daemon(
    root: Path, daemon: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "open_sockets", lambda pid: iter(()))
    found = unix_peers.of_directory(root)
    assert (found.held, bool(found.untold)) == (False, True)


def test_the_search_through_processes_has_an_end(
    root: Path, daemon: Process, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with a million open files can hide his name, and never that the session is held."""
    connect()
    daemon.tell("accept")
    monkeypatch.setattr(unix_peers, "_SCAN_S", -1.0)
    found = unix_peers.of_directory(root)
    assert found.held
