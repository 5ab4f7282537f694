"""What slurm.conf, gres.conf and the instances of a node need, and what of it is not so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import Host, h200
from mpsctl.adapters import scontrol
from mpsctl.cli import slurm_check
from mpsctl.converge import removal
from mpsctl.model.names import SCRIPTS
from mpsctl.model.places import FINGERPRINT, Places
from shell import Shell

FOLDER = "/usr/local/lib/mps-fleet"
OLD = f"""\
BatchStartTimeout       = 10 sec
Epilog                  = {FOLDER}/slurm-epilog
GresTypes               = gpu,shard
Prolog                  = {FOLDER}/slurm-prolog
PrologEpilogTimeout     = 65534
PrologFlags             = Alloc
TaskProlog              = {FOLDER}/slurm-task-prolog
"""
NEW = OLD.replace("Epilog  ", "Epilog[0]", 1).replace("Prolog  ", "Prolog[0]", 1)
"""As 22.05.8 and 24.11.5 print it."""
SCRIPTS_OF_REPOSITORY = Path(__file__).parents[3] / "playbooks/files/slurm"


@pytest.fixture
def node(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    host.nvml.all = [h200(0), h200(1)]
    for name in ("0", "1"):
        host.desired(name, ExpectedClients=8, OverExpected="wait", DeviceMemoryLimit="12%", MultiUser="yes")
    monkeypatch.setattr(scontrol, "configuration", lambda: OLD)
    monkeypatch.setattr(scontrol, "node", lambda node: f"NodeName={node} Gres=gpu:2,shard:16 GresDrain=N/A")
    monkeypatch.setattr(Places, "scripts", property(lambda places: Path(FOLDER)))
    return host


def lacks(text: str, own_scripts: bool = False) -> list[str]:
    found = slurm_check.of_configuration(slurm_check.parsed(text), Places(), own_scripts)
    return [one.expected for one in found if not one.only_advice]


@pytest.mark.parametrize("text", [OLD, NEW], ids=["22.05", "24.11"])
def test_what_both_releases_print_is_read(text: str) -> None:
    assert lacks(text) == []


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (f"{FOLDER}/slurm-prolog", "(null)", f"Prolog={FOLDER}/slurm-prolog"),
        (f"{FOLDER}/slurm-epilog", "/etc/slurm/epilog", f"Epilog={FOLDER}/slurm-epilog"),
        ("= Alloc", "= (null)", "PrologFlags=Alloc"),
        ("gpu,shard", "gpu", "GresTypes=gpu,shard"),
        ("gpu,shard", "gpu,mps,shard", "gpu and shard alone"),
    ],
)
def test_each_line_that_lacks(was: str, now: str, expected: str) -> None:
    assert lacks(OLD.replace(was, now)) == [expected]


def test_a_folder_of_scripts_and_a_sites_own_are_taken() -> None:
    assert lacks(OLD.replace(f"{FOLDER}/slurm-prolog", f"{FOLDER}/*")) == []
    assert lacks(OLD.replace(FOLDER, "/etc/slurm"), own_scripts=True) == []


def test_a_node_that_has_all_of_it(node: Host, mpsctl: Shell) -> None:
    assert mpsctl("slurm", "check", "--node", "n1") == 0
    found = mpsctl.json("slurm", "check", "--node", "n1")
    assert (found["good"], found["lacks"], found["instances"]) == (True, [], ["0", "1"])
    assert found["lines"]["gres.conf"] == ["Name=gpu File=/dev/nvidia[0-1]", "Name=shard Count=16"]


@pytest.mark.parametrize(
    ("keys", "gres", "good"),
    [
        ({"OverExpected": None}, "gpu:2,shard:16", False),
        ({"ExpectedClients": 4}, "gpu:2,shard:16", False),
        ({"GPUs": "0 1"}, "gpu:2,shard:16", False),
        ({}, "gpu:2,shard:15", False),
        ({"MultiUser": None}, "gpu:2,shard:16", True),
        ({"DeviceMemoryLimit": None}, "gpu:2,shard:16", True),
        ({"ExpectedClients": 12}, "gpu:2,shard:16", True),
    ],
)
def test_what_is_needed_and_what_is_advice(
    node: Host, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object], gres: str, good: bool
) -> None:
    base = {"ExpectedClients": 8, "OverExpected": "wait", "DeviceMemoryLimit": "12%", "MultiUser": "yes"}
    node.places.conf("1").unlink()
    node.desired("0", **{**base, **keys})
    monkeypatch.setattr(scontrol, "node", lambda node: f"NodeName={node} Gres={gres}")
    found = mpsctl.json("slurm", "check", "--node", "n1")
    assert (found["good"], len(found["lacks"])) == (good, 1), json.dumps(found)
    assert mpsctl("slurm", "check", "--node", "n1") == (0 if good else 1)


def test_the_scripts_are_ours_and_go_with_all_the_rest(host: Host) -> None:
    names = sorted(path.name for path in SCRIPTS_OF_REPOSITORY.iterdir())
    assert names == sorted(SCRIPTS)
    host.places.scripts.mkdir(parents=True)
    for name in names:
        (host.places.scripts / name).write_text((SCRIPTS_OF_REPOSITORY / name).read_text())
    drop_in = host.places.units / "slurmd.service.d" / "mps-fleet.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"{FINGERPRINT}\n[Unit]\n")
    assert removal.remove(host.world, check=True).error is None
    assert drop_in.exists()
    assert removal.remove(host.world, check=False).error is None
    assert not host.places.scripts.exists()
    assert not drop_in.parent.exists()


def test_a_script_of_the_sites_under_our_name_stays(host: Host) -> None:
    host.places.scripts.mkdir(parents=True)
    theirs = host.places.scripts / "slurm-prolog"
    theirs.write_text("#!/bin/sh\nexit 0\n")
    answer = removal.remove(host.world, check=False)
    assert theirs.exists()
    assert any(str(theirs) in line for line in answer.warnings)
