"""The SELinux module: built from its source, loaded by choice where there is SELinux, and taken out again."""

from __future__ import annotations

import base64
import bz2
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
SEMODULE = "/usr/sbin/semodule"
SENT = {"selinux_module": base64.b64encode(MODULE.read_bytes()).decode()}


@pytest.mark.skipif(shutil.which("checkmodule") is None, reason="checkmodule is not installed: make setup")
def test_the_module_that_travels_is_made_from_its_source(tmp_path: Path) -> None:
    built = tmp_path / "mps_fleet.pp"
    subprocess.run([PROJECT / "scripts/build_selinux.sh", built], check=True)
    assert built.read_bytes() == MODULE.read_bytes()


class Policy:
    """A host's SELinux: semodule does what it does to the store of modules (libsemanage 3.4: the package is kept,
    compressed, beside what it was compiled to)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = root / "var/lib/selinux/targeted/active/modules"
        self.modules.mkdir(parents=True)
        (root / "sys/fs/selinux").mkdir(parents=True)
        (root / "sys/fs/selinux/enforce").write_text("1")
        self.calls: list[list[str]] = []
        self.fails = ""
        self.keeps_packages = True

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:2] == [SEMODULE, "--priority=400"]
        verb, what = command[2:]
        self.calls.append([verb, what])
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", self.fails)
        if verb == "--install":
            path = Path(what)
            assert path.stat().st_mode & 0o777 == 0o600
            self.put(400, path.read_bytes(), path.stem)
        else:
            shutil.rmtree(self.modules / "400" / what)
        return subprocess.CompletedProcess(command, 0, "", "")

    def put(self, priority: int, package: bytes, name: str = "mps_fleet") -> Path:
        place = self.modules / str(priority) / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "cil").write_bytes(b"BZh compiled")
        if self.keeps_packages:
            (place / "hll").write_bytes(bz2.compress(package))
        return place

    @property
    def has_ours(self) -> bool:
        return selinux.installed(self.root).get(400, b"") in (MODULE.read_bytes(), None)


@pytest.fixture
def policy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Policy:
    made = Policy(host.places.root)
    monkeypatch.setattr("mpsctl.adapters.selinux.subprocess.run", made.run)
    monkeypatch.setattr("mpsctl.adapters.selinux._program", lambda: SEMODULE)
    return made


def test_it_is_loaded_once_and_taken_out_by_false(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    assert any("load the SELinux module" in line for line in fleet.check(_0=conf(fleet)).actions)
    assert policy.calls == []
    assert fleet.converge(_0=conf(fleet)).error is None
    assert policy.has_ours
    assert not fleet.converge(_0=conf(fleet)).changed
    fleet.more = {}
    assert fleet.converge(_0=conf(fleet)).actions == ["remove the SELinux module mps_fleet"]
    assert not policy.has_ours
    assert not fleet.converge(_0=conf(fleet)).changed


def test_a_removal_takes_it_out(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    assert removal.remove(fleet.host.world, False).error is None
    assert policy.calls[-1] == ["--remove", "mps_fleet"]
    assert not policy.has_ours


@pytest.mark.parametrize("priority", [100, 400, 500])
def test_one_that_no_run_loaded_is_left_alone(fleet: Fleet, policy: Policy, priority: int) -> None:
    theirs = policy.put(priority, b"somebody's")
    fleet.converge(_0=conf(fleet))
    fleet.more = SENT
    for answer in (fleet.check(_0=conf(fleet)), fleet.converge(_0=conf(fleet))):
        assert "found a SELinux module mps_fleet that no run loaded" in str(answer.error)
    assert not policy_steps.record(fleet.host.world).exists()
    assert removal.remove(fleet.host.world, False).error is None
    assert policy.calls == []
    assert bz2.decompress((theirs / "hll").read_bytes()) == b"somebody's"


def test_what_somebody_put_in_its_place_is_neither_replaced_nor_removed(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    theirs = policy.put(400, b"somebody's")
    assert "that no run loaded" in str(fleet.converge(_0=conf(fleet)).error)
    fleet.more = {}
    assert fleet.converge(_0=conf(fleet)).error is None
    assert [call[0] for call in policy.calls] == ["--install"]
    assert theirs.is_dir()
    assert not fleet.converge(_0=conf(fleet)).changed


def test_one_of_a_run_that_was_killed_before_its_record_is_known_again(fleet: Fleet, policy: Policy) -> None:
    policy.put(400, MODULE.read_bytes())
    fleet.more = SENT
    assert fleet.converge(_0=conf(fleet)).error is None
    assert not fleet.converge(_0=conf(fleet)).changed
    fleet.more = {}
    fleet.converge(_0=conf(fleet))
    assert selinux.installed(policy.root) == {}


def test_one_of_an_earlier_release_is_replaced(fleet: Fleet, policy: Policy) -> None:
    fleet.more = {"selinux_module": base64.b64encode(b"an earlier one").decode()}
    fleet.converge(_0=conf(fleet))
    fleet.more = SENT
    assert fleet.converge(_0=conf(fleet)).error is None
    assert policy.has_ours


def test_where_the_store_keeps_no_packages_the_record_tells(fleet: Fleet, policy: Policy) -> None:
    policy.keeps_packages = False
    fleet.more = SENT
    assert fleet.converge(_0=conf(fleet)).error is None
    assert not fleet.converge(_0=conf(fleet)).changed
    policy_steps.record(fleet.host.world).unlink()
    assert "that no run loaded" in str(fleet.converge(_0=conf(fleet)).error)


def test_one_that_somebody_took_out_is_loaded_again(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    shutil.rmtree(policy.modules / "400/mps_fleet")
    assert fleet.converge(_0=conf(fleet)).changed
    assert policy.has_ours


@pytest.mark.parametrize(
    ("config", "semanage", "place"),
    [
        ("SELINUX=enforcing\nSELINUXTYPE=mls\n", "", "var/lib/selinux/mls"),
        ("#SELINUXTYPE=mls\nSELINUXTYPE=minimum  \n", "module-store = direct\n", "var/lib/selinux/minimum"),
        ("", "# store-root=/nowhere\nstore-root=/etc/selinux\n", "etc/selinux/targeted"),
        ("SELINUXTYPE=mls", 'store-root = "/srv/a policy"\nexpand-check=0\n', "srv/a policy/mls"),
    ],
)
def test_the_store_is_found_as_libsemanage_finds_it(root: Path, config: str, semanage: str, place: str) -> None:
    (root / "etc/selinux").mkdir(parents=True)
    (root / "etc/selinux/config").write_text(config)
    (root / "etc/selinux/semanage.conf").write_text(semanage)
    assert selinux.store(root) == root / place / "active/modules"


def test_a_policy_beside_the_one_in_force_does_not_count(fleet: Fleet, policy: Policy) -> None:
    other = policy.root / "var/lib/selinux/mls/active/modules/400/mps_fleet"
    other.mkdir(parents=True)
    fleet.more = SENT
    assert fleet.converge(_0=conf(fleet)).error is None
    assert policy.has_ours
    assert other.is_dir()


def test_a_host_without_selinux_leaves_it(fleet: Fleet) -> None:
    fleet.more = SENT
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert not policy_steps.record(fleet.host.world).exists()
    assert not fleet.converge(_0=conf(fleet)).changed


def test_what_cannot_work_is_told_before_anything_acts(
    fleet: Fleet, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.more = SENT
    with monkeypatch.context() as without:
        without.setattr("mpsctl.adapters.selinux._program", lambda: None)
        assert "found no semodule" in str(fleet.check(_0=conf(fleet)).error)
        assert "found no semodule" in str(fleet.converge(_0=conf(fleet)).error)
        assert fleet.host.running("0").limits  # the rest of the run is done
    fleet.converge(_0=conf(fleet))
    with monkeypatch.context() as without:
        without.setattr("mpsctl.adapters.selinux._program", lambda: None)
        before = fleet.host.snapshot()
        assert "found no semodule" in str(removal.remove(fleet.host.world, False).error)
        assert fleet.host.snapshot() == before
    policy.modules.rename(policy.modules.with_name("elsewhere"))
    assert f"found no {policy.modules}" in str(fleet.check(_0=conf(fleet)).error)


def test_semodule_s_refusal_is_told_and_tried_again(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    policy.fails = "Failed to resolve typeattributeset statement\n at line 7"
    answer = fleet.converge(_0=conf(fleet))
    assert "ended with 1: Failed to resolve typeattributeset statement at line 7" in str(answer.error)
    assert fleet.host.running("0").limits
    assert not policy_steps.record(fleet.host.world).exists()
    policy.fails = ""
    assert fleet.converge(_0=conf(fleet)).error is None
    assert policy.has_ours


def test_what_semodule_does_not_take_out_stays_on_record(fleet: Fleet, policy: Policy) -> None:
    fleet.more = SENT
    fleet.converge(_0=conf(fleet))
    policy.fails = "no space left"
    assert "no space left" in str(removal.remove(fleet.host.world, False).error)
    policy.fails = ""
    assert removal.remove(fleet.host.world, False).error is None
    assert selinux.installed(policy.root) == {}


def test_no_semodule_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("mpsctl.adapters.selinux._program", lambda: None)
    with pytest.raises(NotInForce, match="mps_selinux_module"):
        selinux.unload()
