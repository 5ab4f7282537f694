"""Whose a process is by its control group: what root made of it, and nothing below."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpsctl.adapters import control_groups, procfs
from mpsctl.model.shares import Whose

ALICE = 1000


class Groups:
    """Hierarchies of control groups in a folder, and a /proc beside them. Whoever is a folder's owner made what is in
    it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        monkeypatch.setattr(procfs, "_PROC", self.proc)
        monkeypatch.setattr(procfs, "alive", lambda pid: pid == 7)
        self.version_2 = ((self.mount, ""),)
        self.version_1 = ((self.mount / "unified", ""), (self.mount / "systemd", "name=systemd"))
        monkeypatch.setattr(control_groups, "_MOUNTS", (*self.version_2, *self.version_1))
        self.mount.mkdir()

    def make(self, path: str, of_user: str = "", mount: str = "") -> None:
        (self.mount / mount / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if of_user:
            os.chown(self.mount / mount / of_user.lstrip("/"), ALICE, ALICE)

    def process(self, *lines: str) -> Whose:
        return self.process_of_bytes("".join(f"{line}\n" for line in lines).encode())

    def process_of_bytes(self, text: bytes) -> Whose:
        (self.proc / "7").mkdir(parents=True, exist_ok=True)
        (self.proc / "7" / "cgroup").write_bytes(text)
        return control_groups.whose(7, ALICE)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    if os.geteuid():
        pytest.skip("only root can give a folder to a user")
    return Groups(tmp_path, monkeypatch)


def test_a_unit_of_root(groups: Groups) -> None:
    groups.make("/system.slice/api.service")
    assert groups.process("0::/system.slice/api.service") == Whose(ALICE, "/system.slice/api.service")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/system.slice/_cpu.service", "/system.slice/cpu.service"),
        ("/_memory.slice/in-slice.service", "/memory.slice/in-slice.service"),
        ("/system.slice/__x.service", "/system.slice/_x.service"),
        ("/system.slice/a_b.service", "/system.slice/a_b.service"),
    ],
)
def test_a_unit_whose_name_systemd_had_to_change_has_its_own(groups: Groups, path: str, names: str) -> None:
    """As systemd 252 has these units' groups."""
    groups.make(path)
    assert groups.process(f"0::{path}").group == names


def test_what_a_user_named_says_nothing(groups: Groups) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service"
    groups.make(f"{own}/app.slice/api.service", of_user=own)
    assert groups.process(f"0::{own}/app.slice/api.service") == Whose(ALICE, own)


def test_nor_below_a_unit_that_was_given_to_its_user(groups: Groups) -> None:
    """``Delegate=yes`` with ``User=``."""
    groups.make("/system.slice/ci.service/batch.slice", of_user="/system.slice/ci.service")
    assert groups.process("0::/system.slice/ci.service/batch.slice").group == "/system.slice/ci.service"


def test_nor_in_a_folder_that_all_can_write(groups: Groups) -> None:
    groups.make("/open/api.service")
    (groups.mount / "open").chmod(0o777)
    assert groups.process("0::/open/api.service").group == "/open"


@pytest.mark.parametrize(
    ("path", "container"),
    [
        ("/system.slice/docker-0a1b.scope", "0a1b"),
        ("/docker/0a1b", "0a1b"),
        ("/machine.slice/libpod-0a1b.scope", "0a1b"),
        ("/machine.slice/machine-web.scope", "web"),
        (f"/kubepods/besteffort/pod1/{'c' * 64}", "c" * 64),
    ],
)
@pytest.mark.parametrize("inside", ["", "/system.slice/api.service"])
def test_a_container_and_nothing_within_it(groups: Groups, path: str, container: str, inside: str) -> None:
    """Its own root names what it likes there."""
    groups.make(path + inside)
    assert groups.process(f"0::{path}{inside}") == Whose(ALICE, path, container)


def test_a_container_by_a_name_that_a_user_gave_is_none(groups: Groups) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service"
    groups.make(f"{own}/docker-0a1b.scope", of_user=own)
    assert groups.process(f"0::{own}/docker-0a1b.scope") == Whose(ALICE, own)


def test_version_1_by_systemds_own_hierarchy(groups: Groups) -> None:
    groups.make("/system.slice/api.service", mount="systemd")
    found = groups.process("5:memory:/elsewhere", "1:name=systemd:/system.slice/api.service", "0::/")
    assert found.group == "/system.slice/api.service"


def test_both_side_by_side(groups: Groups) -> None:
    groups.make("/system.slice/api.service", mount="unified")
    assert groups.process("1:name=systemd:/", "0::/system.slice/api.service").group == "/system.slice/api.service"


@pytest.mark.parametrize("lines", [("0::/",), (), ("0::/../../elsewhere",), ("0::/gone.slice/gone.service",)])
def test_what_is_not_told_is_nobodys(groups: Groups, lines: tuple[str, ...]) -> None:
    assert groups.process(*lines) == Whose(ALICE)


def test_a_process_that_has_ended(groups: Groups) -> None:
    assert control_groups.whose(8, ALICE) == Whose(ALICE)


OWN = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "below",
    [
        *(f"a{sign}b".encode() for sign in "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"),
        *(f"a{sign}0::/system.slice/api.service".encode() for sign in "\r\v\f\x1c\x85\u2028"),
        b"\xff",
        b"a:b:c",
        b"gone/meanwhile",
        b"/".join([b"x" * 200] * 20),
        b"x" * 255,
    ],
)
def test_whatever_a_user_calls_his_group_it_is_his_own(groups: Groups, below: bytes) -> None:
    """The kernel forbids a line feed alone, and tells paths that are longer than a path may be."""
    groups.make("/system.slice/api.service")
    groups.make(OWN, of_user=OWN)
    assert groups.process_of_bytes(b"0::" + OWN.encode() + b"/" + below + b"\n") == Whose(ALICE, OWN)


def test_a_living_process_whose_group_cannot_be_read_says_so(groups: Groups) -> None:
    """As the kernel gives none of a path above 4095 bytes."""
    (groups.proc / "7" / "cgroup").mkdir(parents=True)
    assert control_groups.whose(7, ALICE) == Whose(ALICE, group_untold=True)
