"""Who can change what a path leads to, and what becomes of it: nothing is read, written or deleted there by root."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any, Callable

import pytest

from converging import Fleet, conf
from fakes import Host, made_as_by_a_daemon
from judging import judge
from mpsctl.adapters import files, locks, pipe, trusted, without_door
from mpsctl.converge import removal
from mpsctl.lifecycle import prepare
from mpsctl.model.errors import Untrusted
from mpsctl.model.finding import CRITICAL
from mpsctl.observe.host import look
from mpsctl.store import configuration, remembered, saved_compute_modes
from shell import Shell

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")

SOMEBODY = 1000
Spoil = Callable[[Path], None]


def owned(path: Path) -> None:
    os.chown(path, SOMEBODY, 0)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, 0, SOMEBODY)
    path.chmod(0o775)


def open_by_a_list(path: Path) -> None:
    """What setfacl -m u:1000:rwx makes: the mode's bits for the group are the mask then."""
    rows = [(1, 7, 0xFFFFFFFF), (2, 7, SOMEBODY), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists ({error.strerror})")


SPOILS = [owned, open_to_all, sticky, open_to_a_group, open_by_a_list]


@pytest.fixture
def way(root: Path) -> Path:
    """A file three folders deep."""
    path = root / "a" / "b" / "c"
    path.parent.mkdir(parents=True)
    path.write_text("ours")
    return path


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("depth", [0, 1], ids=["its folder", "a folder above"])
def test_a_folder_on_the_way_that_others_can_change_is_named(way: Path, spoil: Spoil, depth: int) -> None:
    place = way.parents[depth]
    assert trusted.weak_point(way) is None
    spoil(place)
    weak = trusted.weak_point(way)
    assert weak is not None
    assert (weak.path, weak.place) == (way, place)
    with pytest.raises(Untrusted, match=str(place)):
        trusted.require(way)


@pytest.mark.parametrize("spoil", [owned, open_to_all, open_to_a_group])
def test_the_file_itself_counts(way: Path, spoil: Spoil) -> None:
    spoil(way)
    assert [one and one.place for one in (trusted.weak_point(way), trusted.weak_point(way.parent))] == [way, None]


@pytest.mark.parametrize("target", ["{root}/theirs/x", "../theirs/x", "../hop", "../a/../theirs/./x"])
def test_links_are_followed_and_what_they_lead_to_is_judged(root: Path, target: str) -> None:
    for name in ("theirs", "a"):
        (root / name).mkdir()
    (root / "theirs" / "x").mkdir()
    (root / "hop").symlink_to("theirs/x")
    link = root / "a" / "link"
    link.symlink_to(target.format(root=root))
    assert trusted.weak_point(link / "file") is None
    owned(root / "theirs")
    weak = trusted.weak_point(link / "file")
    assert weak is not None
    assert weak.place == root / "theirs"


def test_a_link_of_somebody_is_his_wherever_it_leads(root: Path) -> None:
    link = root / "link"
    link.symlink_to("/usr")
    os.lchown(link, SOMEBODY, 0)
    weak = trusted.weak_point(link / "bin")
    assert weak is not None
    assert (weak.place, "user 1000" in weak.why) == (link, True)


def test_what_does_not_exist_yet_is_nobodys_and_a_circle_leads_nowhere(root: Path) -> None:
    (root / "circle").symlink_to("circle")
    assert trusted.weak_point(root / "not" / "there" / "yet") is None
    assert trusted.weak_point(root / "circle" / "x") is None


def test_whoever_may_write_to_a_socket_changes_no_way(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(root / "s"))
    (root / "s").chmod(0o666)
    assert trusted.weak_point(root / "s") is None
    owned(root / "s")
    assert trusted.weak_point(root / "s") is not None


def test_a_user_s_own_call_is_his_own_risk(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(way.parent)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    trusted.require(way)


# -- what root does not do there


@pytest.mark.parametrize("spoil", SPOILS)
def test_no_adapter_reads_writes_or_deletes_there(way: Path, spoil: Spoil) -> None:
    spoil(way.parent)
    for act in (
        lambda: files.read_text(way),
        lambda: files.write(way, "new"),
        lambda: files.write(way.parent / "deeper" / "new", "new"),
        lambda: files.remove(way),
        lambda: files.make_directory(way.parent / "new"),
        lambda: files.replace_symlink(way, "/etc"),
        lambda: locks.take(way, 0),
        lambda: pipe.remove_public(way.parent),
        lambda: pipe.remove_door(way.parent),
        lambda: pipe.remove_made(way.parent),
        lambda: pipe.remove_former(way.parent),
        lambda: pipe.remove_name(way.parent),
        lambda: pipe.remove(way.parent),
        lambda: pipe.make(way.parent / "pipe"),
        lambda: without_door.make(way.parent),
        lambda: without_door.leave(way.parent, for_door=True),
    ):
        with pytest.raises(Untrusted):
            act()
    assert {path.name: path.read_text() for path in way.parent.iterdir()} == {"c": "ours"}


def test_a_directory_of_others_gets_no_modes(way: Path) -> None:
    owned(way.parent)
    with pytest.raises(Untrusted):
        pipe.set_modes(way.parent, [way.name], 0o600, 0o700)
    assert way.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("spoil", [open_to_all, sticky, open_to_a_group])
def test_a_directory_in_which_others_can_make_files_is_closed_before_anything_in_it_is_touched(
    way: Path, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(way.parent)
    seen = []
    real = Path.chmod

    def chmod(path: Path, mode: int) -> None:
        seen.append((path.name, way.parent.stat().st_mode & 0o022))
        real(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    assert pipe.set_modes(way.parent, [way.name], 0o600, 0o710)
    assert seen[0][0] == way.parent.name
    assert all(not open_to for name, open_to in seen[1:])
    assert way.stat().st_mode & 0o777 == 0o600


def test_what_is_remembered_in_anothers_folder_is_not_believed(way: Path) -> None:
    way.write_text("{}")
    assert remembered.load(way) == {}
    open_to_all(way)
    assert remembered.load(way) is None


def test_an_instance_whose_file_others_can_write_is_refused_and_named(live: Host) -> None:
    path = live.places.conf("0")
    path.chmod(0o666)
    with pytest.raises(Untrusted, match=r"0\.conf, which everyone can write to.*chmod go-w"):
        configuration.load(live.world, "0")
    report = judge(live)
    assert report.check(None, "owned-by-root").level == CRITICAL
    assert report.check("0", "configuration").level == CRITICAL


@pytest.mark.parametrize("spoil", [owned, sticky, open_to_a_group])
def test_a_start_refuses_a_pipe_root_of_others_and_leaves_what_is_theirs(host: Host, spoil: Spoil) -> None:
    public = host.desired()
    theirs = public / ".mydata12345"
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").write_text("years of work")
    spoil(host.pipe_root)
    with pytest.raises(Untrusted, match=str(host.pipe_root)):
        prepare.prepare(host.world, "0")
    assert (theirs / "thesis.tex").read_text() == "years of work"


def test_a_link_of_a_user_in_the_pipe_root_leads_root_nowhere(host: Host, root: Path) -> None:
    public = host.desired()
    target = root / "home" / ".abcdefghijk"
    made_as_by_a_daemon(target / "control")
    public.parent.mkdir(parents=True, exist_ok=True)
    public.symlink_to(target.parent)
    owned(target.parent)
    with pytest.raises(Untrusted, match=str(target.parent)):
        prepare.prepare(host.world, "0")
    assert (target / "control").exists()


PLACES = [
    "etc/mps",
    "etc",
    "etc/systemd/system",
    "etc/systemd/system/mps-control@.service.d",
    "etc/systemd/system/mps-control@0.service.d/more.conf",
    "usr/lib/systemd/system/mps-health.service.d",
    "run/mps-fleet",
    "run/mps-fleet/0",
    "run/mps-fleet/0/admission.json",
    "var/lib/mps-fleet",
    "var/lib/mps-fleet/former-compute-modes/GPU-1",
    "var/cache/mps-fleet/mpsctl-x.zip",
    "usr/local/bin",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_refuses_a_host_on_which_others_can_change_it_before_anything_is_changed(
    fleet: Fleet, place: str
) -> None:
    fleet.converge(_0=conf(fleet))
    path = fleet.host.places.root / place
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("") if path.suffix or path.name.startswith("GPU") else path.mkdir()
    owned(path)
    before = fleet.host.places.conf("0").read_text()
    fleet.host.systemd.acts.clear()
    try:
        for check in (True, False):
            answer = fleet.run(check, {"0": conf(fleet, DeviceMemoryLimit="6G")})
            assert str(path) in str(answer.error), place
            assert "user 1000" in str(answer.error)
            assert not answer.actions
        gone = removal.remove(fleet.host.world, False)
        assert str(path) in str(gone.error)
    except Untrusted as error:  # the host lock could not even be taken there
        assert error.place == str(path)  # noqa: PT017 (either way of refusing is right)
    assert fleet.host.places.conf("0").read_text() == before
    assert not fleet.host.systemd.acts
    assert fleet.host.running("0").limits["0"] == 4 << 30


@pytest.mark.parametrize("spoil", [owned, open_to_all])
@pytest.mark.parametrize("place", ["etc/mps/0.conf", "etc/systemd/system/mps-control@.service", "usr/local/bin/mpsctl"])
def test_a_file_that_a_run_writes_is_written_anew(fleet: Fleet, place: str, spoil: Spoil) -> None:
    fleet.converge(_0=conf(fleet))
    path = fleet.host.places.root / place
    spoil(path)
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert answer.changed
    about = path.stat()
    assert (about.st_uid, about.st_mode & 0o022) == (0, 0)
    assert not fleet.converge(_0=conf(fleet)).changed


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "--output", "{root}/theirs/new"],
        ["loopback", "--output", "{root}/theirs/report.json"],
        ["run", "--instance", "0", "--report", "{root}/theirs/report.json", "--", "true"],
    ],
    ids=lambda command: str(command[0]),
)
def test_results_are_not_written_where_others_can_change_the_way(
    live: Host, root: Path, mpsctl: Shell, command: list[str]
) -> None:
    theirs = root / "theirs"
    theirs.mkdir()
    sticky(theirs)
    assert mpsctl(*(word.format(root=root) for word in command)) != 0
    assert str(theirs) in mpsctl.err
    assert "everyone can write to" in mpsctl.err
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "shared"), [("/", True), ("/tmp", True), ("/home/me/results", True), ("/srv/mps", False)]
)
def test_nobody_is_told_to_take_a_folder_that_is_meant_for_others(place: str, shared: bool) -> None:
    remedy = trusted.WeakPoint(Path(place), Path(place), "everyone can write to").remedy
    assert ("chown" in remedy) is not shared
    assert "another place" in remedy


def test_root_of_a_user_namespace_is_judged_as_any_user(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are the host's, which it finds owned by nobody."""
    owned(way)
    read = Path.read_text

    def mapped(path: Path, *arguments: Any, **options: Any) -> str:
        return "0 1000 1\n" if str(path) == "/proc/self/uid_map" else read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", mapped)
    trusted.require(way)


def test_a_record_in_anothers_folder_hides_nothing_else(host: Host) -> None:
    host.desired()
    host.start()
    saved_compute_modes.record(host.world, host.nvml.gpu(0))
    owned(saved_compute_modes.directory(host.world) / host.nvml.gpu(0).uuid)
    found = look(host.world)
    assert (found.saved_modes, list(found.instances)) == ({}, ["0"])
