"""Who may connect: everyone, or root and the members of one group."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Optional

import pytest

from fakes import Host
from judging import judge
from mpsctl.adapters import procfs
from mpsctl.checks.judgement import STATUS
from mpsctl.lifecycle import apply, prepare
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CRITICAL, RELOAD, RESTART
from mpsctl.store import admission

GID = 4242


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has one more group."""
    monkeypatch.setattr(procfs, "gid", lambda name: {"mps": GID, "4242": GID}.get(name))


def who_may(host: Host) -> Optional[int]:
    """The group that the front door was told to let in; None is everyone."""
    told = admission.read(host.places, "0")
    assert told is not None
    return told.gid


def test_everyone_may_connect_by_default(host: Host) -> None:
    host.desired()
    host.start()
    assert who_may(host) is None


@pytest.mark.parametrize("name", ["mps", "4242"])
def test_only_the_members_of_a_group_are_let_in_from_the_first_moment_on(host: Host, name: str) -> None:
    host.desired(Group=name)
    host.prepared()
    assert who_may(host) == GID
    # Who may not come has to be told so: a directory that is closed to him would be a silent way past MPS.
    assert stat.S_IMODE((host.pipe_root / "0").stat().st_mode) == 0o755
    assert stat.S_IMODE((host.pipe_root / "0/front-door").stat().st_mode) == 0o666


def test_another_choice_is_taken_by_a_reload_and_shown_before(host: Host) -> None:
    host.desired()
    daemon = host.start()
    host.systemd.unit("mps-control@0.service").enabled = True
    host.desired(Group="mps")
    before = judge(host, "0", verb=STATUS)
    assert before.mends("0") & {RELOAD, RESTART} == {RELOAD}
    told = before.check("0", "front-door")
    assert (told.level, told.mends, told.facts) == (CRITICAL, RELOAD, {"gid": "everyone"})
    assert "was told everyone, desired the group mps" in told.found
    assert apply.apply(host.world, "0", daemon.pid) == ["who may connect: the group mps"]
    assert who_may(host) == GID
    host.desired()
    assert judge(host, "0", verb=STATUS).mends("0") & {RELOAD, RESTART} == {RELOAD}, "what a run of the role goes by"
    assert apply.apply(host.world, "0", daemon.pid) == ["who may connect: everyone"]
    assert who_may(host) is None


def test_a_group_that_the_host_lacks_is_refused_before_anything_starts(host: Host) -> None:
    host.desired(Group="nobodys")
    with pytest.raises(BadValue, match="the group 'nobodys'") as caught:
        prepare.prepare(host.world, "0")
    assert caught.value.variable == "mps_group"
    assert not host.own().exists()


def test_the_groups_of_a_process_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t5\t6\t7\t8\nGroups:\t27 4242 \n")
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    assert procfs.groups(7) == (6, 27, 4242)
    assert procfs.groups(8) == ()
