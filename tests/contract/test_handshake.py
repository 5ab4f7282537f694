"""What NVIDIA's control daemons 535, 550 and 555 say to who comes to them, and what they do when it goes away again.

Their servers are the lab's stand-in: what only NVIDIA's own does is not told here (the jam after a lost client, driver
580). Every fact was seen on these three daemons, without a GPU; the tests say where they differ.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

import pytest

import raw_handshake as raw
from real_daemon import held_session
from simulated import WAIT_S, Simulation, eventually

NOBODY = 65534
STAGES = ("connect", "greeting", "first", "second", "descriptor", "last", "server")


def is_well(served: Simulation) -> None:
    """A new client comes in, and the daemon answers about its server."""
    client = served.client("--hold", "0")
    assert client.outcome == "client", client.said()
    (server,) = served.servers()
    served.ask(f"get_client_list {server}")


# -- the sockets and the files


@pytest.mark.parametrize("name", ["control", "control_privileged"])
def test_both_sockets_greet_and_are_of_messages(served: Simulation, name: str) -> None:
    """Nine bytes on each, before anything is said; a stream is refused (control daemons 535, 550, 555)."""
    raw.greeted(served.directory / name).close()
    with pytest.raises(OSError, match="Protocol wrong type"):
        raw.connect(served.directory / name, socket.SOCK_STREAM)


def test_the_files_of_a_start(served: Simulation, version: int) -> None:
    """Everyone may write the log, the lock and the pid file, which 535 does not make; only ``control_privileged``
    follows the umask (control daemons 535, 550, 555, started with umask 022)."""
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in served.directory.iterdir()}
    expected = {
        "control": "srw-rw-rw-",
        "control_privileged": "srwxr-xr-x",
        "control_lock": "-rw-rw-rw-",
        "log": "prwxrwxrwx",
        "nvidia-cuda-mps-control.pid": "-rw-rw-rw-",
    }
    if version < 550:
        del expected["nvidia-cuda-mps-control.pid"]
    assert modes == expected


# -- who comes


@pytest.mark.parametrize(
    ("word", "logged"),
    [
        (raw.CLIENT, "NEW CLIENT {} from user 0"),
        (raw.DEBUGGED, "NEW DEBUGGEE {} from user 0"),
        (raw.FRONT_END, "NEW UI"),
    ],
    ids=["a client", "a debugged one", "a front-end"],
)
def test_the_second_message_says_who_comes(served: Simulation, word: bytes, logged: str) -> None:
    """2 a client, 3 one under a debugger, 4 a front-end, told by the daemon's log (control daemons 535, 550, 555)."""
    line = logged.format(os.getpid())
    before = served.log.count(line)
    with raw.greeted(served.directory / "control") as connection:
        raw.introduce(connection, word)
        eventually(lambda: served.log.count(line) > before, line)
    is_well(served)


def test_one_under_a_debugger_gets_no_answer_and_ends_the_server(served: Simulation) -> None:
    """The daemon ends its server for it, which waits for the server's clients, and then closes the connection (control
    daemons 535, 550, 555). So the front door passes none of them on: it would wait for the answer, and others behind
    it."""
    held = served.client()
    assert held.outcome == "client"
    (server,) = served.servers()
    with raw.greeted(served.directory / "control") as connection:
        raw.introduce(connection, raw.DEBUGGED)
        eventually(lambda: "NEW DEBUGGEE" in served.log, "the daemon knows")
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(64)
        held.end()
        connection.settimeout(WAIT_S)
        assert raw.heard(connection) == b""
    eventually(lambda: server not in served.servers(), "the server has ended")
    is_well(served)


@pytest.mark.parametrize("number", [0, 5, 6])
def test_any_other_word_is_of_an_unknown_type(served: Simulation, number: int) -> None:
    """Logged, left open and left alone: it holds up nobody (control daemons 535, 550, 555)."""
    before = served.log.count("Unknown type")
    with raw.greeted(served.directory / "control") as connection:
        raw.introduce(connection, struct.pack("I", number))
        eventually(lambda: served.log.count("Unknown type") > before, "nothing was logged")
        is_well(served)


def test_a_client_gets_a_descriptor_and_the_server_knows_its_process(served: Simulation) -> None:
    """OUTBCUFD with one end of a socket pair, twice for one client; the server has the other end and sees the client's
    own process id there (control daemons 535, 550, 555)."""
    client = served.client()
    assert client.outcome == "client"
    assert client.said()["connections"] == 2
    line = f"NEW CLIENT {client.pid} from user 0"
    eventually(lambda: served.log.count(line) == 2, f"{line}, twice")  # the daemon's log comes later than its answers
    assert served.clients() == [client.pid]
    client.end()
    eventually(lambda: served.clients() == [], "the client has gone")


def test_a_server_says_1_and_is_told_the_defaults(simulation: Simulation, version: int) -> None:
    """After it the daemon sends 8 bytes of percentage (a double), 8 of how many limits come, 8 for each limit, 4 of
    priority (control daemons 535, 550, 555). `get_server_status` says ACTIVE then; 535 has no such command."""
    simulation.start()
    simulation.ask("set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 0 900M")
    server = simulation.ready()
    limits = [f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0"]
    assert simulation.ask(*limits) == [["25.0"], ["900M"]]
    if version >= 550:
        assert simulation.ask(f"get_server_status {server}") == [["ACTIVE"]]


# -- front-ends


@pytest.mark.parametrize("there", [("control", "control_privileged"), ("control",)], ids=["both", "one"])
def test_nvidia_s_front_end_goes_to_the_privileged_socket_first(
    binary: Path, served: Simulation, there: tuple[str, ...]
) -> None:
    """To ``control`` where that is missing. It says OUTBCRED, 4, then 8 bytes of length, the command with a line feed
    and a zero, and a length of 0 at its end (front-ends 535, 550, 555)."""
    directory = served.root / f"listening-{len(there)}"
    directory.mkdir()
    with ExitStack() as stack:
        for name in there:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(directory / name))
            listener.listen()
            listener.settimeout(30)
        asked = subprocess.Popen(
            [binary],
            env={"CUDA_MPS_PIPE_DIRECTORY": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(asked.wait)
        stack.callback(asked.kill)
        assert asked.stdin is not None
        asked.stdin.write(b"get_server_list\n")
        asked.stdin.close()
        session, _ = listener.accept()
        with session:
            session.settimeout(30)
            session.send(raw.GREETING)
            said = [session.recv(64) for _ in range(5)]
    assert said == [raw.CREDENTIALS, raw.FRONT_END, struct.pack("Q", 17), b"get_server_list\n\0", bytes(8)]


def test_root_s_setters_belong_on_the_privileged_socket(served: Simulation, version: int) -> None:
    """550 and 555 refuse them on ``control``, 535 takes them on both (control daemons 535, 550, 555)."""
    setter, getter = "set_default_client_priority 1", "get_default_client_priority"
    control, privileged = (served.directory / name for name in ("control", "control_privileged"))
    raw.front_end(privileged, "set_default_client_priority 0")
    said = raw.front_end(control, setter)
    assert said is not None
    assert ("Insufficient privileges" in said) == (version >= 550)
    assert raw.front_end(control, getter) == ("0" if version >= 550 else "1")
    raw.front_end(privileged, setter)
    assert raw.front_end(privileged, getter) == "1"
    raw.front_end(privileged, "set_default_client_priority 0")


def test_another_user_s_setters_are_taken_by_the_oldest_daemon_alone(served: Simulation, version: int) -> None:
    """Relayed, with that user's credentials, on ``control`` (control daemons 535, 550, 555)."""
    with user_process() as process:
        relayed = (process.pid, NOBODY, NOBODY)
        said = raw.front_end(served.directory / "control", "set_default_client_priority 1", relayed)
    taken = raw.front_end(served.directory / "control_privileged", "get_default_client_priority")
    assert taken == ("1" if version < 550 else "0")
    assert ("Insufficient privileges" in (said or "")) == (version >= 550)
    raw.front_end(served.directory / "control_privileged", "set_default_client_priority 0")


def test_a_silent_prompt_shuts_out_front_ends_and_lets_clients_pass(served: Simulation) -> None:
    """Beside an idle front-end session others get no answer, or now and then the right one (control daemons 535, 550,
    555)."""
    assert served.daemon is not None
    with held_session(served.daemon):
        assert served.client("--hold", "0").outcome == "client"
        eventually(lambda: answer_beside(served) is None, "every front-end was answered")
    is_well(served)
    assert answer_beside(served) == "0"


def answer_beside(served: Simulation) -> Optional[str]:
    """What NVIDIA's front-end prints, or None where it fails or prints nothing."""
    done = subprocess.run(
        [served.binary],
        input="get_default_client_priority\n",
        text=True,
        capture_output=True,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(served.directory)},
        timeout=30,
    )
    said = done.stdout.strip()
    assert done.returncode != 0 or said in ("", "0"), said
    return said if done.returncode == 0 and said else None


# -- credentials through a relay


def user_process() -> subprocess.Popen[bytes]:
    """A process of another user, for as long as the test needs its credentials."""
    return _Ended([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[])


class _Ended(subprocess.Popen[bytes]):
    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()


@pytest.mark.parametrize(
    ("user", "within"),
    [(0, ""), (NOBODY, ""), (0, "--pid --fork --kill-child")],
    ids=["root", "another user", "a pid namespace"],
)
def test_a_relay_s_clients_are_logged_under_their_own_process_and_user(
    simulation: Simulation, user: int, within: str
) -> None:
    """Credentials that root sends on with SCM_CREDENTIALS are believed (control daemons 535, 550, 555). The server sees
    the same process, outside of its namespace."""
    simulation.start()
    public = simulation.root / "public"
    public.mkdir(mode=0o755)
    with raw.relay(public / "control", simulation.directory / "control"):
        client = simulation.client(directory=public, user=user, within=within)
        assert client.outcome == "client"
    (child,) = children(client.pid) if within else (client.pid,)
    line = f"NEW CLIENT {child} from user {user}: "
    eventually(lambda: line in simulation.log, line)
    assert simulation.clients() == [child]
    if within:
        assert client.said()["pid"] == 1


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_kernel_takes_no_credentials_of_a_process_that_has_ended(served: Simulation) -> None:
    """ESRCH, in the relay; closing then, before anything was said, harms nothing (Linux; daemons 535, 550, 555)."""
    with user_process() as process:
        pass
    with (
        raw.greeted(served.directory / "control") as connection,
        pytest.raises(ProcessLookupError),
    ):
        raw.introduce(connection, raw.CLIENT, (process.pid, NOBODY, NOBODY))
    is_well(served)


# -- who goes away, and who says nothing


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_is_killed_harms_nobody_at_any_stage(served: Simulation, stage: str) -> None:
    """With the stand-in server, which forgives a client that it knows nothing of (control daemons 535, 550, 555).
    NVIDIA's server does not: a client lost after its second message jams the daemon (driver 580, H200)."""
    assert served.client("--kill-at", stage).exit_code() == -signal.SIGKILL
    is_well(served)


@pytest.mark.parametrize("messages", [0, 1, 2])
def test_a_relay_that_closes_harms_nobody_at_any_stage(served: Simulation, messages: int) -> None:
    """Closed after the greeting, the first, the second message (control daemons 535, 550, 555, stand-in server)."""
    with raw.greeted(served.directory / "control") as connection:
        for message in (raw.CREDENTIALS, raw.CLIENT)[:messages]:
            raw.say(connection, message)
    is_well(served)


@pytest.mark.parametrize("stage", ["greeting", "first", "descriptor"])
def test_one_that_says_nothing_holds_up_everybody_until_it_goes(served: Simulation, stage: str) -> None:
    """Silent at the start, after the first message, or before the last bytes: the daemon serves one connection at a
    time, clients and front-ends alike (control daemons 535, 550, 555)."""
    silent = served.client("--stop-at", stage)
    assert silent.outcome == "stopped"
    behind = served.client("--timeout", "0.3")
    assert (behind.outcome, behind.said()["stage"]) == ("hang", "connect")
    waiting = served.client("--hold", "0")
    silent.end()
    assert waiting.outcome == "client"
    is_well(served)


def test_who_has_come_in_and_says_nothing_to_its_server_holds_up_nobody(served: Simulation) -> None:
    """After the last bytes the daemon is done with the connection (control daemons 535, 550, 555)."""
    assert served.client("--stop-at", "last").outcome == "stopped"
    is_well(served)
