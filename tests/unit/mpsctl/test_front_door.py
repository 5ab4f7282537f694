"""The front door: relative links in the public directory to the daemon's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fakes import Host
from mpsctl.adapters import files, pipe, procfs
from mpsctl.model.checked_values import PRIVATE_NAME_BYTES


@pytest.fixture
def public(root: Path) -> Path:
    return root / "mps" / "0"


def test_the_links_are_relative_and_so_hold_in_a_container_that_mounts_the_directory_elsewhere(public: Path) -> None:
    private = pipe.new_private(public)
    (private / "control").write_text("the socket")
    assert pipe.open_door(public, private)
    elsewhere = public.with_name("elsewhere")
    public.rename(elsewhere)
    for name in ("control", "control_privileged"):
        assert not (elsewhere / name).readlink().is_absolute()
    assert (elsewhere / "control").read_text() == "the socket"


def test_opening_an_open_door_changes_nothing(public: Path) -> None:
    private = pipe.new_private(public)
    pipe.open_door(public, private)
    before = (public / "control").lstat().st_ino
    assert not pipe.open_door(public, private)
    assert (public / "control").lstat().st_ino == before


def test_an_open_door_moves_to_the_next_daemon_in_one_step(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pipe.new_private(public), pipe.new_private(public)
    pipe.open_door(public, first)
    seen: list[bool] = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        seen.append(target.is_symlink())
        replace(source, target)
        seen.append(target.is_symlink())

    monkeypatch.setattr(os, "replace", watched)
    assert pipe.open_door(public, second)
    assert seen == [True] * 4
    assert pipe.behind_door(public) == second


def test_a_closed_door_leads_nowhere(public: Path) -> None:
    assert pipe.behind_door(public) is None
    pipe.open_door(public, pipe.new_private(public))
    pipe.close_door(public)
    assert pipe.behind_door(public) is None
    pipe.close_door(public)


def test_a_closed_door_leaves_the_daemons_own_directory(public: Path) -> None:
    private = pipe.new_private(public)
    pipe.open_door(public, private)
    pipe.close_door(public)
    assert list(public.iterdir()) == [private]


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_the_servers_user_gets_through_whatever_the_umask(public: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        private = pipe.new_private(public)
    finally:
        os.umask(before)
    assert private.stat().st_mode & 0o7777 == 0o711
    assert public.stat().st_mode & 0o7777 == 0o755


def test_an_existing_public_directory_keeps_its_mode(public: Path) -> None:
    public.mkdir(parents=True)
    public.chmod(0o750)
    pipe.new_private(public)
    assert public.stat().st_mode & 0o7777 == 0o750


def test_names_differ_and_have_the_length_that_the_paths_limit_counts_on(public: Path) -> None:
    names = {pipe.new_private(public).name for _ in range(50)}
    assert len(names) == 50
    assert {len(name.encode()) for name in names} == {PRIVATE_NAME_BYTES}


def test_only_directories_with_a_name_of_our_form_that_no_daemon_serves_are_removed(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, kept = pipe.new_private(public), pipe.new_private(public)
    monkeypatch.setattr("mpsctl.adapters.control_daemon.daemons", lambda: iter([77]))
    monkeypatch.setattr(procfs, "environment", lambda pid: {pipe.VARIABLE: str(kept)})
    for name in (".short", "visible12345", ".a-longer-name-than-ours"):
        (public / name).mkdir()
    (public / ".file1234567").write_text("")
    (public / ".link1234567").symlink_to("/")
    pipe.remove_private(public)
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
    assert pipe.daemons_on(public) == [daemon.pid]


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
