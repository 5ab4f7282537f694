"""The public directory with the front door, and the daemon's own; and how files are replaced."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from fakes import Host, made_as_by_a_daemon
from mpsctl.adapters import files, pipe, procfs
from mpsctl.model.errors import NotAFile


@pytest.fixture
def public(root: Path) -> Path:
    return root / "mps" / "0"


def test_the_name_that_clients_look_for_holds_in_a_container_that_mounts_the_directory_elsewhere(host: Host) -> None:
    host.stand_door()
    assert pipe.leads_to_door(host.pipe_root / "0")
    elsewhere = host.pipe_root / "elsewhere"
    (host.pipe_root / "0").rename(elsewhere)
    assert pipe.leads_to_door(elsewhere)


@pytest.mark.parametrize("amiss", ["absent", "dangling", "file", "another socket"])
def test_a_name_that_does_not_lead_to_the_front_door(host: Host, amiss: str) -> None:
    host.stand_door()
    public = host.pipe_root / "0"
    name = public / "control"
    name.unlink()
    if amiss == "dangling":
        name.symlink_to("nothing")
    elif amiss == "file":
        name.touch()
    elif amiss == "another socket":
        host.stand_door("1")
        name.symlink_to("../1/front-door")
    assert not pipe.leads_to_door(public)


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_the_daemons_own_directory_is_made_anew_and_follows_no_link(root: Path, kind: str) -> None:
    own, elsewhere = root / "pipe", root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    if kind == "link":
        own.symlink_to(elsewhere)
        with pytest.raises(NotAFile, match="is a link"):
            pipe.make(own)
        pipe.remove(own)
    else:
        own.touch() if kind == "file" else shutil.copytree(elsewhere, own)
        pipe.make(own)
        assert list(own.iterdir()) == []
    assert (elsewhere / "kept").exists()


def test_what_is_ours_of_a_public_directory_goes_and_nothing_else(host: Host) -> None:
    host.stand_door()
    public = host.pipe_root / "0"
    (public / "control_privileged").symlink_to(".gone/control_privileged")  # of release 0.2.0
    (public / "theirs").touch()
    pipe.remove_public(public)
    assert [path.name for path in public.iterdir()] == ["theirs"]
    (public / "theirs").unlink()
    pipe.remove_public(public)
    assert not public.exists()
    pipe.remove_public(public)


def test_only_directories_of_daemons_that_no_daemon_serves_are_removed(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, kept = public / ".abcdefghijk", public / ".ABCDEFGHIJK"
    for directory in (ours, kept):
        directory.mkdir(parents=True)
        made_as_by_a_daemon(directory / "control_privileged")
    monkeypatch.setattr("mpsctl.adapters.control_daemon.daemons", lambda: iter([77]))
    monkeypatch.setattr(procfs, "environment", lambda pid: {pipe.VARIABLE: str(kept)})
    monkeypatch.setattr(procfs, "is_roots", lambda pid: True)
    for name in (".short", "visible12345", ".a-longer-name-than-ours"):
        (public / name).mkdir()
        made_as_by_a_daemon(public / name / "control_privileged")
    (public / ".file1234567").write_text("")
    (public / ".link1234567").symlink_to("/")
    pipe.remove_former(public)
    assert not ours.exists()
    assert {path.name for path in public.iterdir()} == {
        kept.name,
        ".short",
        "visible12345",
        ".a-longer-name-than-ours",
        ".file1234567",
        ".link1234567",
    }


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("new", True),
        ("file", True),
        ("folder", False),
        ("fifo", False),
        ("link", False),
        ("dangling", False),
        ("/dev/null", False),
        ("/dev/stdout", False),
        ("file/new", False),
        ("nowhere/new", False),
        ("x" * 300, False),
        ("", False),
    ],
)
def test_only_a_file_is_replaced_where_a_user_wants_one(root: Path, name: str, may: bool) -> None:
    (root / "file").write_text("")
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    (root / "dangling").symlink_to("nothing")
    os.mkfifo(root / "fifo")
    assert files.can_replace(root / name) is may


def test_a_file_is_replaced_whole_or_not_at_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "etc" / "file"
    files.write(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_temporary_file_that_a_crash_left_is_no_obstacle(root: Path) -> None:
    path = root / "file"
    path.with_name(f".file.{os.getpid()}.new").write_text("half")
    files.write(path, "new", 0o600)
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("new", 0o600)


def test_daemons_on_a_directory_are_told_by_their_environment(host: Host) -> None:
    public = host.pipe_root / "0"
    host.desired()
    daemon = host.start()
    host.process("nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control -f", None)
    assert pipe.daemons_on(public) == []
    assert pipe.daemons_on(public, host.own()) == [daemon.pid]


def test_a_process_of_a_user_with_the_name_and_the_environment_of_a_daemon_is_none(host: Host) -> None:
    """It would keep the instance from ever starting."""
    host.desired()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(host.pipe_root / "0")}
    host.process("nvidia-cuda-mps-control", "/tmp/nvidia-cuda-mps-control -d", environment, uid=1000)
    assert pipe.daemons_on(host.pipe_root / "0", host.own()) == []


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_an_error_without_a_name_says_which_file_it_was_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """write() and fsync() on a full disk know no name."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "0.conf"
    files.write(path, "old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=str(path)):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
