"""The service of the front door: what systemd hands over, and one whole life of it before a real client."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest

from door import parsed
from fakes import Host
from mpsctl.adapters import files
from mpsctl.front_door import activation
from mpsctl.model.errors import NotReady
from mpsctl.model.places import Places
from mpsctl.store import admission
from mpsctl.store.admission import CLOSED, Admission
from shell import Shell

BOUND_S = 30


@contextmanager
def listening(path: Path, kind: int = socket.SOCK_SEQPACKET) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as made:
        made.bind(str(path))
        made.listen()
        yield made


def handed(given: socket.socket) -> int:
    """A descriptor as systemd hands one over: inherited, and nobody else's."""
    descriptor = os.dup(given.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def variables(**changes: str) -> dict[str, str]:
    told = {"LISTEN_PID": "77", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "front-door", **changes}
    return {"PATH": "/bin", **{name: value for name, value in told.items() if value}}


def test_the_socket_of_the_unit_is_taken_and_no_child_inherits_it(root: Path) -> None:
    with listening(root / "s") as made:
        descriptor, environment = handed(made), variables()
        with activation.listener("0", environment, 77, descriptor) as given:
            assert given.fileno() == descriptor
            assert given.getsockname() == str(root / "s")
            assert not os.get_inheritable(descriptor)
        assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "changes",
    [
        {"LISTEN_PID": ""},
        {"LISTEN_PID": "78"},
        {"LISTEN_PID": "no number"},
        {"LISTEN_FDS": ""},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "0"},
        {"LISTEN_FDNAMES": ""},
        {"LISTEN_FDNAMES": "another"},
    ],
)
def test_without_the_units_socket_it_ends_with_one_line(root: Path, changes: dict[str, str]) -> None:
    with listening(root / "s") as made:
        descriptor = handed(made)
        with pytest.raises(NotReady) as error:
            activation.listener("0", variables(**changes), 77, descriptor)
        os.close(descriptor)
    assert "\n" not in str(error.value)


def test_a_socket_of_another_kind_is_refused(root: Path) -> None:
    with listening(root / "s", socket.SOCK_STREAM) as made:
        descriptor = handed(made)
        with pytest.raises(NotReady):
            activation.listener("0", variables(), 77, descriptor)
        os.close(descriptor)


def test_a_socket_that_does_not_listen_is_refused() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        descriptor = handed(made)
        with pytest.raises(NotReady):
            activation.listener("0", variables(), 77, descriptor)
        os.close(descriptor)


def test_by_hand_the_command_ends_with_one_line(mpsctl: Shell, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        monkeypatch.delenv(name, raising=False)
    assert mpsctl("front-door", "0") == NotReady.exit_code
    assert mpsctl.err.count("\n") == 1
    assert "mps-front-door@0.socket" in mpsctl.err


SERVICE = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from mpsctl.cli import front_door
from mpsctl.front_door import service
from mpsctl.model.places import Places
from mpsctl.store.world import World
from pathlib import Path
known = set(sys.modules)
service.run(World(places=Places(Path(sys.argv[1]))), "0")
print(sorted(name for name in set(sys.modules) - known if name.startswith("mpsctl")))
"""


@contextmanager
def serving(root: Path, listener: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """The service of instance 0, with the listener as its descriptor 3."""
    command = [sys.executable, "-c", 'exec 3<&"$0"; exec "$@"']
    shell = ["/bin/bash", "-c", command[2], str(listener.fileno()), sys.executable, "-c", SERVICE, str(root)]
    process = subprocess.Popen(
        shell,
        pass_fds=[listener.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "front-door",
            "PYTHONPATH": str(Path(__file__).parents[3] / "scripts"),
        },
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def says(client: socket.socket, data: bytes) -> None:
    """As libcuda does: with its credentials."""
    who = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
    client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])


def test_a_client_of_a_closed_instance_is_greeted_refused_and_told_and_the_service_ends_when_asked(root: Path) -> None:
    places = Places(root)
    admission.write(places, "0", Admission(CLOSED, "the unit was stopped"))
    pause = places.runtime("0") / "front-door.pause"
    pause.write_text("16\n")
    journal = root / "run/systemd/journal/socket"
    journal.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log, listening(root / "s") as listener:
        log.bind(str(journal))
        log.settimeout(BOUND_S)
        with serving(root, listener) as service, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(BOUND_S)
            client.connect(str(root / "s"))
            assert client.recv(64) == b"OUTBHELL\0"
            says(client, b"OUTBCRED\0")
            says(client, b"\2\0\0\0")
            assert client.recv(64) == b""
            entry = parsed(log.recv(1 << 16))
            service.send_signal(signal.SIGTERM)
            out, err = service.communicate(timeout=BOUND_S)
    assert (entry["MPS_EVENT"], entry["MPS_REASON"]) == ("refused", "stopped")
    assert entry["MPS_CLIENT_PID"] == str(os.getpid())
    assert (service.returncode, err) == (0, "")
    assert out == "[]\n", "the program may be replaced while the service runs: nothing is imported late"
    assert (places.runtime("0") / "front-door.json").is_file()
    assert not pause.exists(), "one that serves ends the pauses of those before it"


def test_the_service_makes_room_for_another_program_when_nobody_is_connected(root: Path) -> None:
    program = Places(root).program
    files.write(program, "as it was started", lasting=False)
    with listening(root / "s") as made, serving(root, made) as process:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(60)
        client.connect(str(root / "s"))
        assert client.recv(99) == b"OUTBHELL\0"
        files.write(program, "another", lasting=False)
        assert process.poll() is None
        client.close()
        assert process.wait(timeout=60) == 0
