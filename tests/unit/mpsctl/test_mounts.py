"""On which file systems an instance's sockets can stand, by the kernel's own table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converging import Fleet, conf
from fakes import Host
from mpsctl.adapters import mounts
from mpsctl.lifecycle import prepare
from mpsctl.model.errors import BadValue, NotReady

HEAD = """\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 28 0:26 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=1024k
"""
"""Of a usual host."""


def row(place: str, kind: str, options: str = "rw,relatime", of_system: str = "rw") -> str:
    return f"77 28 0:99 / {place} {options} shared:9 master:3 - {kind} source:/a,b {of_system}\n"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        *[
            (kind, "network file system")
            for kind in ("nfs", "nfs4", "cifs", "ceph", "lustre", "9p", "virtiofs", "gpfs")
        ],
        *[
            (kind, "served by a program")
            for kind in ("fuse.sshfs", "fuse.glusterfs", "fuse", "fuseblk", "fuse.x-unheard")
        ],
        *[(kind, "without sockets") for kind in ("vfat", "ntfs3", "squashfs", "cgroup2")],
        *[(kind, None) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "a-kind-of-tomorrow")],
    ],
)
def test_each_kind_of_file_system(kind: str, says: Optional[str]) -> None:
    mount = mounts.nearest("/srv/mps/0", HEAD + row("/srv", kind))
    assert mount is not None
    assert (mount.place, mount.kind) == ("/srv", kind)
    why = mounts.why_no_sockets(mount)
    assert (why is None) if says is None else (says in str(why))


@pytest.mark.parametrize(("options", "of_system"), [("ro,relatime", "rw"), ("rw", "ro,errors=remount-ro")])
def test_read_only_is_told_of_the_mount_and_of_the_file_system(options: str, of_system: str) -> None:
    mount = mounts.nearest("/srv/mps", HEAD + row("/srv", "ext4", options, of_system))
    assert mount is not None
    assert mounts.read_only(mount)
    assert mounts.why_no_sockets(mount) is None


@pytest.mark.parametrize("options", ["rw,noexec", "rw,nosuid,nodev,noexec", "rw,errors=remount-ro"])
def test_other_options_are_no_matter(options: str) -> None:
    mount = mounts.nearest("/srv/mps", HEAD + row("/srv", "ext4", options))
    assert mount is not None
    assert mounts.why_no_sockets(mount) is None
    assert not mounts.read_only(mount)


@pytest.mark.parametrize(
    ("table", "path", "place"),
    [
        (row("/srv", "nfs4") + row("/srv/local", "xfs"), "/srv/local/mps", "/srv/local"),
        (row("/srv", "nfs4"), "/srvlocal/mps", "/"),
        (row("/srv", "nfs4"), "/srv", "/srv"),
        (row("/with\\040blank", "nfs4"), "/with blank/mps", "/with blank"),
        ("", "/run/nvidia-mps/0", "/run"),
        ("no row\n\n- - -\n77 28 0:99 / /run\n", "/run/nvidia-mps", "/run"),
    ],
)
def test_the_nearest_mount_counts(table: str, path: str, place: str) -> None:
    mount = mounts.nearest(path, HEAD + table)
    assert mount is not None
    assert mount.place == place


def test_of_two_mounts_on_one_place_the_later_counts() -> None:
    mount = mounts.nearest("/srv/mps", HEAD + row("/srv", "nfs4") + row("/srv", "xfs"))
    assert mount is not None
    assert mount.kind == "xfs"


@given(st.text())
def test_no_table_is_too_odd(text: str) -> None:
    mounts.nearest("/srv", text)


def test_the_kernel_s_own_table_has_a_row_for_every_path() -> None:
    assert mounts.under(Path("/proc/self")) is not None
    assert mounts.under(Path("/run/not/there/yet")) is not None


def test_nothing_is_looked_at_on_a_file_system_whose_server_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **__: object) -> None:
        raise AssertionError("it would hang")

    monkeypatch.setattr(mounts, "_table", lambda: HEAD + row("/srv", "nfs4"))
    for name in ("stat", "lstat", "readlink"):
        monkeypatch.setattr(os, name, hangs)
    found = mounts.under(Path("/srv/mps/0"))
    monkeypatch.undo()
    assert found is not None
    assert found.kind == "nfs4"


# -- what becomes of it


@pytest.fixture
def on_nfs(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = mounts.Mount(str(host.pipe_root), "nfs4", frozenset({"rw"}))
    monkeypatch.setattr(mounts, "under", lambda path: found)
    return host


def test_a_network_file_system_is_refused_before_anything_is_changed(fleet: Fleet, on_nfs: Host) -> None:
    for check in (True, False):
        answer = fleet.run(check, {"0": conf(fleet)})
        assert str(answer.refused).startswith(f"mps_pipe_root: found {on_nfs.pipe_root}/0 on {on_nfs.pipe_root}, which")
        assert "network file system (nfs4)" in str(answer.refused)
    assert not fleet.unit.exists()
    assert not on_nfs.places.conf("0").exists()


def test_a_start_refuses_it_too(on_nfs: Host) -> None:
    on_nfs.desired()
    with pytest.raises(BadValue, match="network file system"):
        prepare.prepare(on_nfs.world, "0")


@pytest.fixture
def on_read_only(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = mounts.Mount(str(host.pipe_root), "tmpfs", frozenset({"ro"}))
    monkeypatch.setattr(mounts, "under", lambda path: found)
    return host


def test_a_read_only_file_system_is_the_hosts_own_fault_and_no_bad_input(fleet: Fleet, on_read_only: Host) -> None:
    for check in (True, False):
        answer = fleet.run(check, {"0": conf(fleet)})
        assert answer.refused is None, "which would stop the run on every host"
        assert str(answer.error).startswith(f"found {on_read_only.pipe_root}/0 on {on_read_only.pipe_root}, which is")
        assert "mounted read-only" in str(answer.error)
    assert not fleet.unit.exists()
    assert not on_read_only.places.conf("0").exists()


def test_a_start_on_a_read_only_file_system_is_tried_again(on_read_only: Host) -> None:
    on_read_only.desired()
    with pytest.raises(NotReady, match="mounted read-only"):
        prepare.prepare(on_read_only.world, "0")


@pytest.mark.parametrize("above", [0, 1], ids=["the directory", "a folder above"])
def test_a_file_in_its_place_is_refused(fleet: Fleet, above: int) -> None:
    place = fleet.host.pipe_root if above else fleet.host.pipe_root / "0"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("theirs")
    answer = fleet.converge(_0=conf(fleet))
    assert f"found {place}, which is no folder" in str(answer.refused)
    assert place.read_text() == "theirs"
    assert not fleet.unit.exists()


def test_a_link_to_where_no_pipe_directory_can_be_is_refused(fleet: Fleet) -> None:
    fleet.host.pipe_root.symlink_to("/etc")
    answer = fleet.converge(_0=conf(fleet))
    assert "which leads to /etc/0, expected a path outside /etc" in str(answer.refused)
