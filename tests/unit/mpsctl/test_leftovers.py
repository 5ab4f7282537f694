"""clients: who is connected, and which processes were left over; told by what the kernel and logind say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest

from fakes import FakeDaemon, Host, uuid
from mpsctl.adapters import hardware, procfs
from mpsctl.adapters.systemd import Systemctl
from mpsctl.checks.judgement import VERIFY
from mpsctl.checks.report import report
from mpsctl.cli.clients import why_left_over
from mpsctl.model import duration
from mpsctl.model.finding import CRITICAL, OK
from mpsctl.observe import host as host_look
from mpsctl.observe import leftovers
from mpsctl.observe.leftovers import Found

SERVER = 9001
CONTAINER = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"


@pytest.fixture
def daemon(host: Host) -> FakeDaemon:
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    made = host.start()
    made.start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=SERVER))
    host.processes[SERVER].parent = made.pid
    return made


def look(host: Host) -> Found:
    return leftovers.look(host.world, ["0"])


def holder(host: Host, client_of: Optional[FakeDaemon] = None, **about: object) -> int:
    """A process that holds memory of a GPU, or a client, with something about it that is not usual."""
    pid = host.client()
    for name, value in {"parent": 4000, **about}.items():
        setattr(host.processes[pid], name, value)
    if client_of is None:
        host.nvml.others_mib[pid] = 700
    else:
        client_of.connect(SERVER, pid)
    return pid


def why(host: Host, pid: int) -> Optional[str]:
    """The sentence that says why a process is left over, or None."""
    return next((why_left_over(one.why) for one in look(host).left_over if one.pid == pid), None)


def test_each_client_is_listed_with_all_that_is_known_of_it(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = holder(host, daemon, container=CONTAINER)
    assert host.nvml.held_mib is not None
    host.nvml.held_mib[uuid(0)] = {pid: 612}
    host.clock.pass_by(3700)
    assert verb(host, monkeypatch, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["instances"]["0"]["clients"]
    desired = {
        "pid": pid,
        "uid": 1000,
        "command": "python3 serve.py",
        "age_s": 3700,
        "memory_mib": [612],
        "limits_mib": [4096],
        "server": SERVER,
        "container": CONTAINER,
        "state": "S",
        "left_over": None,
    }
    assert {key: found[key] for key in desired} == desired


def test_a_host_that_is_well_has_nothing_left_over(host: Host, daemon: FakeDaemon) -> None:
    holder(host, daemon)
    holder(host)
    holder(host, parent=1)  # a service, or one of which nothing tells where it came from
    host.nvml.others_mib[SERVER] = 66
    found = look(host)
    assert (found.left_over, found.unknown, found.host.gpus.unread) == ([], [], None)


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"state": "Z", "parent": 4000}, "it has ended (zombie) and its parent, pid 4000"),
        ({"state": "D"}, "it waits in the kernel (state D)"),
        ({"parent": 1, "container": CONTAINER}, f"of container {CONTAINER}, which nothing runs any more"),
        ({"parent": 1, "session": "7"}, "of login session 7, which has ended"),
        ({"parent": 1, "session": "8"}, "of login session 8, which has ended"),
        ({"parent": 1, "environment": {"SLURM_JOB_ID": "5"}}, "of batch job 5, which has no slurmstepd any more"),
    ],
)
def test_a_process_that_was_left_over_is_named_with_the_reason(
    host: Host, daemon: FakeDaemon, about: dict[str, object], says: str, connected: bool
) -> None:
    host.systemd.sessions["8"] = "closing"
    pid = holder(host, daemon if connected else None, **about)
    (found,) = look(host).left_over
    assert found.pid == pid
    assert why_left_over(found.why).startswith(says)
    assert found.instance == ("0" if connected else None)
    assert found.memory_mib == ({} if connected else {uuid(n): 700 for n in range(4)})


@pytest.mark.parametrize(
    "about",
    [
        {"container": CONTAINER},
        {"session": "7"},
        {"parent": 1, "session": "9"},
        {"environment": {"SLURM_JOB_ID": "5"}},
        {"parent": 1, "environment": {"SLURM_JOB_ID": "6"}},
        {"parent": 1, "environment": None},
        {"state": "T"},
    ],
)
def test_a_process_whose_home_is_still_there_is_none(host: Host, daemon: FakeDaemon, about: dict[str, object]) -> None:
    host.systemd.sessions["9"] = "active"
    host.process("slurmstepd", "slurmstepd: [6.0]")
    assert why(host, holder(host, daemon, **about)) is None


def test_a_client_that_only_waits_for_a_disk_is_none(host: Host, daemon: FakeDaemon) -> None:
    pid = holder(host, daemon, state="D")
    host.clock.when(0.7, lambda: setattr(host.processes[pid], "state", "R"))
    assert why(host, pid) is None


def test_a_client_whose_process_is_gone(host: Host, daemon: FakeDaemon) -> None:
    pid = holder(host, daemon)
    host.kill(pid)
    assert why(host, pid) == "its process is gone and the GPU is still in its name"
    (row,) = look(host).connected["0"]
    assert (row.client.state, row.age_s) == ("", None)


@pytest.mark.usefixtures("daemon")
def test_a_server_without_its_daemon(host: Host) -> None:
    pid = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server")
    host.nvml.others_mib[pid] = 66
    host.processes[pid].parent = 4000
    assert why(host, pid) is None
    host.processes[pid].parent = 1
    assert str(why(host, pid)).startswith("an MPS server whose control daemon is gone: end it when")


@pytest.mark.usefixtures("daemon")
def test_a_server_without_its_daemon_is_told_though_nvml_does_not_list_it(host: Host) -> None:
    pid = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server")
    (found,) = look(host).left_over
    assert (found.pid, found.why.kind, found.memory_mib) == (pid, leftovers.SERVER, {})


def test_verify_and_clients_name_the_same_left_over_server(host: Host, daemon: FakeDaemon) -> None:
    pid = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server")
    seen = host_look.look(host.world, deep=True)
    check = report(seen, VERIFY).check(None, "left-over-servers")
    assert check.facts["pids"] == [one.pid for one in look(host).left_over] == [pid]


@pytest.mark.parametrize(
    "chosen",
    [
        {"gids": (1000,)},
        {"gids": (1000, 0)},  # a member of the group root, in another one
        {"gids": (0,), "container": "of-a-user-with-root's-group"},
    ],
)
def test_a_process_that_merely_has_a_server_s_name_is_a_note_and_no_server(
    host: Host, daemon: FakeDaemon, chosen: dict[str, Any]
) -> None:
    pid = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server")
    for name, value in {"uid": 1000, **chosen}.items():
        setattr(host.processes[pid], name, value)
    check = report(host_look.look(host.world, deep=True), VERIFY).check(None, "left-over-servers")
    assert (check.level, len(check.evidence), check.facts) == (OK, 1, {})
    assert look(host).left_over == []
    assert not hardware.is_server(pid), "nor is it one while a GPU is looked for that nobody uses"
    host.nvml.others_mib[pid] = 66
    processes = report(host_look.look(host.world, deep=True), VERIFY).check("0", "gpu-processes")
    assert (processes.level, processes.facts) == (CRITICAL, {"pids": [pid]}), "as anybody outside MPS is"


def test_a_daemon_that_does_not_answer_is_told_and_hides_no_left_over(host: Host, daemon: FakeDaemon) -> None:
    pid = holder(host, state="Z")
    daemon.not_served = True
    found = look(host)
    assert found.connected == {"0": []}
    assert [one.name for one in found.unknown] == ["0"]
    assert [one.pid for one in found.left_over] == [pid]


def test_without_nvml_the_clients_are_listed_all_the_same(host: Host, daemon: FakeDaemon) -> None:
    pid = holder(host, daemon)
    host.nvml.driver_up = False
    found = look(host)
    assert [one.client.pid for one in found.connected["0"]] == [pid]
    assert found.host.gpus.unread is not None


def verb(host: Host, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from mpsctl.cli import main
    from mpsctl.store import world

    monkeypatch.setattr(world, "World", lambda **_: host.world)
    return main.main(["clients", *words])


def test_the_list_for_people(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(procfs, "user", lambda uid: f"user-{uid}")
    pid = holder(host, daemon, state="Z", container=CONTAINER)
    assert verb(host, monkeypatch) == 0
    head, row, left = capsys.readouterr().out.splitlines()
    columns = ["INSTANCE", "PID", "USER", "AGE", "MEMORY", "LIMIT", "SERVER", "CONTAINER", "STATE", "COMMAND"]
    assert head.split() == columns
    cells = ["0", str(pid), "user-1000", "0", "s", "?", "4096", "MiB", str(SERVER), CONTAINER[:12]]
    assert row.split() == [*cells, "Z", "left", "over", "python3", "serve.py"]
    assert left.startswith(f"left over: pid {pid} (python3 serve.py, user user-1000), client of 0")


@pytest.mark.usefixtures("daemon")
def test_the_list_of_nobody(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(host, monkeypatch) == 0
    assert capsys.readouterr().out == "no client is connected\n"


def test_who_cannot_be_told_is_no_success(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.not_served = True
    assert verb(host, monkeypatch, "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["instances"]["0"]["clients"] == []
    assert "did not answer" in found["instances"]["0"]["unknown"]


@pytest.mark.parametrize(
    ("line", "session"),
    [
        ("0::/user.slice/user-1000.slice/session-12.scope", "12"),
        ("1:name=systemd:/user.slice/user-0.slice/session-c3.scope/x", "c3"),
        ("0::/system.slice/session-notes.service", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice", None),
    ],
)
def test_the_login_session_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, session: Optional[str]
) -> None:
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"9:pids:/\n{line}\n")
    assert procfs.session(7) == session
    assert procfs.session(8) is None


def test_a_login_session_that_is_not_there() -> None:
    assert Systemctl().session_state("no-such-session") is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not told"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (11_100, "3 h 5 min"),
        (90_061, "1 d 1 h"),
        (86_461, "1 d"),
    ],
)
def test_a_time_for_people(seconds: Optional[float], text: str) -> None:
    assert duration.text(seconds) == text


@pytest.mark.parametrize("driver_up", [True, False])
def test_what_cannot_be_told_is_no_success(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, driver_up: bool
) -> None:
    holder(host, daemon)
    host.nvml.driver_up = driver_up
    assert verb(host, monkeypatch) == (0 if driver_up else 3)
