"""reconcile: a host is brought into the desired state in one call, or told what would be done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import pytest

from converging import UNIT_TEXT, Fleet, as_desired, conf
from fakes import h200, split_by_mig, uuid
from mpsctl.adapters import hardware
from mpsctl.converge.request import Request
from mpsctl.model.errors import BadValue

MIB = 1 << 20


# -- the first time


def test_a_bare_host_gets_program_unit_and_instances_and_they_run(fleet: Fleet) -> None:
    answer = fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    assert answer.error is None
    assert answer.changed
    places = fleet.host.places
    assert places.program.read_bytes() == b"the program"
    assert places.program.stat().st_mode & 0o7777 == 0o755
    assert fleet.unit.read_text() == UNIT_TEXT.replace("@NVIDIA_CUDA_MPS_CONTROL@", "/usr/bin/nvidia-cuda-mps-control")
    for name in ("0", "1"):
        assert fleet.host.running(name).limits == {"0": 4096 * MIB}
        assert as_desired(answer, name)
    assert fleet.host.systemd.acts == [
        "enable mps-control@0.service mps-control@1.service mps-front-door@0.socket mps-front-door@1.socket",
        "daemon-reload",
        "stop mps-front-door@0.service mps-front-door@1.service",
        "start mps-front-door@0.socket mps-front-door@1.socket",
        "start mps-control@0.service mps-control@1.service",
    ]


def test_what_is_done_is_what_is_listed(fleet: Fleet) -> None:
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == [
        f"install {fleet.host.places.program}",
        f"write {fleet.unit}",
        f"write {fleet.host.places.conf('0')}",
        f"write {fleet.host.places.client_environment('0')}",
        "enable mps-control@0.service",
        "enable mps-front-door@0.socket",
        "reload systemd's units",
        f"open the front door of {fleet.host.pipe_root / '0'}",
        "start mps-control@0.service",
    ]
    assert [step["text"] for step in answer.steps] == answer.actions
    assert [entry["after_header"] for entry in answer.diff[1:3]] == [
        str(fleet.unit),
        str(fleet.host.places.conf("0")),
    ]


def test_with_check_a_bare_host_is_told_the_same_and_nothing_changes(fleet: Fleet) -> None:
    before = fleet.host.snapshot()
    told = fleet.check(_0=conf(fleet))
    assert fleet.host.snapshot() == before
    assert fleet.host.systemd.acts == []
    assert fleet.host.nvml.modes_set == []
    assert told.changed
    done = fleet.converge(_0=conf(fleet))
    assert (told.actions, told.diff) == (done.actions, done.diff)


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    before, acts = fleet.host.snapshot(), list(fleet.host.systemd.acts)
    answer = fleet.converge(_0=conf(fleet))
    assert not answer.changed
    assert answer.actions == []
    assert answer.diff == []
    assert fleet.host.snapshot() == before
    assert fleet.host.systemd.acts == acts


def test_one_instance_per_gpu(fleet: Fleet) -> None:
    answer = fleet.run(False, {}, per_gpu=fleet.host.conf("of each GPU", DeviceMemoryLimit="20%"))
    assert answer.error is None
    assert list(answer.instances) == ["0", "1", "2", "3"]
    for name in "0123":
        assert fleet.host.running(name).limits == {"0": 28_754 * MIB}


def test_modes_are_those_that_are_desired_whatever_the_umask(fleet: Fleet) -> None:
    before = os.umask(0o077)
    try:
        fleet.converge(_0=conf(fleet))
    finally:
        os.umask(before)
    for path in (fleet.unit, fleet.host.places.conf("0")):
        assert path.stat().st_mode & 0o7777 == 0o644
        assert path.parent.stat().st_mode & 0o7777 == 0o755


def test_a_mode_changed_by_hand_is_a_difference(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.places.conf("0").chmod(0o600)
    assert fleet.converge(_0=conf(fleet)).changed
    assert fleet.host.places.conf("0").stat().st_mode & 0o7777 == 0o644


# -- refusals: nothing is changed


def refused(fleet: Fleet, **confs: str) -> str:
    before = fleet.host.snapshot()
    answer = fleet.converge(**confs)
    assert fleet.host.snapshot() == before
    assert fleet.host.systemd.acts == []
    assert not answer.changed
    assert answer.refused is not None
    assert "\n" not in answer.refused
    return answer.refused


def test_a_gpu_that_the_host_lacks_is_refused_with_what_it_has(fleet: Fleet) -> None:
    text = refused(fleet, _0=conf(fleet), _9=conf(fleet, "9"))
    assert text.startswith("mps_instances: found GPU 9, expected one of this host's: 0 = ")


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({"DeviceMemoryLimit": "20"}, "mps_device_memory_limit"),
        ({"DeviceMemoryLimit": "141G"}, "mps_device_memory_limit"),
        ({"ActiveThreadPercentage": "101"}, "mps_active_thread_percentage"),
        ({"ClientPriority": "2"}, "mps_client_priority"),
        ({"ComputeMode": "exclusive"}, "mps_compute_mode"),
        ({"PipeDirectory": "/tmp/mps"}, "mps_pipe_root"),
        ({"DriverTimeoutSec": "0"}, "mps_driver_timeout_s"),
        ({"StopTimeoutSec": "0"}, "mps_stop_timeout_s"),
        ({"GPUs": "one"}, "mps_instances"),
    ],
)
def test_a_bad_value_is_refused_under_the_roles_variable(
    fleet: Fleet, values: dict[str, object], variable: str
) -> None:
    assert refused(fleet, _0=conf(fleet, "0", **values)).startswith(f"{variable}: found ")


def test_two_instances_on_one_gpu_under_two_names_are_refused(fleet: Fleet) -> None:
    text = refused(fleet, a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs=f"1 {uuid(0)}"))
    assert text.startswith(f"mps_instances: found GPU {uuid(0)} in the instances 'a' and 'b'")


def test_exclusive_process_on_a_mig_device_is_refused(fleet: Fleet) -> None:
    fleet.host.nvml.all[2] = split_by_mig(2)
    text = refused(fleet, m=conf(fleet, "m", GPUs=uuid(300, "MIG")))
    assert text.startswith("mps_compute_mode: found exclusive_process on MIG device")


def test_a_host_without_gpus_fails_alone_where_each_gpu_should_have_one(fleet: Fleet) -> None:
    """A dead GPU is the host's fault and no bad input, which would stop the whole fleet."""
    fleet.host.nvml.all.clear()
    answer = fleet.run(False, {}, per_gpu=fleet.host.conf())
    assert answer.refused is None
    assert answer.error is not None
    assert "no GPU of this host answers" in answer.error
    assert not answer.changed


def test_one_refused_instance_keeps_the_others_unchanged_too(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.acts.clear()
    refused(fleet, _0=conf(fleet, DeviceMemoryLimit="6G"), _1=conf(fleet, "1", DeviceMemoryLimit="20"))
    assert fleet.host.running().limits == {"0": 4096 * MIB}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"format": 1, "files": []},
        {"format": 2},
        {"format": 2, "files": [{"path": "/x"}]},
        {"format": 2, "files": [], "instances": [{"name": "0"}]},
        {"format": 2, "files": [{"path": "/x", "content": "", "mode": "rw-r--r--"}]},
    ],
)
def test_a_request_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(BadValue, match="a request that is not of format 2"):
        Request.from_json(data)


# -- what is missing


@pytest.mark.parametrize("what", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
def test_a_missing_binary_is_named_before_anything_is_changed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(hardware, "binary", lambda name: None if name == what else Path("/usr/bin") / name)
    before = fleet.host.snapshot()
    answer = fleet.converge(_0=conf(fleet))
    assert answer.missing is not None
    assert answer.missing["what"] == what
    assert "mps_package" in answer.missing["message"]
    assert not answer.changed
    assert fleet.host.snapshot() == before


def test_a_driver_that_does_not_answer_is_an_error_and_nothing_is_changed(fleet: Fleet) -> None:
    fleet.host.nvml.driver_up = False
    before = fleet.host.snapshot()
    answer = fleet.converge(_0=conf(fleet))
    assert "Driver Not Loaded" in str(answer.error)
    assert not answer.changed
    assert fleet.host.snapshot() == before


# -- failures


def test_a_write_that_fails_leaves_no_half_written_file_and_says_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.converge(_0=conf(fleet))
    before = {path: about[3] for path, about in fleet.host.snapshot().items()}
    sync = os.fsync
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 2:  # the program and its directory go through, the first file does not
            raise OSError(28, "No space left on device")
        sync(descriptor)

    fleet.program.write_bytes(b"another program")
    fleet.unit_text += "# another line\n"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert "No space left" in str(answer.error)
    after = {path: about[3] for path, about in fleet.host.snapshot().items()}
    assert after == {
        **before,
        str(fleet.program): b"another program",
        str(fleet.host.places.program): b"another program",
    }
    assert fleet.host.running().limits == {"0": 4096 * MIB}


def test_an_interrupted_run_converges_when_run_again(fleet: Fleet) -> None:
    fleet.host.systemd.fails["daemon-reload"] = "Failed to reload daemon: Connection timed out"
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error == "systemctl daemon-reload: Failed to reload daemon: Connection timed out"
    fleet.host.systemd.fails.clear()
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert as_desired(answer, "0")


def test_what_does_not_come_up_is_reported_with_the_last_words_of_its_journal(fleet: Fleet) -> None:
    fleet.host.nvml.refuses = "Insufficient Permissions"
    answer = fleet.converge(_0=conf(fleet))
    assert "mps-control@0.service is inactive" in str(answer.error)
    assert "its journal ends: the last words of mps-control@0.service" in str(answer.error)
    assert "\n" not in str(answer.error)


def test_one_instance_that_fails_does_not_keep_the_others_down(fleet: Fleet) -> None:
    fleet.host.nvml.all[0] = h200(0, compute_mode=None)
    answer = fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    assert "mps-control@0.service" in str(answer.error)
    assert as_desired(answer, "1")


def test_nothing_is_reported_done_that_does_not_read_back(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.running().deaf_to = "set_"
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert "memory limit of device 0 (default): the daemon shows 4G" in str(answer.error)
    assert "desired 6144 MiB" in str(answer.error)


def test_a_problem_of_systemd_that_left_everything_in_the_desired_state_is_a_warning(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.unit("mps-control@0.service").enabled = False
    carry_out = fleet.host.systemd.act

    def grumbling(verb: str, units: object = ()) -> Optional[str]:
        carry_out(verb, units)  # type: ignore[arg-type]
        return "a warning of systemctl" if verb == "enable" else None

    fleet.host.systemd.act = grumbling  # type: ignore[method-assign]
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert answer.warnings == ["a warning of systemctl"]


def test_a_gpu_older_than_volta_is_warned_about(fleet: Fleet) -> None:
    fleet.host.nvml.all[3] = h200(3, name="Tesla P4", compute_capability=(6, 1))
    answer = fleet.converge(_0=conf(fleet))
    assert any("Tesla P4" in warning and "older than Volta" in warning for warning in answer.warnings)


def test_the_answer_is_plain_data_of_format_2(fleet: Fleet) -> None:
    data = json.loads(json.dumps(fleet.converge(_0=conf(fleet)).as_json()))
    assert data["format"] == 2
    for step in data["steps"]:
        assert set(step) >= {"kind", "text", "instance", "live", "ends_clients"}
    assert set(data) >= {
        "check",
        "changed",
        "refused",
        "missing",
        "error",
        "diff",
        "actions",
        "steps",
        "progress",
        "pending",
        "instances",
        "warnings",
        "host",
    }
