"""reconcile: a host is brought into the desired state in one call, or told what would be done."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Optional

import pytest

from fakes import FakeDaemon, Host, h200, split_by_mig, uuid
from mpsctl.adapters import hardware, procfs
from mpsctl.converge import reconcile
from mpsctl.converge.reconcile import Answer, Request
from mpsctl.model.errors import BadValue
from mpsctl.store import drains

MIB = 1 << 20
UNIT_TEXT = "# Managed by mps-fleet\n[Service]\nExecStart=@NVIDIA_CUDA_MPS_CONTROL@ -f\n"
TIMER = "mps-health.timer"


class Fleet:
    """A request as the role makes it, for one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unit = host.places.units / "mps-control@.service"
        self.program = host.places.root / "sent-by-ansible"
        self.program.write_bytes(b"the program")
        self.unit_text = UNIT_TEXT
        self.timer: Optional[str] = None
        """the text of a timer, where one is desired"""
        self.more: dict[str, Any] = {}
        """further keys of the request"""

    def request(self, confs: dict[str, str], per_gpu: Optional[str] = None) -> Request:
        files = [{"path": str(self.unit), "content": self.unit_text, "mode": "0644"}]
        if self.timer is not None:
            path = self.host.places.units / TIMER
            files.append({"path": str(path), "content": self.timer, "mode": "0644"})
        return Request.from_json(
            {
                "format": 1,
                "files": files,
                "units": [] if self.timer is None else [TIMER],
                "instances": [{"name": name, "conf": conf} for name, conf in confs.items()],
                "instance_per_gpu": per_gpu,
                **self.more,
            }
        )

    def run(self, check: bool, confs: dict[str, str], per_gpu: Optional[str] = None) -> Answer:
        """Instances by name: ``_0`` stands for 0, which is no name for an argument."""
        named = {name.lstrip("_"): conf for name, conf in confs.items()}
        return reconcile.reconcile(self.host.world, self.request(named, per_gpu), check, self.program)

    def converge(self, **confs: str) -> Answer:
        return self.run(False, confs)

    def check(self, **confs: str) -> Answer:
        return self.run(True, confs)


@pytest.fixture
def fleet(host: Host) -> Fleet:
    return Fleet(host)


def conf(fleet: Fleet, name: str = "0", **values: object) -> str:
    desired = {"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process", **values}
    return fleet.host.conf(name, desired)


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
        assert answer.instances[name]["as_desired"]
    assert fleet.host.systemd.acts == [
        "enable mps-control@0.service mps-control@1.service",
        "daemon-reload",
        "start mps-control@0.service mps-control@1.service",
    ]


def test_what_is_done_is_what_is_listed(fleet: Fleet) -> None:
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == [
        f"install {fleet.host.places.program}",
        f"write {fleet.unit}",
        f"write {fleet.host.places.conf('0')}",
        "enable mps-control@0.service",
        "start mps-control@0.service",
    ]
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
        {"format": 2, "files": []},
        {"format": 1},
        {"format": 1, "files": [{"path": "/x"}]},
        {"format": 1, "files": [], "instances": [{"name": "0"}]},
        {"format": 1, "files": [{"path": "/x", "content": "", "mode": "rw-r--r--"}]},
    ],
)
def test_a_request_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(BadValue, match="a request that is not of format 1"):
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


# -- changes


def test_a_new_limit_goes_in_force_by_a_reload_and_nothing_is_restarted(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    daemon = fleet.host.running()
    server = daemon.start_server(9001, clients=[4242])
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert answer.error is None
    assert fleet.host.systemd.acts == ["reload mps-control@0.service"]
    assert fleet.host.running() is daemon
    assert daemon.limits == server.limits == {"0": 6144 * MIB}
    assert any("desired 6144 MiB" in action for action in answer.actions)


def test_a_limit_changed_on_the_host_by_hand_is_brought_back(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.running().limits["0"] = 0
    assert fleet.converge(_0=conf(fleet)).changed
    assert fleet.host.running().limits == {"0": 4096 * MIB}


def test_a_new_timeout_is_written_and_disturbs_nobody(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(_0=conf(fleet, StopTimeoutSec=60))
    assert answer.actions == [f"write {fleet.host.places.conf('0')}"]
    assert fleet.host.systemd.acts == []


def test_a_new_unit_is_loaded_and_disturbs_nobody(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.acts.clear()
    fleet.unit_text += "# another line\n"
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == [f"write {fleet.unit}"]
    assert fleet.host.systemd.acts == ["daemon-reload"]


def test_units_that_systemd_has_not_read_yet_are_loaded(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.acts.clear()
    fleet.host.systemd.unit("mps-control@0.service").stale = True
    assert fleet.converge(_0=conf(fleet)).actions == ["reload systemd's units"]
    assert fleet.host.systemd.acts == ["daemon-reload"]
    assert not fleet.converge(_0=conf(fleet)).changed


def test_another_gpu_needs_a_restart_and_gets_one_where_nobody_is_disturbed(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert answer.error is None
    assert fleet.host.systemd.acts == ["restart mps-control@a.service"]
    assert answer.instances["a"]["gpus"][0]["uuid"] == uuid(1)


def test_the_gpu_that_an_instance_has_left_gets_its_compute_mode_back(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert [fleet.host.nvml.gpu(index).compute_mode for index in (0, 1)] == ["default", "exclusive_process"]


def test_clients_in_the_way_of_a_restart_are_left_alone_and_named(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    daemon = fleet.host.running("a")
    client = fleet.host.process("python3", "python3 serve.py", {}, uid=1000)
    daemon.start_server(9001, clients=[client])
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert answer.error is None
    assert fleet.host.systemd.acts == []
    assert fleet.host.running("a") is daemon
    (pending,) = answer.pending
    assert pending["instance"] == "a"
    assert f"desired {uuid(1)}" in pending["why"]
    assert pending["clients"] == [
        {"pid": client, "uid": 1000, "user": procfs.user(1000), "command": "python3 serve.py", "age_s": 0}
    ]


def test_what_is_pending_is_done_once_the_clients_are_gone(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.host.running("a").start_server(9001, clients=[4242])
    desired = conf(fleet, "a", GPUs="1")
    fleet.converge(a=desired)
    assert fleet.converge(a=desired).pending
    assert not fleet.converge(a=desired).changed
    fleet.host.running("a").servers[9001].clients.clear()
    answer = fleet.converge(a=desired)
    assert answer.pending == []
    assert answer.instances["a"]["gpus"][0]["uuid"] == uuid(1)


def test_a_deferred_restart_holds_back_no_limit(fleet: Fleet) -> None:
    """Clients that connect meanwhile get the new limit; the daemon is the same."""
    fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="4G"))
    daemon = fleet.host.running("a")
    daemon.start_server(9001, clients=[4242])
    desired = conf(fleet, "a", GPUs="1", DeviceMemoryLimit="6G")
    assert fleet.converge(a=desired).pending
    assert fleet.host.running("a") is daemon
    assert daemon.limits == {"0": 6144 * MIB}
    assert daemon.servers[9001].limits == {"0": 6144 * MIB}
    assert not fleet.converge(a=desired).changed


def test_a_gpu_whose_clients_wait_keeps_its_compute_mode_while_others_move(fleet: Fleet) -> None:
    """In another mode any process could use it beside them."""
    fleet.converge(a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs="1"))
    fleet.host.running("a").start_server(9001, clients=[4242])
    answer = fleet.converge(a=conf(fleet, "a", GPUs="2"), b=conf(fleet, "b", GPUs="3"))
    assert [entry["instance"] for entry in answer.pending] == ["a"]
    assert fleet.host.nvml.gpu(0).compute_mode == "exclusive_process"
    assert fleet.host.nvml.gpu(1).compute_mode == "default"


def test_a_gpu_whose_clients_wait_gets_no_second_daemon(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs="1"))
    fleet.host.running("a").start_server(9001, clients=[4242])
    fleet.host.systemd.acts.clear()
    desired = {"a": conf(fleet, "a", GPUs="2"), "b": conf(fleet, "b", GPUs="0"), "c": conf(fleet, "c", GPUs="1")}
    answer = fleet.converge(**desired)
    assert answer.error is None
    assert [(entry["instance"], entry["clients"][0]["pid"]) for entry in answer.pending] == [
        ("a", 4242),
        ("b", 4242),
        ("c", 4242),
    ]
    assert "the instance 'a' still serves GPU 0" in answer.pending[1]["why"]
    assert fleet.host.systemd.acts == ["enable mps-control@c.service", "daemon-reload"]
    fleet.host.running("a").servers.clear()
    answer = fleet.converge(**desired)
    assert (answer.error, answer.pending) == (None, [])
    assert [answer.instances[name]["gpus"][0]["index"] for name in "abc"] == [2, 0, 1]


def test_the_gpu_of_an_instance_that_is_no_longer_desired_gets_no_second_daemon_either(fleet: Fleet) -> None:
    fleet.converge(old=conf(fleet, "old", GPUs="0"))
    fleet.host.running("old").start_server(9001, clients=[4242])
    answer = fleet.converge(new=conf(fleet, "new", GPUs="0"))
    assert [entry["instance"] for entry in answer.pending] == ["old", "new"]
    assert fleet.host.systemd.unit("mps-control@new.service").main_pid == 0


def test_an_instance_that_died_is_started_again(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.kill(fleet.host.running().pid)
    unit = fleet.host.systemd.unit("mps-control@0.service")
    unit.active_state, unit.main_pid = "failed", 0
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == ["start mps-control@0.service"]
    assert answer.instances["0"]["as_desired"]


def test_a_newer_program_is_installed_and_an_equal_one_is_not(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.program.write_bytes(b"another program")
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == [f"install {fleet.host.places.program}"]
    assert answer.diff[0]["before"].startswith("sha256 ")
    assert fleet.host.places.program.read_bytes() == b"another program"


# -- units beside the instances


def with_timer(fleet: Fleet) -> Fleet:
    fleet.timer = "# Managed by mps-fleet\n[Timer]\nOnActiveSec=60\n"
    return fleet


def test_a_timer_is_enabled_and_started_and_then_left_alone(fleet: Fleet) -> None:
    with_timer(fleet)
    told = fleet.check(_0=conf(fleet))
    assert not fleet.host.systemd.unit(TIMER).enabled
    done = fleet.converge(_0=conf(fleet))
    assert (told.actions, told.diff) == (done.actions, done.diff)
    assert done.error is None
    assert [action for action in done.actions if TIMER in action] == [
        f"write {fleet.host.places.units / TIMER}",
        f"enable {TIMER}",
        f"start {TIMER}",
    ]
    assert fleet.host.systemd.acts == [
        f"enable mps-control@0.service {TIMER}",
        "daemon-reload",
        f"start mps-control@0.service {TIMER}",
    ]
    fleet.host.systemd.acts.clear()
    assert not fleet.converge(_0=conf(fleet)).changed
    assert fleet.host.systemd.acts == []


def test_a_timer_costs_a_look_no_further_question_to_systemd(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    before = fleet.host.systemd.shows
    fleet.check(_0=conf(fleet))
    without = fleet.host.systemd.shows - before
    fleet.converge(_0=conf(with_timer(fleet)))
    before = fleet.host.systemd.shows
    fleet.check(_0=conf(fleet))
    assert fleet.host.systemd.shows - before == without


@pytest.mark.parametrize(
    ("enabled", "state", "acts"),
    [
        (False, "active", [f"enable {TIMER}", "daemon-reload"]),
        (True, "inactive", [f"start {TIMER}"]),
        (True, "failed", [f"start {TIMER}"]),
    ],
)
def test_a_timer_changed_by_hand_is_brought_back(fleet: Fleet, enabled: bool, state: str, acts: list[str]) -> None:
    fleet.converge(_0=conf(with_timer(fleet)))
    fleet.host.systemd.acts.clear()
    unit = fleet.host.systemd.unit(TIMER)
    unit.enabled, unit.active_state = enabled, state
    assert fleet.converge(_0=conf(fleet)).error is None
    assert fleet.host.systemd.acts == acts


def test_a_new_timer_file_is_taken_up(fleet: Fleet) -> None:
    fleet.converge(_0=conf(with_timer(fleet)))
    fleet.host.systemd.acts.clear()
    fleet.timer = f"{fleet.timer}# another line\n"
    answer = fleet.converge(_0=conf(fleet))
    assert fleet.host.systemd.acts == ["daemon-reload", f"restart {TIMER}"]
    assert f"restart {TIMER}: its file has changed" in answer.actions


def test_a_timer_that_does_not_come_up_is_an_error(fleet: Fleet) -> None:
    with_timer(fleet)
    fleet.host.systemd.fails["start"] = f"Unit {TIMER} not found."
    assert f"{TIMER}: it is inactive, expected enabled and active" in str(fleet.converge(_0=conf(fleet)).error)


# -- clients


def test_a_client_that_bypassed_its_limit_is_a_warning_and_fails_no_run(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    daemon = fleet.host.running()
    pid = fleet.host.client(variable="1G")
    daemon.start_server(9001, clients=[pid])
    answer = fleet.converge(_0=conf(fleet))
    assert (answer.error, answer.changed) == (None, False)
    assert len(answer.warnings) == 1
    assert f"0: client {pid} " in answer.warnings[0]
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert answer.error is None
    assert len(answer.warnings) == 1
    assert not answer.instances["0"]["as_desired"]
    assert not any("bypassed" in action for action in answer.actions)


def test_a_limit_that_only_the_log_shows_to_be_wrong_is_brought_back(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    daemon = fleet.host.running()
    daemon.start_server(9001)
    daemon.ask(["set_device_pinned_mem_limit 9001 0 4500M"])
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert answer.changed
    assert daemon.servers[9001].limits == {"0": 4096 * MIB}
    assert not fleet.converge(_0=conf(fleet)).changed


# -- instances that are no longer desired


def test_an_instance_of_ours_that_is_no_longer_desired_is_stopped_and_removed(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(_0=conf(fleet))
    assert answer.actions == ["stop and remove mps-control@1.service"]
    assert fleet.host.systemd.acts == ["disable mps-control@1.service", "stop mps-control@1.service"]
    assert not fleet.host.places.conf("1").exists()
    assert fleet.host.nvml.gpu(1).compute_mode == "default"
    assert not fleet.converge(_0=conf(fleet)).changed


def test_with_check_an_instance_that_is_no_longer_desired_is_told_and_stays(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    before = fleet.host.snapshot()
    answer = fleet.check(_0=conf(fleet))
    assert answer.actions == ["stop and remove mps-control@1.service"]
    assert fleet.host.snapshot() == before


def test_an_instance_that_is_no_longer_desired_waits_for_its_clients(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    fleet.host.running("1").start_server(9001, clients=[4242])
    answer = fleet.converge(_0=conf(fleet))
    assert [(entry["instance"], entry["why"]) for entry in answer.pending] == [
        ("1", "the instance is no longer desired")
    ]
    assert fleet.host.places.conf("1").exists()
    assert not answer.changed


@pytest.mark.parametrize("gone", [["3"], ["0"], ["1", "2"]])
@pytest.mark.parametrize("check", [True, False])
def test_a_request_for_every_gpu_keeps_the_instance_of_a_gpu_that_is_gone(
    fleet: Fleet, gone: list[str], check: bool
) -> None:
    """Taken for not desired it would be away for good, and the host in the desired state, when a reboot brings the GPU back."""
    template = fleet.host.conf("%i", {"GPUs": "%i", "ComputeMode": "exclusive_process"})
    fleet.run(False, {}, per_gpu=template)
    fleet.host.systemd.acts.clear()
    before = fleet.host.snapshot()
    fleet.host.nvml.all = [gpu for gpu in fleet.host.nvml.all if str(gpu.index) not in gone]
    answer = fleet.run(check, {}, per_gpu=template)
    assert answer.error is None
    assert answer.actions == []
    assert fleet.host.systemd.acts == []
    assert fleet.host.snapshot() == before
    assert [warning.split(":")[0] for warning in answer.warnings] == [
        f"instance {name} is kept, but GPU {name} is gone from this host" for name in sorted(gone)
    ]


def test_a_request_for_every_gpu_removes_the_named_instances_from_before(fleet: Fleet) -> None:
    fleet.converge(small=conf(fleet, "small", GPUs="0"), _9=conf(fleet, "9", GPUs="1"))
    template = fleet.host.conf("%i", {"GPUs": "%i", "ComputeMode": "exclusive_process"})
    answer = fleet.run(False, {}, per_gpu=template)
    assert {"stop and remove mps-control@small.service", "stop and remove mps-control@9.service"} < set(answer.actions)
    assert answer.warnings == []


def test_a_list_of_instances_removes_also_what_was_named_by_a_gpu_that_is_gone(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    fleet.host.nvml.all = fleet.host.nvml.all[:1]
    assert fleet.converge(_0=conf(fleet)).actions == ["stop and remove mps-control@1.service"]


def test_a_file_in_etc_mps_that_is_not_ours_is_left_alone(fleet: Fleet) -> None:
    path = fleet.host.places.conf("by-hand")
    path.parent.mkdir(parents=True)
    path.write_text("[Instance]\nGPUs=3\n")
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert path.read_text() == "[Instance]\nGPUs=3\n"
    assert not any("by-hand" in act for act in fleet.host.systemd.acts)


def test_a_gpu_goes_over_from_an_instance_that_is_no_longer_desired(fleet: Fleet) -> None:
    fleet.converge(old=conf(fleet, "old", GPUs="0"))
    fleet.host.systemd.acts.clear()
    answer = fleet.converge(new=conf(fleet, "new", GPUs="0"))
    assert answer.error is None
    acts = fleet.host.systemd.acts
    assert acts.index("stop mps-control@old.service") < acts.index("start mps-control@new.service")
    assert fleet.host.nvml.gpu(0).compute_mode == "exclusive_process"


# -- consent: a restart that would end clients


TIMEOUT_S = 60
POLICIES = ["refuse", "wait", "terminate"]


def at_work(fleet: Fleet, policy: str, clients: int = 1) -> tuple[FakeDaemon, list[int]]:
    """Instance a serves GPU 0 with clients, under a policy."""
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.more = {"on_clients": policy, "drain_timeout_s": TIMEOUT_S}
    fleet.host.process("mpsctl", "mpsctl reconcile", {}, pid=os.getpid())
    fleet.host.systemd.acts.clear()
    daemon = fleet.host.running("a")
    pids = [fleet.host.client() for _ in range(clients)]
    daemon.start_server(9001, clients=pids)
    return daemon, pids


def moved(fleet: Fleet, check: bool = False) -> Answer:
    """The same instance is desired on GPU 1, which only a restart brings about."""
    return fleet.run(check, {"a": conf(fleet, "a", GPUs="1")})


def restarted(fleet: Fleet, answer: Answer) -> bool:
    acts = fleet.host.systemd.acts
    assert ("restart mps-control@a.service" in acts) == (answer.pending == [])
    return answer.pending == []


@pytest.mark.parametrize("policy", POLICIES)
def test_without_clients_every_policy_restarts_at_once(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy, clients=0)
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert fleet.host.clock.now_s == begun_s
    assert fleet.host.door_is_open("a")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_can_be_changed_live_disturbs_nobody_under_any_policy(fleet: Fleet, policy: str) -> None:
    daemon, pids = at_work(fleet, policy)
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="6G", ActiveThreadPercentage=50))
    assert (answer.error, answer.pending) == (None, [])
    assert fleet.host.systemd.acts == ["reload mps-control@a.service"]
    assert daemon.servers[9001].clients == pids
    assert fleet.host.door_is_open("a")


def test_refuse_names_the_clients_and_does_everything_else(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "refuse", clients=2)
    fleet.host.clock.pass_by(7200)
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="1"), "b": conf(fleet, "b", GPUs="2")})
    assert answer.error is None
    assert answer.instances["b"]["as_desired"]
    assert not restarted(fleet, answer)
    (pending,) = answer.pending
    assert [(one["pid"], one["command"], one["age_s"]) for one in pending["clients"]] == [
        (pid, "python3 serve.py", 7200) for pid in pids
    ]
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert fleet.host.door_is_open("a")


def test_who_computes_beside_the_clients_is_named_by_every_look(fleet: Fleet) -> None:
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    look = reconcile.Request((), confs)
    reconcile.reconcile(fleet.host.world, look, check=False)
    assert reconcile.reconcile(fleet.host.world, look, check=True).warnings == []
    outside = fleet.host.client(CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    fleet.host.nvml.outside_mib = {uuid(0): {outside: 900}}
    (warning,) = reconcile.reconcile(fleet.host.world, look, check=True).warnings
    assert warning.startswith(f"a: pid {outside} (python3 serve.py, ")
    assert "is outside MPS: " in warning
    fleet.host.nvml.held_mib = {uuid(0): {outside: 900}}
    fleet.host.running("a").start_server(9001, [outside])
    assert reconcile.reconcile(fleet.host.world, look, check=True).warnings == []


@pytest.mark.parametrize(("changed", "verb"), [(True, "restart"), (False, "start")])
def test_a_start_that_goes_on_with_an_old_file_is_not_joined(fleet: Fleet, changed: bool, verb: str) -> None:
    """systemd tries a unit again by itself: what it reads then may be the file of before."""
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    reconcile.reconcile(fleet.host.world, reconcile.Request((), confs), check=False)
    unit = fleet.host.systemd.unit("mps-control@a.service")
    fleet.host.kill(unit.main_pid)
    unit.main_pid, unit.active_state, unit.sub_state = 0, "activating", "auto-restart"
    if changed:
        fleet.host.places.conf("a").write_text("half a fi")
    fleet.host.systemd.acts.clear()
    reconcile.reconcile(fleet.host.world, reconcile.Request((), confs), check=False)
    assert f"{verb} mps-control@a.service" in fleet.host.systemd.acts


@pytest.mark.parametrize(("runs", "said"), [(True, 1), (False, 0)])
def test_a_changed_unit_is_taken_at_the_next_start_and_that_is_said(fleet: Fleet, runs: bool, said: int) -> None:
    unit = reconcile.File(fleet.host.places.units / reconcile.UNIT, "[Service]\nExecStart=/bin/true\n")
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    if runs:
        reconcile.reconcile(fleet.host.world, reconcile.Request((), confs), check=False)
    pid = fleet.host.systemd.unit("mps-control@a.service").main_pid
    answer = reconcile.reconcile(fleet.host.world, reconcile.Request((unit,), confs), check=False)
    assert answer.error is None
    assert sum("take it at their next start" in line for line in answer.warnings) == said
    assert not runs or fleet.host.systemd.unit("mps-control@a.service").main_pid == pid


def test_a_withheld_restart_is_shown_by_status_and_taken_at_the_next_natural_one(fleet: Fleet) -> None:
    at_work(fleet, "refuse")
    answer = moved(fleet)
    findings = " ".join(answer.instances["a"]["findings"])
    assert "a restart is needed: the daemon serves" in findings
    assert "(taken at the next start)" in findings
    fleet.host.kill(fleet.host.running("a").pid)
    fleet.host.start("a")
    answer = moved(fleet)
    # The GPU that it left then gets its saved compute mode back.
    assert (answer.pending, [line.split(" (")[0] for line in answer.actions]) == (
        [],
        ["bring back the compute mode of GPU 0"],
    )
    assert answer.instances["a"]["gpus"][0]["uuid"] == uuid(1)
    assert not moved(fleet).changed


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_a_client_that_leaves_in_time_is_waited_for(fleet: Fleet, policy: str) -> None:
    daemon, pids = at_work(fleet, policy, clients=2)
    door: list[bool] = []
    daemon.before_command = lambda command: door.append(fleet.host.door_is_open("a"))
    for number, pid in enumerate(pids):
        fleet.host.clock.when(10 * (number + 1), lambda pid=pid: fleet.host.end(pid))  # type: ignore[misc]
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert not all(door), "no new client while it waits"
    assert fleet.host.door_is_open("a")
    assert not answer.instances["a"]["drained"]
    told = [action for action in answer.actions if action.startswith("drain mps-control@a.service: ")]
    assert [line.split(": ")[1] for line in told] == ["2 clients left", "1 client left", "no client is left"]


def test_wait_gives_up_after_its_bound_and_lets_clients_in_again(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "wait")
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert TIMEOUT_S <= fleet.host.clock.now_s - begun_s <= TIMEOUT_S + 2
    assert daemon.servers[9001].clients == pids
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert fleet.host.door_is_open("a")
    assert [one["pid"] for one in answer.pending[0]["clients"]] == pids
    assert any("1 client left" in warning for warning in answer.warnings)
    assert not moved(fleet).changed, "a wait for nothing is no change"


def test_terminate_waits_then_has_the_daemon_end_them_then_restarts(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate", clients=2)
    fleet.host.clock.when(10, lambda: fleet.host.end(pids[0]))
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert fleet.host.clock.now_s - begun_s >= TIMEOUT_S
    assert daemon.terminated == pids[1:]
    assert fleet.host.signals == [(pids[1], signal.SIGTERM)]
    said = "\n".join(answer.actions)
    assert said.index("2 clients left") < said.index("ended by the daemon") < said.index("SIGTERM")
    assert said.index("SIGTERM") < said.index("restart mps-control@a.service")
    assert fleet.host.door_is_open("a")


def test_one_that_cannot_be_ended_keeps_its_daemon_and_hangs_nothing(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate")
    fleet.host.processes[pids[0]].state = "D"
    daemon.answer_to_terminate = "1"
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert "answered 1" in "\n".join(answer.actions)
    assert fleet.host.door_is_open("a")


def test_one_in_the_kernel_that_the_daemon_took_off_is_in_nobodys_way(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "terminate")
    fleet.host.processes[pids[0]].state = "D"
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert "its process does not end (state D)" in "\n".join(answer.actions)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_daemon_that_does_not_answer_is_not_restarted_over_unseen_clients(fleet: Fleet, policy: str) -> None:
    daemon, _ = at_work(fleet, policy)
    daemon.not_served = True
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert "who is connected cannot be told" in answer.pending[0]["why"]
    assert answer.pending[0]["clients"] == []


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_with_check_the_drain_is_told_and_nothing_is_done(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy)
    before = fleet.host.snapshot()
    answer = moved(fleet, check=True)
    assert answer.changed
    assert any(f"wait up to {TIMEOUT_S} s for its 1 clients" in action for action in answer.actions)
    assert fleet.host.snapshot() == before
    assert fleet.host.door_is_open("a")


def test_an_instance_that_is_no_longer_desired_is_removed_by_consent(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate")
    answer = fleet.converge(b=conf(fleet, "b", GPUs="0"))
    assert (answer.error, answer.pending) == (None, [])
    assert daemon.terminated == pids
    assert not fleet.host.places.conf("a").exists()
    assert answer.instances["b"]["as_desired"]


def test_who_waits_for_the_gpu_of_another_gets_it_by_consent(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "wait")
    fleet.host.clock.when(5, lambda: fleet.host.end(pids[0]))
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="2"), "b": conf(fleet, "b", GPUs="0")})
    assert (answer.error, answer.pending) == (None, [])
    assert [answer.instances[name]["gpus"][0]["index"] for name in "ab"] == [2, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drain_of_an_operator_outlasts_the_run(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy, clients=0)
    drains.mark(fleet.host.world, "a")
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert not fleet.host.door_is_open("a")
    assert any("a: drained since" in warning for warning in answer.warnings)


def test_a_removed_instance_that_comes_back_is_not_drained(fleet: Fleet) -> None:
    desired = {"_0": conf(fleet), "_1": conf(fleet, "1")}
    fleet.converge(**desired)
    drains.mark(fleet.host.world, "1")
    fleet.converge(_0=conf(fleet))
    assert fleet.converge(**desired).error is None
    assert fleet.host.door_is_open("1")


@pytest.mark.parametrize(("clients", "restarts"), [(0, True), (1, False)])
def test_a_daemon_whose_file_was_replaced_is_restarted_where_nobody_is_in_the_way(
    fleet: Fleet, clients: int, restarts: bool
) -> None:
    daemon, _ = at_work(fleet, "refuse", clients)
    desired = {"a": conf(fleet, "a", GPUs="0")}
    assert not fleet.run(False, desired).changed
    fleet.host.processes[daemon.pid].replaced = "the daemon's file was replaced after its start"
    answer = fleet.run(False, desired)
    assert answer.error is None
    assert restarted(fleet, answer) == restarts
    assert (fleet.host.running("a") is daemon) != restarts


def test_a_changed_limit_alone_never_follows_the_policy(fleet: Fleet) -> None:
    """What limits.yml asks for restarts nothing, whoever would allow it."""
    daemon, pids = at_work(fleet, "terminate")
    fleet.host.processes[daemon.pid].replaced = "the daemon's file was replaced after its start"
    fleet.more["atomic"] = True
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="6G"))
    assert (answer.error, answer.refused) == (None, None)
    assert daemon.servers[9001].clients == pids
    assert [entry["instance"] for entry in answer.pending] == ["a"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("on_clients", "kill"), ("on_clients", None), ("drain_timeout_s", 0), ("drain_timeout_s", "5m")],
)
def test_another_policy_is_refused_by_name(fleet: Fleet, key: str, value: object) -> None:
    fleet.more[key] = value
    with pytest.raises(BadValue) as refused_:
        fleet.request({})
    assert refused_.value.variable == f"mps_{key}"


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
    assert answer.instances["0"]["as_desired"]


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
    assert answer.instances["1"]["as_desired"]


def test_nothing_is_reported_done_that_does_not_read_back(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.running().deaf_to = "set_"
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert "the daemon shows 4G, desired 6144 MiB" in str(answer.error)


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


def test_the_answer_is_plain_data_of_format_1(fleet: Fleet) -> None:
    data = fleet.converge(_0=conf(fleet)).as_json()
    assert data["format"] == 1
    assert set(data) >= {
        "check",
        "changed",
        "refused",
        "missing",
        "error",
        "diff",
        "actions",
        "pending",
        "instances",
        "warnings",
        "host",
    }
