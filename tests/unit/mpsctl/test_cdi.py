"""The file by which container engines know the instances: what CDI takes, kept true by every run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from converging import Fleet, conf
from mpsctl.causes import containers
from mpsctl.converge import removal
from mpsctl.model import cdi
from mpsctl.model.instance import Instance
from mpsctl.model.places import FINGERPRINT

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9{more}]*[A-Za-z0-9])?"
VENDOR, CLASS = (
    re.compile(r"(?=[A-Za-z])" + _WORD.format(more="_.-")),
    re.compile(r"(?=[A-Za-z])" + _WORD.format(more="_-")),
)
DEVICE = re.compile(_WORD.format(more="_.:-"))
EDITS = {"env", "mounts", "deviceNodes", "hooks"}


def legal(text: str) -> dict[str, Any]:
    """A specification, held against the rules of CDI 0.5.0: an engine drops a file that breaks one of them whole."""
    found: dict[str, Any] = yaml.safe_load(text)
    assert set(found) <= {"cdiVersion", "kind", "devices", "containerEdits"}
    assert found["cdiVersion"] == "0.5.0"
    vendor, _, kind = found["kind"].partition("/")
    assert VENDOR.fullmatch(vendor)
    assert CLASS.fullmatch(kind)
    names = [device["name"] for device in found["devices"]]
    assert names
    assert len(set(names)) == len(names)
    for device in found["devices"]:
        assert set(device) == {"name", "containerEdits"}
        assert isinstance(device["name"], str)
        assert DEVICE.fullmatch(device["name"]), device["name"]
        edits = device["containerEdits"]
        assert set(edits) <= EDITS
        assert any(edits.values()), "a device that changes nothing is none"
        assert all(isinstance(one, str) and "=" in one.strip("=") for one in edits["env"])
        for mount in edits["mounts"]:
            assert set(mount) <= {"hostPath", "containerPath", "options"}, "0.5.0 has no more"
            assert all(str(mount[key]).startswith("/") for key in ("hostPath", "containerPath"))
    return found


def read(path: Path) -> dict[str, Any]:
    return {device["name"]: device["containerEdits"] for device in legal(path.read_text())["devices"]}


@pytest.fixture
def told(fleet: Fleet) -> Fleet:
    """A host whose engines are to be told."""
    fleet.more = {"cdi": True}
    return fleet


def test_each_instance_is_a_device_with_its_directory_and_variable(told: Fleet) -> None:
    assert told.converge(_0=conf(told), yes=conf(told, "yes", GPUs="1")).error is None
    devices = read(told.host.places.cdi)
    assert list(devices) == ["0", "yes"]
    public = str(told.host.pipe_root / "yes")
    assert devices["yes"]["env"] == [f"CUDA_MPS_PIPE_DIRECTORY={public}"]
    (mount,) = devices["yes"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == (public, public)
    assert {"ro", "bind"} <= set(mount["options"])
    assert told.host.places.cdi.stat().st_mode & 0o7777 == 0o644


def test_without_the_front_door_a_container_may_write_as_the_clients_of_earlier_drivers_do() -> None:
    text = cdi.specification([Instance("0", ("0",), "/run/nvidia-mps/0", front_door=False)])
    assert text is not None
    (device,) = legal(text)["devices"]
    assert "ro" not in device["containerEdits"]["mounts"][0]["options"]


def test_a_second_run_changes_nothing_and_a_check_only_says_it(told: Fleet) -> None:
    answer = told.check(_0=conf(told))
    assert f"write {told.host.places.cdi}" in answer.actions
    assert not told.host.places.cdi.parent.exists()
    told.converge(_0=conf(told))
    again = told.converge(_0=conf(told))
    assert (again.changed, again.actions) == (False, [])


def test_what_somebody_changed_in_it_is_put_right(told: Fleet) -> None:
    told.converge(_0=conf(told))
    path = told.host.places.cdi
    before = path.read_text()
    path.write_text(before.replace("CUDA_MPS_PIPE", "ANOTHER"))
    assert told.converge(_0=conf(told)).actions == [f"write {path}"]
    assert path.read_text() == before


def test_it_follows_the_instances_and_goes_with_the_last(told: Fleet) -> None:
    told.converge(_0=conf(told), _1=conf(told, "1"))
    told.converge(_1=conf(told, "1"))
    assert list(read(told.host.places.cdi)) == ["1"]
    assert told.converge().error is None
    assert not told.host.places.cdi.parent.exists()


def test_it_goes_where_it_is_no_longer_desired_and_leaves_other_vendors(told: Fleet) -> None:
    told.converge(_0=conf(told))
    others = told.host.places.cdi.with_name("nvidia.yaml")
    others.write_text("kind: nvidia.com/gpu\n")
    told.more = {}
    assert told.converge(_0=conf(told)).actions == [f"remove {told.host.places.cdi}"]
    assert list(others.parent.iterdir()) == [others]


def test_an_instance_whose_gpu_is_gone_for_now_keeps_its_device(told: Fleet) -> None:
    text = told.host.conf("%i", {"GPUs": "%i", "PipeDirectory": f"{told.host.pipe_root}/%i"})
    told.run(False, {}, per_gpu=text)
    before = told.host.places.cdi.read_text()
    told.host.nvml.lost = {1}
    told.run(False, {}, per_gpu=text)
    assert told.host.places.conf("1").exists()
    assert told.host.places.cdi.read_text() == before


def test_somebody_elses_file_under_the_name_stays_and_is_named(told: Fleet) -> None:
    path = told.host.places.cdi
    path.parent.mkdir(parents=True)
    path.write_text("kind: mps-fleet/instance\n")
    answer = told.converge(_0=conf(told))
    assert answer.error is not None
    assert str(path) in answer.error
    assert told.host.running("0"), "all else is done"
    told.more = {}
    assert told.converge(_0=conf(told)).error is None
    assert path.read_text() == "kind: mps-fleet/instance\n"


def test_a_name_that_cdi_does_not_take_costs_the_others_nothing(told: Fleet) -> None:
    answer = told.converge(_0=conf(told), **{"train-": conf(told, "train-", GPUs="1")})
    assert list(read(told.host.places.cdi)) == ["0"]
    assert any("train-" in line for line in answer.warnings)


def test_a_removal_takes_it_and_what_an_interrupted_run_left_beside_it(told: Fleet) -> None:
    told.converge(_0=conf(told))
    path = told.host.places.cdi
    path.with_name(f".{path.name}.{1 << 22}.new").write_text(f"{FINGERPRINT}: writ")
    removal.remove(told.host.world, False, "terminate")
    assert not path.parent.exists()


def test_a_removal_leaves_and_names_what_is_not_ours(told: Fleet) -> None:
    path = told.host.places.cdi
    path.parent.mkdir(parents=True)
    path.write_text("kind: mps-fleet/instance\n")
    answer = removal.remove(told.host.world, False)
    assert path.exists()
    assert f"{path} is not ours and stays" in answer.warnings


INSTANCE = Instance("0", ("0",), "/run/nvidia-mps/0")
DEVICES = ["nvidia.com/gpu=0", "mps-fleet/instance=0"]
OF_DOCKER = {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": DEVICES}]}, "Config": {}}
OF_PODMAN = {
    "HostConfig": {"Devices": []},
    "Config": {"CreateCommand": ["podman", "run", *(f"--device={one}" for one in DEVICES), "image"]},
}
OF_COMPOSE = {
    "services": {
        "a": {
            "deploy": {
                "resources": {
                    "reservations": {"devices": [{"driver": "cdi", "device_ids": DEVICES, "capabilities": ["gpu"]}]}
                }
            }
        }
    }
}


@pytest.mark.parametrize("configuration", [OF_DOCKER, OF_PODMAN, OF_COMPOSE], ids=["docker", "podman", "compose"])
def test_the_doctor_knows_that_a_container_has_an_instance_by_cdi(configuration: dict[str, Any]) -> None:
    (container,) = containers.read(yaml.safe_dump(configuration))
    assert container.by_cdi == ("0",)
    assert {one.name for one in containers.lint(container, [INSTANCE], "580.1")} <= {"container-ipc"}
