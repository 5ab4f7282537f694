"""`mpsctl control` and the holders of a session, on NVIDIA's own control daemons."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpsctl.adapters import unix_peers
from mpsctl.model.peers import Peers
from real_daemon import RealDaemonHost, Running, held_session

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="commands to a daemon are root's alone")
PROCESS = Path(__file__).with_name("mpsctl_process.py")
SILENT = """
import socket, sys
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.connect(sys.argv[1])
one.recv(100)
print("greeted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def served(host: RealDaemonHost) -> Running:
    host.desired(DeviceMemoryLimit="900M", ActiveThreadPercentage=50)
    return host.bring_up()


def control(
    host: RealDaemonHost, daemon: Running, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROCESS, host.places.root, daemon.binary, str(daemon.pid), "control", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def test_one_command_several_lines_and_one_by_hand(host: RealDaemonHost, served: Running) -> None:
    done = control(host, served, "0", "get_default_active_thread_percentage")
    assert (done.returncode, done.stdout) == (0, "50.0\n"), done.stderr
    done = control(host, served, "0", stdin="get_server_list\nget_default_device_pinned_mem_limit 0\n")
    assert (done.returncode, done.stdout) == (0, "900M\n"), done.stderr
    done = control(host, served, "0", "set_default_active_thread_percentage", "40")
    assert (done.returncode, "next reload" in done.stderr) == (0, True)
    assert served.front_end().ask(["get_default_active_thread_percentage"]) == [["40.0"]]


def test_a_quit_is_refused_and_forced_it_ends_the_daemon(host: RealDaemonHost, served: Running) -> None:
    assert control(host, served, "0", "quit").returncode == 2
    assert served.process.poll() is None
    assert control(host, served, "--force", "0", "quit").returncode == 0
    served.process.wait(timeout=30)


def test_a_silent_connection_holds_the_daemon_and_is_named(host: RealDaemonHost, served: Running) -> None:
    assert unix_peers.of_directory(served.pipe_directory) == Peers()
    command = [sys.executable, "-c", SILENT, str(served.pipe_directory / "control")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        assert silent.stdout.readline() == "greeted\n"
        assert unix_peers.of_directory(served.pipe_directory) == Peers(holds=(silent.pid,))
        done = control(host, served, "--json", "--timeout-s", "2", "0", "get_server_list")
        assert done.returncode == 3
        assert silent.pid in [one["pid"] for one in json.loads(done.stdout)["held_by"]]
        silent.kill()
    assert control(host, served, "0", "get_server_list").returncode == 0


def test_a_prompt_is_the_one_that_holds(served: Running) -> None:
    with held_session(served) as holder:
        assert unix_peers.of_directory(served.pipe_directory) == Peers(holds=(holder,))
    assert unix_peers.of_directory(served.pipe_directory) == Peers()


def test_one_that_was_not_accepted_waits(served: Running) -> None:
    """A stopped daemon accepts nobody; this test's own process is not one of the daemon's."""
    os.kill(served.pid, signal.SIGSTOP)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(str(served.pipe_directory / "control"))
            assert unix_peers.of_directory(served.pipe_directory) == Peers(waits=(os.getpid(),))
    finally:
        os.kill(served.pid, signal.SIGCONT)
