"""Of which Slurm job a process is: by control groups and ancestors that root alone makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpsctl.adapters import job_steps, procfs

ROOTS, ALICES, DROPPED = "0\t0\t0\t0", "1000\t1000\t1000\t1000", "0\t1000\t0\t1000"
STEP, CLIENT, SHELL = 10, 12, 11


class Processes:
    """A /proc in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setattr(procfs, "_PROC", folder / "proc")
        self.program("slurmstepd")
        self.program("bash")

    def program(self, name: str, mode: int = 0o755) -> Path:
        path = self.folder / name
        path.write_text("")
        path.chmod(mode)
        return path

    def add(self, pid: int, parent: int, title: str, uid: str = ALICES, program: str = "bash") -> None:
        place = self.folder / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} ({program}) S {parent} " + " ".join(["0"] * 40))
        (place / "comm").write_text(program[:15] + "\n")
        (place / "cmdline").write_bytes(title.encode() + b"\0")
        (place / "status").write_text(f"Name:\t{program}\nUid:\t{uid}\nGid:\t{uid}\n")
        os.symlink(self.folder / program, place / "exe")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch)


def chain(processes: Processes, title: str, uid: str = ROOTS, program: str = "slurmstepd") -> str:
    """What is told of a client below a shell below a process with this title."""
    processes.add(STEP, 1, title, uid, program)
    processes.add(SHELL, STEP, "/bin/bash job.sh")
    processes.add(CLIENT, SHELL, "python3 train.py")
    return job_steps.job_of(CLIENT, {})


@pytest.mark.parametrize(
    ("title", "job"),
    [
        ("slurmstepd: [42.batch]", "42"),
        ("slurmstepd: [42.0]  ", "42"),
        ("slurmstepd: [42.extern]", "42"),
        ("slurmstepd: [42+1.0]", "42"),
        ("slurmstepd: [x.batch]", ""),
        ("slurmstepd: [42]", ""),
        ("/usr/sbin/slurmd -D", ""),
        ("x slurmstepd: [42.batch]", ""),
    ],
)
def test_the_title_of_the_step_daemon(processes: Processes, title: str, job: str) -> None:
    assert chain(processes, title) == job


def test_a_step_daemon_that_acts_as_the_user_for_a_moment_is_roots(processes: Processes) -> None:
    assert chain(processes, "slurmstepd: [42.batch]", DROPPED) == "42"


def test_the_program_of_a_distribution(processes: Processes) -> None:
    processes.program("slurmstepd-wlm")
    processes.add(STEP, 1, "slurmstepd: [42.batch]", ROOTS, "slurmstepd-wlm")
    (processes.folder / "proc" / str(STEP) / "comm").write_text("slurmstepd\n")
    processes.add(CLIENT, STEP, "python3 train.py")
    assert job_steps.job_of(CLIENT, {}) == "42"


@pytest.mark.parametrize(
    ("uid", "program", "mode"),
    [(ALICES, "slurmstepd", 0o755), (ROOTS, "slurmstepd", 0o4755), (ROOTS, "bash", 0o755)],
    ids=["of the user", "a setuid program", "another program"],
)
def test_who_only_calls_himself_so_is_none(processes: Processes, uid: str, program: str, mode: int) -> None:
    processes.program(program, mode)
    assert chain(processes, "slurmstepd: [42.batch]", uid, program) == ""


def test_a_process_that_left_its_parents_is_of_no_job(processes: Processes) -> None:
    processes.add(CLIENT, 1, "python3 train.py")
    assert job_steps.job_of(CLIENT, {}) == ""
    assert job_steps.job_of(4711, {}) == "", "it is gone"


def test_a_circle_of_parents_has_an_end(processes: Processes) -> None:
    processes.add(SHELL, CLIENT, "bash")
    processes.add(CLIENT, SHELL, "python3")
    assert job_steps.job_of(CLIENT, {}) == ""


@pytest.mark.parametrize(
    ("groups", "job"),
    [
        ({"": "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"}, "42"),
        ({"": "/system.slice/n1_slurmstepd.scope/job_42/step_batch"}, "42"),
        ({"freezer": "/slurm/uid_1000/job_42/step_batch", "": "/user.slice"}, "42"),
        ({"memory": "/slurm_n1/uid_1000/job_42/step_0/task_0"}, "42"),
        ({"": "/user.slice/user-1000.slice/slurm/uid_1000/job_42"}, ""),
        ({"": "/user.slice/system.slice/slurmstepd.scope/job_42"}, ""),
        ({"": "/system.slice/slurmstepd.scope/job_x/step_0"}, ""),
        ({"": "/system.slice/slurmstepd.scope/system"}, ""),
    ],
)
def test_control_groups_of_both_versions(processes: Processes, groups: dict[str, str], job: str) -> None:
    processes.add(CLIENT, 1, "python3 train.py")
    assert job_steps.job_of(CLIENT, groups) == job
