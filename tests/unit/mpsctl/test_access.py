"""Who may connect: everyone, or root and the members of one group."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fakes import Host
from judging import judge
from mpsctl.adapters import pipe, procfs
from mpsctl.checks.judgement import STATUS
from mpsctl.lifecycle import apply, prepare
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import RELOAD, RESTART

GID = 4242


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has one more group; who the tests run as may not belong to it, so files tell it by a list."""
    owners: dict[str, int] = {}
    really = Path.stat

    def chown(path: Path, uid: int, gid: int) -> None:
        if gid != -1:
            owners[str(path)] = gid

    def about(path: Path, **options: bool) -> os.stat_result:
        found = really(path, **options)
        gid = owners.get(str(path))
        return found if gid is None else os.stat_result([*found[:5], gid, *found[6:]])

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(Path, "stat", about)
    monkeypatch.setattr(procfs, "gid", lambda name: {"mps": GID, "4242": GID}.get(name))


def door(host: Host) -> tuple[int, int]:
    """The mode of the daemon's own directory, and its group."""
    about = next(iter(pipe.private_directories(host.pipe_root / "0"))).stat()
    return stat.S_IMODE(about.st_mode), about.st_gid


def test_everyone_may_connect_by_default(host: Host) -> None:
    host.desired()
    host.start()
    assert door(host)[0] == 0o711


@pytest.mark.parametrize("name", ["mps", "4242"])
def test_only_the_members_of_a_group_pass_to_the_sockets_from_the_first_moment_on(host: Host, name: str) -> None:
    host.desired(Group=name)
    host.prepared()
    assert door(host) == (0o710, GID)
    # The public directory stays as systemd makes it before every command of the unit.
    assert stat.S_IMODE((host.pipe_root / "0").stat().st_mode) == 0o755


def test_another_choice_is_taken_by_a_reload_and_shown_before(host: Host) -> None:
    host.desired()
    daemon = host.start()
    host.systemd.unit("mps-control@0.service").enabled = True
    host.processes[daemon.pid].gids = (0, GID)
    host.desired(Group="mps")
    before = judge(host, "0", verb=STATUS)
    assert before.mends("0") & {RELOAD, RESTART} == {RELOAD}
    assert before.check("0", "pipe-directory-access").found.startswith(
        "who may connect is not in the desired state (the group mps)"
    )
    assert apply.apply(host.world, "0", daemon.pid) == ["who may connect: the group mps"]
    assert door(host) == (0o710, GID)
    assert judge(host, "0", verb=STATUS).facts.instances["0"].restricted_as_desired
    host.desired()
    assert judge(host, "0", verb=STATUS).mends("0") & {RELOAD, RESTART} == {RELOAD}, "what a run of the role goes by"
    assert apply.apply(host.world, "0", daemon.pid) == ["who may connect: everyone"]
    assert door(host)[0] == 0o711


def test_a_daemon_outside_the_group_needs_a_restart_for_its_servers_would_not_pass(host: Host) -> None:
    host.desired(Group="mps")
    daemon = host.start()
    host.processes[daemon.pid].gids = (0,)
    pending = judge(host, "0", verb=STATUS).check("0", "restart-pending")
    assert pending.mends == RESTART
    assert pending.found == "the daemon is no member of the group mps, nor are its servers"
    host.processes[daemon.pid].gids = (0, GID)
    assert RESTART not in judge(host, "0", verb=STATUS).mends("0")


def test_a_group_that_the_host_lacks_is_refused_before_anything_starts(host: Host) -> None:
    host.desired(Group="nobodys")
    with pytest.raises(BadValue, match="the group 'nobodys'") as caught:
        prepare.prepare(host.world, "0")
    assert caught.value.variable == "mps_group"
    assert not pipe.private_directories(host.pipe_root / "0")


def test_the_groups_of_a_process_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t5\t6\t7\t8\nGroups:\t27 4242 \n")
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    assert procfs.groups(7) == (6, 27, 4242)
    assert procfs.groups(8) == ()
