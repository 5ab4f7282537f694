"""Given one process, the doctor says what it is to MPS and why it is no client; plain doctor says the same of it."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Optional

import pytest

from consulting import SERVER, ask, find, hold, join, names, outsider, run, their_daemon, variables
from fakes import FakeDaemon, Host, uuid
from mpsctl.adapters import procfs, unix_peers
from mpsctl.lifecycle import apply
from mpsctl.model.errors import BadValue
from mpsctl.model.peers import Peers
from mpsctl.store import drains
from mpsctl.store.admission import WAITING

pytestmark = pytest.mark.usefixtures("running")
DEFAULT = Path("/tmp/nvidia-mps")


def said(host: Host, pid: int) -> str:
    """The line that says what a process is."""
    (line,) = ask(host, pids=[pid]).understood
    return line


# -- processes outside MPS


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({}, "pipe-directory-missing"),
        ({"PATH": "/usr/bin"}, "pipe-directory-missing"),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, "pipe-directory-missing"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/proc"}, "pipe-directory-wrong"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/not/here"}, "pipe-directory-wrong"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC", "CUDA_VISIBLE_DEVICES": uuid(3)}, "visible-devices-renumbered"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC"}, None),
        (None, None),
    ],
)
def test_the_host_and_the_process_have_one_reason(
    host: Host, environment: Optional[dict[str, str]], cause: Optional[str]
) -> None:
    public = f"{host.pipe_root}/0"
    known = environment and {name: value.replace("PUBLIC", public) for name, value in environment.items()}
    pid = outsider(host, environment if known is None else known)
    expected = {"client-outside-mps"} | ({cause} if cause else set())
    assert set(names(host)) == set(names(host, pids=[pid])) == expected
    assert "on a GPU outside MPS" in said(host, pid)
    for one in ask(host).diagnoses:
        assert any(f"pid {pid}" in line for line in one.evidence)


def test_the_remedy_names_the_instance(host: Host) -> None:
    pid = outsider(host, {})
    for question in ({}, {"pids": [pid]}):
        assert "`mpsctl run --instance 0`" in find(host, "pipe-directory-missing", **question).remedy


def test_a_process_that_was_started_before_the_daemon(host: Host) -> None:
    pid = outsider(host, variables(host))
    host.processes[pid].started_at = 1
    assert names(host) == ["client-outside-mps", "started-before-daemon"]
    assert set(names(host, pids=[pid])) == {"client-outside-mps", "started-before-daemon"}


def test_another_directory_of_the_same_name_in_a_container(host: Host) -> None:
    inside = host.places.root / "inside"
    (inside / variables(host)["CUDA_MPS_PIPE_DIRECTORY"].lstrip("/")).mkdir(parents=True)
    pid = outsider(host, variables(host))
    host.processes[pid].container, host.processes[pid].root = "0123456789abcdef", inside
    assert names(host)[0] == names(host, pids=[pid])[0] == "container-without-pipe-directory"


def test_a_container_without_the_mount(host: Host) -> None:
    empty = host.places.root / "other"
    empty.mkdir()
    pid = outsider(host, variables(host))
    host.processes[pid].container, host.processes[pid].root = "0123456789abcdef", empty
    assert names(host, pids=[pid])[0] == "container-without-pipe-directory"


def test_a_bind_mount_on_another_path_is_the_same_directory(host: Host) -> None:
    inside = host.places.root / "inside"
    inside.mkdir()
    (inside / "mps").symlink_to(host.pipe_root / "0")
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": "/mps"})
    host.processes[pid].root = inside
    assert names(host, pids=[pid]) == ["client-outside-mps"]


@pytest.mark.parametrize("state", ["Z", "D"])
def test_a_dead_process_on_a_gpu_is_not_asked_for_its_environment(host: Host, state: str) -> None:
    host.processes[outsider(host, {})].state = state
    assert names(host) == ["zombie-client", "client-outside-mps"]


def test_an_unprivileged_client_before_a_closed_directory(host: Host) -> None:
    host.places.root.chmod(0o700)
    pid = outsider(host, variables(host), uid=65_534)
    found = ask(host).diagnoses
    assert found[0].name == "pipe-directory-closed"
    for who in ("every user", "user 65534"):
        line = f"{host.places.root}, on the way to the pipe directory, may not be entered by {who} (mode 0700"
        assert line in " ".join(found[0].evidence)
    assert found[0].remedy.startswith(f"`chmod o+x {host.places.root}`")
    assert names(host, pids=[pid])[0] == "pipe-directory-closed"
    assert names(host, errors=["805"])[0] == "pipe-directory-closed"


def test_a_client_that_is_not_in_the_group(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "gid", lambda name: 4242)
    host.desired(Group="mps")
    apply.apply(host.world, "0", host.running().pid)
    pid = outsider(host, variables(host), uid=65_534)
    assert names(host, pids=[pid])[0] == "not-in-group"
    host.processes[pid].gids = (4242,)
    assert "not-in-group" not in names(host, pids=[pid])
    assert "not-in-group" not in names(host, pids=[outsider(host, variables(host), uid=0)])


def test_root_is_kept_out_by_no_directory(host: Host) -> None:
    host.places.root.chmod(0o700)
    pid = outsider(host, variables(host), uid=0)
    assert "pipe-directory-closed" not in names(host, pids=[pid])


def test_a_client_that_names_the_host_s_gpu(host: Host) -> None:
    pid = outsider(host, {**variables(host), "CUDA_VISIBLE_DEVICES": "3"})
    assert "visible-devices-renumbered" in names(host, pids=[pid])


def test_a_process_without_cuda_is_told_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "maps", lambda pid, name: False)
    assert names(host, pids=[host.process("python3", "python3 serve.py", variables(host), 1000)]) == ["no-cuda-yet"]


def test_a_process_of_which_nothing_may_be_read_has_no_diagnosis(host: Host) -> None:
    pid = host.process("python3", "python3 serve.py", None, 1000)
    answer = ask(host, pids=[pid])
    assert answer.diagnoses == []
    assert answer.understood[0].endswith("on no GPU; its environment may not be read")


def test_a_process_that_is_not_there_is_refused(host: Host) -> None:
    with pytest.raises(BadValue, match="no process 424242"):
        ask(host, pids=[424242])


# -- clients of an instance


def test_a_client_that_is_one_has_nothing_wrong(host: Host, running: FakeDaemon) -> None:
    pid = join(host, running)
    assert names(host, pids=[pid]) == []
    assert said(host, pid).endswith(": an MPS client of instance 0")


@pytest.mark.parametrize(
    ("patch", "found"),
    [
        (("open_files_limit", lambda pid: 256), "open-files-limit"),
        (("namespace", lambda pid, kind: f"{kind}:[{pid}]"), "pid-namespace"),
    ],
)
def test_what_surrounds_a_process(
    host: Host,
    running: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    patch: tuple[str, Callable[..., object]],
    found: str,
) -> None:
    pid = join(host, running)
    monkeypatch.setattr(procfs, *patch)
    assert names(host, pids=[pid]) == [found]


def test_a_client_that_waits_for_a_disk_or_the_driver(host: Host, running: FakeDaemon) -> None:
    pid = join(host, running)
    host.processes[pid].state = "D"
    assert "zombie-client" in names(host, pids=[pid])


def test_a_client_in_a_pid_namespace_of_its_own_is_told_by_its_pid_outside(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon lists it so (driver 580, H200): it is a client like any other, and told apart."""
    pid = join(host, running)
    monkeypatch.setattr(procfs, "namespace", lambda one, kind: f"{kind}:[{2 if one == pid else 1}]")
    assert said(host, pid).endswith(": an MPS client of instance 0")
    assert names(host) == []


# -- daemons, servers and their clients


def serves_default(host: Host, **environment: str) -> int:
    """Somebody's daemon that was started without a variable, with a server of its own."""
    pid = host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment, 1001)
    server = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 1001)
    host.processes[server].parent = pid
    host.nvml.outside_mib.setdefault(uuid(0), {})[server] = 66
    return pid


@pytest.fixture
def theirs(host: Host, monkeypatch: pytest.MonkeyPatch) -> int:
    """Somebody's daemon on the default directory, all of whose files are there."""
    inside = host.places.root / "theirs"
    (inside / "tmp/nvidia-mps").mkdir(parents=True)
    for name in ("control", "control_privileged", "control_lock", "log"):
        (inside / "tmp/nvidia-mps" / name).touch()
    pid = serves_default(host, CUDA_VISIBLE_DEVICES=uuid(0))
    host.processes[pid].root = inside
    return pid


@pytest.mark.parametrize("environment", [{}, {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps/"}], ids=["unset", "named"])
def test_a_client_of_somebody_s_daemon_on_the_default_directory(
    host: Host, theirs: int, environment: dict[str, str]
) -> None:
    pid = host.process("python3", "python3 train.py", environment, 1000)
    hold(host, pid, 600)
    found = {one.name: one.certainty for one in ask(host, pids=[pid]).diagnoses}
    assert found["client-of-another-daemon"] == "certain"
    assert "client-outside-mps" not in found
    assert f"an MPS client of the control daemon {theirs} (nvidia-cuda-mps-control -d, user 1001)" in said(host, pid)
    assert "which is no instance's" in said(host, pid)


def test_a_process_that_would_become_its_client(host: Host, theirs: int) -> None:
    """It has opened CUDA and no context yet: it waits to be that daemon's client, or is turned away by it."""
    pid = host.process("python3", "python3 train.py", {}, 1000)
    found = find(host, "client-of-another-daemon", pids=[pid])
    assert found.certainty == "likely"
    assert f"pid {pid} looks in /tmp/nvidia-mps, which is served by the control daemon {theirs}" in found.evidence[0]


def test_a_daemon_on_a_directory_of_its_own_has_clients_as_well(host: Host) -> None:
    directory = host.places.root / "job-7"
    daemon = their_daemon(host, directory, CUDA_VISIBLE_DEVICES=uuid(2))
    pid = host.process("python3", "python3 train.py", {"CUDA_MPS_PIPE_DIRECTORY": str(directory)}, 1000)
    hold(host, pid, 600, gpu=2)
    assert "client-of-another-daemon" in names(host, pids=[pid])
    assert f"an MPS client of the control daemon {daemon} " in said(host, pid)


def test_a_client_of_a_daemon_that_is_not_found_is_not_called_outside(host: Host) -> None:
    pid = host.process("python3", "python3 train.py", {"CUDA_MPS_PIPE_DIRECTORY": "/srv/none"}, 1000)
    hold(host, pid, 600)
    assert "client-outside-mps" not in names(host, pids=[pid])
    assert said(host, pid).endswith("an MPS client, and no instance's daemon that answers lists it")


def test_a_server_is_a_server_of_its_daemon(host: Host, running: FakeDaemon, theirs: int) -> None:
    assert names(host, pids=[SERVER]) == []
    assert f"is an MPS server of the control daemon {running.pid}" in said(host, SERVER)
    assert said(host, SERVER).endswith(", which is instance 0's")
    (server,) = [pid for pid, one in host.processes.items() if one.parent == theirs]
    assert names(host, pids=[server]) == ["foreign-daemon"]
    assert said(host, server).endswith(", which is no instance's")
    assert find(host, "foreign-daemon", pids=[server]).certainty == "certain"


def test_a_daemon_is_a_daemon(host: Host, running: FakeDaemon, theirs: int) -> None:
    assert names(host, pids=[running.pid]) == []
    assert said(host, running.pid).endswith(", which is instance 0's")
    assert names(host, pids=[theirs]) == ["foreign-daemon"]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, running: FakeDaemon, host: Host) -> int:
    """A program of another user that is connected to the daemon and has no CUDA; its pid."""
    pid = host.process("socat", "socat - UNIX-CONNECT:control", {}, uid=61234)
    served = next(place for place, daemon in host.daemons.items() if daemon is running)
    peers = {served: Peers(holds=(pid,))}
    monkeypatch.setattr(unix_peers, "of_directory", lambda place: peers.get(place, Peers()))
    monkeypatch.setattr(procfs, "maps", lambda pid, name: False)
    return pid


def test_whoever_is_connected_to_the_daemon_holds_a_session_whatever_it_is_called(host: Host, connected: int) -> None:
    assert names(host, pids=[connected]) == []
    line = said(host, connected)
    assert all(word in line for word in ("socat", "61234", "which is instance 0's"))


def test_one_that_holds_up_the_daemon_is_the_cause(host: Host, running: FakeDaemon, connected: int) -> None:
    running.not_served, running.holders = True, (connected,)
    assert names(host, pids=[connected]) == ["session-held"]
    assert f"kill {connected}" in find(host, "session-held", pids=[connected]).remedy


@pytest.mark.usefixtures("connected")
def test_a_front_end_that_is_not_connected_holds_nothing(host: Host) -> None:
    pid = host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", variables(host))
    assert names(host, pids=[pid]) == ["no-cuda-yet"]


def test_a_cuda_program_that_is_just_coming_is_judged_as_a_client(
    host: Host, connected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "maps", lambda pid, name: name == "libcuda.so")
    assert names(host, pids=[connected]) == ["pipe-directory-missing"]


def test_a_left_over_server_and_its_client(host: Host) -> None:
    left = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {})
    host.nvml.outside_mib[uuid(0)][left] = 66
    pid = host.process("python3", "python3 train.py", variables(host), 1000)
    hold(host, pid, 600)
    (found,) = ask(host, pids=[left]).diagnoses
    assert (found.name, found.certainty) == ("left-over-server", "certain")
    assert said(host, left).endswith("is an MPS server, and its control daemon is gone")
    assert "left-over-server" in names(host, pids=[pid])
    assert "client-outside-mps" not in names(host, pids=[pid])


# -- drained instances


def drain(host: Host, name: str = "0") -> None:
    """As `mpsctl drain` leaves an instance."""
    drains.mark(host.world, name, why="new driver")
    host.tell_door(WAITING, name)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_process_that_a_drain_keeps_out(host: Host, on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    drain(host)
    client = variables(host)
    pid = outsider(host, client) if on_gpu else host.process("python3", "python3 serve.py", client, 1000)
    first = ask(host, pids=[pid]).diagnoses[0]
    assert (first.name, first.certainty) == ("drained", "certain")
    assert "by alice (new driver)" in first.evidence[0]
    assert first.remedy == "mpsctl undrain 0"
    assert "front-door-closed" not in names(host, pids=[pid])


def test_a_process_that_waits_at_a_drained_instance(host: Host, running: FakeDaemon) -> None:
    pid = host.process("python3", "python3 serve.py", {}, 65_534)
    running.write("Control", 1, f"NEW CLIENT {pid} from user 65534: Server is not ready, push client to pending list")
    drain(host)
    assert {"drained", "waiting-behind-another-user"} <= set(names(host, pids=[pid]))


def test_a_drain_of_another_instance_is_no_reason(host: Host) -> None:
    run(host, "1", server=9002)
    drain(host, "1")
    assert "drained" not in names(host, pids=[outsider(host, variables(host, "0"))])


# -- waiting


@pytest.mark.parametrize(("uid", "cause"), [(65_534, "waiting-behind-another-user"), (0, "waiting-for-server")])
def test_a_client_that_waits_is_told_for_what(host: Host, running: FakeDaemon, uid: int, cause: str) -> None:
    pid = host.process("python3", "python3 serve.py", variables(host), uid)
    running.write("Control", 1, f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")
    assert cause in names(host, pids=[pid])
    assert cause in names(host)
