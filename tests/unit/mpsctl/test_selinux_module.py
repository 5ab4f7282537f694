"""The SELinux module: built from its source, loaded by choice where there is SELinux, and taken out again."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from converging import Fleet, conf
from fakes import Host
from mpsctl.adapters import selinux
from mpsctl.converge import policy_steps, removal
from mpsctl.model.errors import NotInForce

PROJECT = Path(__file__).parents[3]
MODULE = PROJECT / "roles/mps/files/mps_fleet.pp"
SENT = {"selinux_module": base64.b64encode(MODULE.read_bytes()).decode()}


@pytest.mark.skipif(shutil.which("checkmodule") is None, reason="checkmodule is not installed: make setup")
def test_the_module_that_travels_is_made_from_its_source(tmp_path: Path) -> None:
    built = tmp_path / "mps_fleet.pp"
    subprocess.run([PROJECT / "scripts/build_selinux.sh", built], check=True)
    assert built.read_bytes() == MODULE.read_bytes()


class Policy:
    """A host's SELinux: semodule does what it does to the folder of modules."""

    def __init__(self, root: Path) -> None:
        self.modules = root / "var/lib/selinux/targeted/active/modules/400"
        self.modules.mkdir(parents=True)
        (root / "sys/fs/selinux").mkdir(parents=True)
        (root / "sys/fs/selinux/enforce").write_text("1")
        self.calls: list[list[str]] = []
        self.fails = ""

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command[1:])
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", self.fails)
        if command[1] == "--install":
            path = Path(command[2])
            assert path.read_bytes() == MODULE.read_bytes()
            assert path.stat().st_mode & 0o777 == 0o600
            (self.modules / path.stem).mkdir(exist_ok=True)
        else:
            (self.modules / command[2]).rmdir()
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def policy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Policy:
    made = Policy(host.places.root)
    monkeypatch.setattr("mpsctl.adapters.selinux.subprocess.run", made.run)
    return made


def test_it_is_loaded_once_and_taken_out_by_false(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    assert any("load the SELinux module" in line for line in fleet.check(_0=conf(fleet)).actions)
    assert policy.calls == []
    assert fleet.converge(_0=conf(fleet)).error is None
    assert selinux.loaded(fleet.host.places.root)
    assert not fleet.converge(_0=conf(fleet)).changed
    fleet.more = {}
    assert fleet.converge(_0=conf(fleet)).actions == ["remove the SELinux module mps_fleet"]
    assert not selinux.loaded(fleet.host.places.root)
    assert not fleet.converge(_0=conf(fleet)).changed


def test_a_removal_takes_it_out(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    assert removal.remove(fleet.host.world, False).error is None
    assert policy.calls[-1] == ["--remove", "mps_fleet"]
    assert not selinux.loaded(fleet.host.places.root)


def test_one_that_no_run_loaded_is_left_alone(fleet: Fleet, policy: Policy) -> None:
    (policy.modules / "mps_fleet").mkdir()
    fleet.converge(_0=conf(fleet))
    assert removal.remove(fleet.host.world, False).error is None
    assert policy.calls == []
    assert selinux.loaded(fleet.host.places.root)


def test_one_that_somebody_took_out_is_loaded_again(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    (policy.modules / "mps_fleet").rmdir()
    assert fleet.converge(_0=conf(fleet)).changed
    assert selinux.loaded(fleet.host.places.root)


def test_a_host_without_selinux_leaves_it(fleet: Fleet) -> None:
    fleet.more = SENT
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert not policy_steps.record(fleet.host.world).exists()
    assert not fleet.converge(_0=conf(fleet)).changed


def test_semodule_s_refusal_is_told_and_tried_again(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    policy.fails = "Failed to resolve typeattributeset statement\n at line 7"
    answer = fleet.converge(_0=conf(fleet))
    assert "ended with 1: Failed to resolve typeattributeset statement at line 7" in str(answer.error)
    policy.fails = ""
    assert fleet.converge(_0=conf(fleet)).error is None
    assert selinux.loaded(fleet.host.places.root)


def test_no_semodule_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotInForce, match="mps_selinux_module"):
        selinux.unload()
