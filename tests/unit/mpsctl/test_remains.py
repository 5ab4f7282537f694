"""What interrupted runs and earlier pipe roots leave: named by verify, tidied by the next run, and nothing else is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Callable, Optional

import pytest

from converging import Fleet, conf, this_run
from fakes import Host
from judging import judge
from mpsctl.adapters import pipe
from mpsctl.checks.judgement import VERIFY
from mpsctl.converge import removal
from mpsctl.converge.answer import Answer
from mpsctl.model.finding import CONVERGE, OK, WARNING
from mpsctl.observe import remains
from mpsctl.store import public_directories
from test_build import builder
from test_killed_runs import Kill, Killed, dead

each_door = pytest.mark.parametrize("door", ["yes", "no"])


def named(host: Host) -> set[str]:
    """What verify names."""
    told = judge(host, verb=VERIFY).check(None, "interrupted-runs")
    assert told.level == (WARNING if told.evidence else OK)
    assert not told.evidence or told.mends == CONVERGE
    return {line.removesuffix(" was left") for line in told.evidence}


def moved(fleet: Fleet, door: str = "yes", check: bool = False) -> Answer:
    """Another pipe root is desired, in the units as well."""
    fleet.host.pipe_root = fleet.host.places.root / "moved"
    return fleet.run(check, {"a": conf(fleet, "a", GPUs="0", FrontDoor=door)})


# -- former pipe roots


@each_door
def test_an_instance_that_is_down_moves_in_one_run_and_leaves_nothing(fleet: Fleet, door: str) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0", FrontDoor=door))
    former = fleet.host.pipe_root / "a"
    fleet.host.stop("a")
    assert former.is_dir()
    assert moved(fleet, door).error is None
    assert not former.exists()
    assert named(fleet.host) == set()
    assert not moved(fleet, door).changed
    assert fleet.host.door_is_open("a")


def left_over(fleet: Fleet, door: str) -> Path:
    """A run was killed right before it removed the directory that clients had found before."""
    fleet.converge(a=conf(fleet, "a", GPUs="0", FrontDoor=door))
    former = fleet.host.pipe_root / "a"
    moved(fleet, door)
    (former / pipe.LOCK).mkdir(parents=True)
    (former / pipe.PUBLIC_NAME).symlink_to(pipe.DOOR)
    public_directories.note(fleet.host.world, "a", former)
    return former


@each_door
def test_a_former_directory_is_named_and_tidied_by_the_next_run(fleet: Fleet, door: str) -> None:
    former = left_over(fleet, door)
    assert named(fleet.host) == {str(former)}
    assert moved(fleet, door, check=True).actions == [f"remove {former}: clients of a found it there before"]
    assert former.is_dir(), "check mode changes nothing"
    assert moved(fleet, door).error is None
    assert not former.exists()
    assert not former.parent.exists()
    assert named(fleet.host) == set()
    assert not moved(fleet, door).changed


@each_door
def test_a_run_that_is_killed_while_it_moves_an_instance_leaves_nothing_for_good(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    host, root = fleet.host, fleet.host.pipe_root
    former = root / "a"
    for steps in range(200):
        host.pipe_root = root
        fleet.converge(a=conf(fleet, "a", GPUs="0", FrontDoor=door))
        fleet.converge(a=conf(fleet, "a", GPUs="0", FrontDoor=door))
        this_run(host)
        with monkeypatch.context() as patch:
            kill = Kill(host, patch, steps)
            with suppress(Killed):
                moved(fleet, door)
        dead(host)
        for _ in range(2):  # what was in use when the first looked is told by the second
            assert moved(fleet, door).error is None
        assert not former.exists(), f"killed before step {steps + 1}"
        assert named(host) == set()
        assert host.door_is_open("a")
        if not kill.dead:
            return
    raise AssertionError("no run came to its end")


def test_what_others_have_there_stays_and_is_named_no_more(fleet: Fleet) -> None:
    former = left_over(fleet, "yes")
    (former / "notes").write_text("somebody else's")
    (former / ".dir").mkdir()
    assert moved(fleet).error is None
    assert sorted(path.name for path in former.iterdir()) == [".dir", "notes"]
    assert named(fleet.host) == set()


def test_a_directory_of_that_form_that_is_not_on_record_is_left(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    other = fleet.host.pipe_root / "b"
    (other / pipe.LOCK).mkdir(parents=True)
    (other / pipe.PUBLIC_NAME).symlink_to(pipe.DOOR)
    assert not fleet.converge(a=conf(fleet, "a", GPUs="0")).changed
    assert other.is_dir()
    assert named(fleet.host) == set()


def test_a_directory_that_a_daemon_serves_again_is_left(fleet: Fleet) -> None:
    former = left_over(fleet, "yes")
    (former / pipe.PUBLIC_NAME).unlink()
    (former / pipe.LOCK).rmdir()
    fleet.host.launch({"CUDA_MPS_PIPE_DIRECTORY": str(former), "CUDA_VISIBLE_DEVICES": ""})
    assert named(fleet.host) == set()
    assert moved(fleet).error is None
    assert (former / "control").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '["relative"]', "half", "\0\0"])
def test_a_record_that_is_damaged_names_nothing(fleet: Fleet, text: str) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    (public_directories.directory(fleet.host.world) / "a.json").write_text(text)
    assert named(fleet.host) == set()
    assert fleet.converge(a=conf(fleet, "a", GPUs="0")).error is None


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_removal_takes_the_former_ones_along(fleet: Fleet, all_of_it: bool) -> None:
    former = left_over(fleet, "yes")
    if all_of_it:
        assert removal.remove(fleet.host.world, False).error is None
    else:
        assert fleet.converge(b=conf(fleet, "b", GPUs="1")).error is None
        fleet.host.stop("b")
        assert fleet.converge().error is None
    assert not former.exists()
    assert not (fleet.host.places.root / "moved").exists()


def test_an_instance_whose_file_is_damaged_is_removed_with_its_directory(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    public = fleet.host.pipe_root / "a"
    fleet.host.stop("a")
    fleet.host.places.conf("a").write_text("# Managed by mps-fleet\nhalf")
    assert fleet.converge(b=conf(fleet, "b", GPUs="1")).error is None
    assert not public.exists()


def test_a_record_that_cannot_be_written_keeps_no_instance_down(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(public_directories, "note", full)
    host.desired("0")
    host.start()
    assert host.door_is_open()


# -- folders of the transport


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("program") / "mpsctl"
    builder().build(path)
    return path.read_bytes()


def left(base: Path, content: Optional[bytes], name: str = "ansible-tmp-mps-abc12345") -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    if content is not None:
        (folder / "mpsctl").write_bytes(content)
    return folder


@pytest.fixture
def base(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = fleet.host.places.root / "remote tmp"
    place.mkdir()
    monkeypatch.setenv(remains.TRANSPORT_VARIABLE, str(place))
    return place


@pytest.mark.parametrize("arrived", [None, 0, 5, 70_000, 1 << 30])
@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_folder_of_the_transport_is_named_and_goes(
    fleet: Fleet, base: Path, program: bytes, arrived: Optional[int], all_of_it: bool
) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    folder = left(base, None if arrived is None else program[:arrived])
    assert named(fleet.host) == {str(folder)}
    if all_of_it:
        assert removal.remove(fleet.host.world, False).error is None
    else:
        answer = fleet.converge(a=conf(fleet, "a", GPUs="0"))
        assert answer.actions == [f"remove {folder}: a run was interrupted"]
    assert list(base.iterdir()) == []


def _another_program(folder: Path) -> None:
    (folder / "mpsctl").write_text("#!/usr/bin/python3 -IS\nimport os\n")


def _another_file(folder: Path) -> None:
    (folder / "notes").write_text("mine")


def _a_folder(folder: Path) -> None:
    (folder / "mpsctl").unlink()
    (folder / "mpsctl").mkdir()


def _a_fifo(folder: Path) -> None:
    (folder / "mpsctl").unlink()
    os.mkfifo(folder / "mpsctl")


def _open_to_others(folder: Path) -> None:
    folder.chmod(0o777)


def _a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _of_another_user(folder: Path) -> None:
    os.chown(folder, 12321, 12321)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
@pytest.mark.parametrize(
    "how",
    [_another_program, _another_file, _a_folder, _a_fifo, _open_to_others, _a_link, _of_another_user],
    ids=lambda one: one.__name__.strip("_"),
)
def test_what_has_the_name_alone_stays(fleet: Fleet, base: Path, program: bytes, how: Callable[[Path], None]) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    folder = left(base, program)
    how(folder)
    before = sorted(base.rglob("*"))
    assert named(fleet.host) == set()
    assert not fleet.converge(a=conf(fleet, "a", GPUs="0")).changed
    assert sorted(base.rglob("*")) == before


def test_one_that_is_at_work_is_left_to_its_run(fleet: Fleet, base: Path, program: bytes) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    folder = left(base, program)
    pid = fleet.host.process("python3", f"/usr/bin/python3 -IS {folder}/mpsctl reconcile --json", {})
    assert named(fleet.host) == set()
    assert not fleet.converge(a=conf(fleet, "a", GPUs="0")).changed
    fleet.host.kill(pid)
    assert named(fleet.host) == {str(folder)}
