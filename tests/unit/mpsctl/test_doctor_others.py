"""Given others' daemons, units and texts on a host, the doctor names them, and nothing that they wrote does harm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest

from consulting import FILES, ask, find, names, outsider, run, their_daemon
from fakes import FakeDaemon, Host, uuid
from mpsctl.model.errors import NotReady

pytestmark = pytest.mark.usefixtures("shown_processes")


@pytest.fixture
def directory(host: Host) -> Path:
    return host.places.root / "theirs"


def test_a_daemon_of_nobody_on_the_same_gpu(host: Host, running: FakeDaemon, directory: Path) -> None:
    their_daemon(host, directory, CUDA_VISIBLE_DEVICES="0")
    assert names(host) == ["foreign-daemon", "two-daemons-one-gpu"], (
        "that a user's process serves a GPU is its word alone"
    )


def test_a_daemon_that_runs_is_certain(host: Host, running: FakeDaemon, directory: Path) -> None:
    pid = their_daemon(host, directory, CUDA_VISIBLE_DEVICES=uuid(2))
    found = find(host, "foreign-daemon")
    assert found.certainty == "certain"
    assert f"control daemon {pid} (nvidia-cuda-mps-control -d, user 1001) on {directory}" in found.evidence[0]
    assert names(host) == ["foreign-daemon"], "one GPU for each daemon is the rule"


@pytest.fixture
def on_default(host: Host) -> int:
    """Somebody's daemon on the default directory, which lies where it sees it, with all its files."""
    inside = host.places.root / "theirs"
    pid = their_daemon(host, inside / "tmp/nvidia-mps")
    host.processes[pid].environment, host.processes[pid].root = {"CUDA_VISIBLE_DEVICES": "2"}, inside
    return pid


@pytest.mark.parametrize("error", [None, "805", "807", "100"])
def test_a_daemon_on_the_default_directory_is_named(
    host: Host, running: FakeDaemon, on_default: int, error: Optional[str]
) -> None:
    found = {one.name: one for one in ask(host, errors=[error] if error else []).diagnoses}
    assert found["default-pipe-directory"].certainty == "certain"
    assert found["foreign-daemon"].certainty == "certain"
    for name in ("default-pipe-directory", "foreign-daemon"):
        assert f"control daemon {on_default} (nvidia-cuda-mps-control -d, user 1001)" in found[name].evidence[0]
    assert "cleaned-pipe-directory" not in found
    assert "orphan-daemon" not in found


def test_a_daemon_elsewhere_leaves_room_for_other_causes(host: Host, running: FakeDaemon, directory: Path) -> None:
    """It is seen for certain, and need not be why the error came."""
    their_daemon(host, directory, CUDA_VISIBLE_DEVICES=uuid(2))
    assert {"foreign-daemon", "pipe-directory-closed", "container-ipc"} <= set(names(host, errors=["805"]))


def test_a_daemon_of_an_instance_that_is_not_asked_about_is_not_foreign(host: Host, running: FakeDaemon) -> None:
    run(host, "1", server=9002)
    assert names(host, instances=["0"]) == []


def test_without_systemd_no_daemon_is_called_foreign(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(units: list[str]) -> None:
        raise NotReady("systemctl is not on this host")

    monkeypatch.setattr(host.systemd, "show", show)
    assert names(host) == []
    their_daemon(host, host.places.root / "theirs", CUDA_VISIBLE_DEVICES=uuid(2))
    assert names(host) == ["foreign-daemon"]


def test_a_unit_that_is_overridden_is_not_read(host: Host, running: FakeDaemon) -> None:
    for place, text in (
        ("etc", "ExecStart=/bin/true"),
        ("usr/lib", "ExecStop=/usr/bin/nvidia-cuda-mps-control quit"),
    ):
        path = host.places.root / place / "systemd/system/nvidia-mps.service"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Service]\n{text}\n")
    assert names(host) == []
    (host.places.root / "etc/systemd/system/nvidia-mps.service").unlink()
    assert names(host) == ["quit-as-argument"]


def test_a_job_s_daemon_that_serves_one_gpu_of_four(host: Host, on_default: int) -> None:
    found = names(host, errors=["No CUDA GPUs are available"])
    assert found[:2] == ["default-pipe-directory", "daemon-serves-other-gpus"]
    one = find(host, "daemon-serves-other-gpus")
    assert one.certainty == "certain"
    assert "it serves 1 of 4 GPUs, CUDA_VISIBLE_DEVICES=2" in one.evidence[0]


def test_a_daemon_without_the_variable_serves_every_gpu(host: Host, on_default: int) -> None:
    host.processes[on_default].environment = {}
    assert names(host) == ["default-pipe-directory", "foreign-daemon"]


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        ([], "orphan-daemon"),
        (["control_lock", "log"], "orphan-daemon"),
        (["control", "control_privileged"], "cleaned-pipe-directory"),
        (["control", "control_privileged", "log"], "cleaned-pipe-directory"),
        (FILES, None),
    ],
)
def test_a_pipe_directory_that_was_cleaned_under_its_daemon(
    host: Host, directory: Path, left: list[str], cause: Optional[str]
) -> None:
    their_daemon(host, directory, left)
    assert names(host) == [*([cause] if cause else []), "foreign-daemon"]


def test_a_pipe_directory_that_may_not_be_read_is_not_called_cleaned(
    host: Host, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    their_daemon(host, directory)
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        if Path(path) == directory:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert names(host) == ["foreign-daemon"]


def test_another_manager_s_unit_is_named_with_its_faults(host: Host, running: FakeDaemon) -> None:
    path = host.places.units / "nvidia-mps.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -d\nRemainAfterExit=yes\nRestart=always\n"
        "Environment=CUDA_MPS_PIPE_DIRECTORY=/run/other\n"
    )
    assert names(host) == ["active-without-daemon"]
    host.systemd.unit("nvidia-mps.service").active_state = "active"
    found = {one.name: one for one in ask(host).diagnoses}
    assert set(found) == {"active-without-daemon", "several-managers"}
    assert str(path) in found["several-managers"].evidence[0]


# -- foreign text


FORGED = "python3\nMPS OK: all is well\x1b[2J$(reboot)"


def test_what_others_wrote_is_escaped_wherever_it_is_quoted(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": FORGED, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": FORGED})
    host.processes[pid].command = FORGED
    host.systemd.kernel.append(f"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, {FORGED}")
    unit = host.places.units / "a\nb.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -d\x1b[2J\n")
    for question in ({}, {"pids": [pid]}, {"errors": [f"CUDA error 805 {FORGED}"]}):
        answer = ask(host, **question)
        assert answer.diagnoses
        for line in (*answer.understood, *(text for one in answer.diagnoses for text in (*one.evidence, one.remedy))):
            assert line.isprintable(), repr(line)
            assert len(line) < 2500


def test_a_long_title_is_cut(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": "/x" * 5000})
    host.processes[pid].command = "python3 " + "x" * 100_000
    for question in ({}, {"pids": [pid]}):
        assert all(len(line) < 700 for one in ask(host, **question).diagnoses for line in one.evidence)


def test_a_path_is_quoted_for_the_shell_in_a_remedy(host: Host, running: FakeDaemon) -> None:
    place = host.places.root / "a $(reboot) b"
    place.mkdir(mode=0o700)
    (place / "mps").mkdir()
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": str(place / "mps")}, uid=65_534)
    closed = [one for one in ask(host, pids=[pid]).diagnoses if one.name == "pipe-directory-closed"]
    assert all("'" in one.remedy for one in closed)
