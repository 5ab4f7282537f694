"""What a run does on a host that has something: reloads, restarts, units, and instances that are no longer desired."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Optional, Sequence

import pytest

from converging import TIMER, TIMER_TEXT, Fleet, as_desired, conf, gpu_of
from fakes import uuid
from mpsctl.adapters import pipe, procfs
from mpsctl.model.names import door_service, door_unit

MIB = 1 << 20


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
    assert answer.actions == [f"write {fleet.unit}", "reload systemd's units"]
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
    assert gpu_of(answer, "a")["uuid"] == uuid(1)


def test_the_gpu_that_an_instance_has_left_gets_its_compute_mode_back(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert [fleet.host.nvml.gpu(index).compute_mode for index in (0, 1)] == ["default", "exclusive_process"]


def test_an_instance_that_gets_another_name_says_nothing_of_a_compute_mode_that_stays(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    answer = fleet.converge(b=conf(fleet, "b", GPUs="0"))
    assert [one for step in answer.steps for one in step["statements"] if one["what"] == "compute-mode"] == []
    assert fleet.host.nvml.gpu(0).compute_mode == "exclusive_process"


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
    assert gpu_of(answer, "a")["uuid"] == uuid(1)


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
    assert fleet.host.systemd.acts == [
        "enable mps-control@c.service mps-front-door@c.socket",
        "daemon-reload",
        "stop mps-front-door@c.service",
        "start mps-front-door@c.socket",
    ]
    fleet.host.running("a").servers.clear()
    answer = fleet.converge(**desired)
    assert (answer.error, answer.pending) == (None, [])
    assert [gpu_of(answer, name)["index"] for name in "abc"] == [2, 0, 1]


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
    assert as_desired(answer, "0")


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
        f"enable mps-control@0.service mps-front-door@0.socket {TIMER}",
        "daemon-reload",
        "stop mps-front-door@0.service",
        "start mps-front-door@0.socket",
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


# -- units that somebody masked


MASKED = "mps-control@0.service"


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("unit", [MASKED, TIMER, door_unit("0"), door_service("0")])
def test_a_masked_unit_is_an_error_before_anything_is_tried_and_holds_up_no_other(
    fleet: Fleet, unit: str, active: bool, check: bool
) -> None:
    fleet.timer = TIMER_TEXT
    fleet.converge(_0=conf(fleet))
    masked = fleet.host.systemd.unit(unit)
    masked.load_state = "masked"
    if not active:
        masked.active_state, masked.enabled = "inactive", False
        if unit == MASKED:
            fleet.host.stop("0")
    fleet.host.systemd.acts.clear()
    answer = fleet.run(check, {"0": conf(fleet), "1": conf(fleet, "1")})
    assert answer.error is not None
    assert f"systemctl unmask {unit}" in answer.error
    assert not any(unit in act for act in fleet.host.systemd.acts)
    assert not any(unit in action for action in answer.actions)
    assert answer.error.count(f"unmask {unit}") == 1
    assert not any(unit in warning for warning in answer.warnings)
    assert check or as_desired(answer, "1")


def test_a_door_whose_socket_systemd_closed_under_it_is_stood_up_anew(fleet: Fleet) -> None:
    """An unmasked socket's unit is active, and nobody listens: clients run outside MPS."""
    fleet.converge(_0=conf(fleet))
    pid = fleet.host.running("0").pid
    fleet.host.close_socket()
    assert [step["kind"] for step in fleet.check(_0=conf(fleet)).steps] == ["open-front-door"]
    answer = fleet.converge(_0=conf(fleet))
    assert (answer.error, as_desired(answer, "0")) == (None, True)
    assert pipe.somebody_listens(fleet.host.pipe_root / "0")
    assert fleet.host.running("0").pid == pid
    assert not fleet.converge(_0=conf(fleet)).changed


@pytest.mark.parametrize("values", [{"GPUs": "1"}, {"DeviceMemoryLimit": "6G"}])
def test_systemd_neither_restarts_nor_reloads_a_masked_unit(fleet: Fleet, values: dict[str, object]) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.host.systemd.unit("mps-control@a.service").load_state = "masked"
    fleet.host.systemd.acts.clear()
    answer = fleet.run(False, {"a": conf(fleet, "a", **{"GPUs": "0", **values}), "b": conf(fleet, "b", GPUs="2")})
    assert "systemctl unmask mps-control@a.service" in str(answer.error)
    assert not any("mps-control@a.service" in act for act in fleet.host.systemd.acts)
    assert as_desired(answer, "b")


def test_who_is_to_have_the_gpu_of_a_masked_instance_waits(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.host.systemd.unit("mps-control@a.service").load_state = "masked"
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="1"), "b": conf(fleet, "b", GPUs="0")})
    assert [one["instance"] for one in answer.pending] == ["b"]
    assert fleet.host.systemd.unit("mps-control@b.service").main_pid == 0


def test_a_unit_that_is_masked_while_the_run_goes_on_is_told_with_what_to_do(fleet: Fleet) -> None:
    act = fleet.host.systemd.act

    def masks(verb: str, units: Sequence[str] = ()) -> Optional[str]:
        if verb == "daemon-reload":
            fleet.host.systemd.unit(MASKED).load_state = "masked"
        return act(verb, units)

    fleet.host.systemd.act = masks  # type: ignore[method-assign]
    answer = fleet.converge(_0=conf(fleet))
    assert f"masked: run `systemctl unmask {MASKED}`" in str(answer.error)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["mps-control@.service", TIMER])
def test_the_file_of_a_masked_unit_is_not_replaced(fleet: Fleet, name: str, check: bool) -> None:
    fleet.timer = TIMER_TEXT
    path = fleet.host.places.units / name
    path.parent.mkdir(parents=True)
    path.symlink_to(os.devnull)
    answer = fleet.run(check, {"0": conf(fleet)})
    assert f"systemctl unmask {name}" in str(answer.error)
    assert path.is_symlink()


def test_a_masked_instance_is_removed_like_any_other(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet), _1=conf(fleet, "1"))
    fleet.host.systemd.unit("mps-control@1.service").load_state = "masked"
    answer = fleet.converge(_0=conf(fleet))
    assert (answer.error, answer.pending) == (None, [])
    assert not fleet.host.places.conf("1").exists()


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
    assert not as_desired(answer, "0")
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
    assert fleet.host.systemd.acts == [
        "disable mps-control@1.service",
        "stop mps-control@1.service",
        "disable mps-front-door@1.socket",
        "stop mps-front-door@1.service mps-front-door@1.socket",
    ]
    assert not (fleet.host.pipe_root / "1").exists()
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
    """Were it removed, a reboot would bring the GPU back, and nothing the instance."""
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


# -- GPUs that change while a run goes on


def changing(fleet: Fleet, verb: str, change: Callable[[], None]) -> None:
    """The GPUs change when systemd is first asked for ``verb``: behind the look, and before the start."""
    act, due = fleet.host.systemd.act, [change]

    def acts(verb_: str, units: Sequence[str] = ()) -> Optional[str]:
        if verb_ == verb and due:
            due.pop()()
        return act(verb_, units)

    fleet.host.systemd.act = acts  # type: ignore[assignment,method-assign]


def test_another_card_at_the_index_of_an_instance_is_taken_and_told(fleet: Fleet) -> None:
    gpus = fleet.host.nvml.all

    def swap() -> None:
        gpus[0], gpus[3] = replace(gpus[3], index=0), replace(gpus[0], index=3)

    changing(fleet, "start", swap)
    answer = fleet.converge(_0=conf(fleet))
    assert (answer.error, gpu_of(answer, "0")["uuid"]) == (None, uuid(3))
    (line,) = [warning for warning in answer.warnings if "changed while the run went on" in warning]
    assert uuid(0) in line
    assert uuid(3) in line
    assert fleet.host.nvml.gpu(3).compute_mode != "exclusive_process", "the card that the run was planned for"


def test_a_card_that_another_instance_serves_is_not_taken_by_its_new_index(fleet: Fleet) -> None:
    """GPU 0 is not found any more, and those behind it moved up."""
    fleet.converge(_1=conf(fleet, "1"))
    pid = fleet.host.running("1").pid
    gpus = fleet.host.nvml.all

    def pull() -> None:
        gpus[:] = [replace(gpu, index=index) for index, gpu in enumerate(gpus[1:])]

    changing(fleet, "start", pull)
    answer = fleet.converge(_0=conf(fleet, DriverTimeoutSec=1), _1=conf(fleet, "1"))
    assert f"mps-control@1.service still has {uuid(1)}" in str(answer.error)
    assert fleet.host.running("1").pid == pid
    assert fleet.host.systemd.unit("mps-control@0.service").main_pid == 0


def test_a_card_named_by_its_uuid_that_is_gone_is_an_error_and_no_other_is_taken(fleet: Fleet) -> None:
    gpus = fleet.host.nvml.all
    changing(fleet, "start", lambda: gpus.__setitem__(0, replace(gpus[0], uuid=uuid(99))))
    before = list(fleet.host.nvml.modes_set)
    answer = fleet.converge(_0=conf(fleet, GPUs=uuid(0), DriverTimeoutSec=1))
    assert f"GPU {uuid(0)}" in str(answer.error)
    assert uuid(99) in str(answer.error)
    assert fleet.host.nvml.modes_set == before
