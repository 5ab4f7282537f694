"""stop and release: the end of an instance, and what is undone then."""

from __future__ import annotations

import pytest

from fakes import Host, h200
from mpsctl.adapters import pipe, without_door
from mpsctl.lifecycle import admit, stop
from mpsctl.model.errors import Untrusted
from mpsctl.store import record, saved_compute_modes

UNIT = "mps-control@0.service"


def started(host: Host, **desired: object) -> int:
    host.desired("0", **{"ComputeMode": "exclusive_process", **desired})
    return host.start().pid


def test_no_new_client_gets_in_before_the_daemon_is_asked_to_quit(host: Host) -> None:
    pid = started(host)
    door: list[bool] = []
    host.running().before_command = lambda command: door.append(host.door_is_open())
    assert stop.stop(host.world, "0", pid)
    assert door
    assert not any(door)


def test_the_daemon_is_given_the_instances_bound(host: Host) -> None:
    pid = started(host, StopTimeoutSec=7)
    daemon = host.running()
    stop.stop(host.world, "0", pid)
    assert daemon.commands[-1] == "quit -t 7"


def connected(host: Host, pid: int = 0) -> int:
    pid = host.client(pid)
    host.running().start_server(9001, clients=[pid])
    return pid


def test_clients_that_leave_within_the_bound_are_waited_for(host: Host) -> None:
    pid = started(host, StopTimeoutSec=7)
    daemon = host.running()
    client = connected(host)
    host.clock.when(3, lambda: host.end(client))
    assert stop.stop(host.world, "0", pid)
    assert (daemon.terminated, host.signals) == ([], [])
    assert any(f"client {client} " in line for line in host.said)


def test_clients_that_do_not_leave_are_taken_off_by_the_daemon_and_get_no_signal(host: Host) -> None:
    pid = started(host, StopTimeoutSec=7)
    daemon = host.running()
    client = connected(host)
    assert stop.stop(host.world, "0", pid)
    assert daemon.terminated == [client]
    assert daemon.commands.index(f"terminate_client 9001 {client}") < daemon.commands.index("quit -t 2")
    assert host.signals == []
    assert client in host.processes
    assert any("it sees error 810 (7 s are over)" in line for line in host.said)


@pytest.mark.parametrize("answer", [None, "1"])
def test_a_stop_with_clients_ends_before_systemd_ends_it(host: Host, answer: object) -> None:
    """The unit's TimeoutStopSec is 10 s longer than the bound."""
    pid = started(host, StopTimeoutSec=7)
    host.running().on_quit = lambda: None
    host.running().answer_to_terminate = answer  # type: ignore[assignment]
    connected(host)
    begun_s = host.clock.now_s
    assert not stop.stop(host.world, "0", pid)
    assert host.clock.now_s - begun_s <= 7 + stop.OVERTIME_S
    assert stop.OVERTIME_S < 10


def test_a_stop_marks_nothing_as_drained(host: Host) -> None:
    started(host)
    host.stop()
    host.start()
    assert host.door_is_open()


def test_a_daemon_that_needs_a_while_is_waited_for(host: Host) -> None:
    pid = started(host, StopTimeoutSec=7)
    host.running().on_quit = lambda: host.clock.when(6, lambda: host.kill(pid))
    assert stop.stop(host.world, "0", pid)
    assert 6 <= sum(host.clock.slept_s) < 7


def test_a_daemon_that_does_not_end_is_left_to_systemd_within_the_bound(host: Host) -> None:
    pid = started(host, StopTimeoutSec=7)
    host.running().on_quit = lambda: None
    assert not stop.stop(host.world, "0", pid)
    assert sum(host.clock.slept_s) <= 7 + 4
    assert any("did not end within 7 s" in line for line in host.said)


def test_a_daemon_that_serves_nobody_is_left_to_systemd(host: Host) -> None:
    pid = started(host)
    host.running().not_served = True
    assert not stop.stop(host.world, "0", pid)
    assert not host.door_is_open()


@pytest.mark.parametrize("main_pid", [None, 77])
def test_a_daemon_that_has_ended_by_itself_needs_no_stop(host: Host, main_pid: object) -> None:
    host.kill(started(host))
    assert stop.stop(host.world, "0", main_pid)  # type: ignore[arg-type]
    assert not host.door_is_open()


def test_a_door_in_the_former_pipe_directory_is_closed_too(host: Host) -> None:
    """The file may name another directory by now than the running daemon's."""
    pid = started(host)
    door: list[bool] = []
    host.running().before_command = lambda command: door.append(host.door_is_open())
    host.desired(PipeDirectory=f"{host.pipe_root}/moved")
    assert stop.stop(host.world, "0", pid)
    assert door
    assert not any(door)


# -- release


def test_a_real_stop_brings_the_former_compute_mode_back(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode="default")
    started(host)
    host.stop()
    assert host.nvml.gpu(0).compute_mode == "default"


def test_a_real_stop_leaves_nothing_of_this_run(host: Host) -> None:
    started(host)
    host.stop()
    assert not host.own().exists()
    assert pipe.leads_to_door(host.pipe_root / "0"), "a container has it mounted, and whoever comes is to be refused"
    assert record.read(host.world, "0") is None
    assert record.short_lives(host.world, "0") is None
    assert not host.places.daemon_environment("0").exists()


@pytest.mark.parametrize("job", [None, "restart", "start"])
def test_nothing_is_undone_before_a_restart(host: Host, job: object) -> None:
    """ExecStopPost runs before every automatic restart as well; in another mode the GPU would be open."""
    pid = started(host)
    host.kill(pid)
    if job:
        host.systemd.jobs[UNIT] = str(job)
    stop.release(host.world, "0")
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"
    assert record.short_lives(host.world, "0") == 0
    assert not host.door_is_open()


def test_the_job_of_another_instance_is_not_this_ones(host: Host) -> None:
    host.kill(started(host))
    host.systemd.jobs["mps-control@1.service"] = "stop"
    stop.release(host.world, "0")
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"


def test_a_mode_that_somebody_else_set_meanwhile_is_left(host: Host) -> None:
    started(host)
    host.nvml.reboot()
    host.nvml.modes_set.clear()
    host.stop()
    assert host.nvml.modes_set == []


def test_prohibited_is_ours_to_undo(host: Host) -> None:
    started(host)
    host.nvml.all[0] = h200(0, compute_mode="prohibited")
    host.stop()
    assert host.nvml.gpu(0).compute_mode == "default"


def test_a_mode_that_is_not_managed_is_not_touched(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode="exclusive_process")
    host.desired()
    host.start()
    host.stop()
    assert host.nvml.modes_set == []


def test_a_host_whose_driver_is_gone_is_released_as_far_as_that_goes(host: Host) -> None:
    started(host)
    host.nvml.driver_up = False
    host.stop()
    assert any("could not be brought back" in line for line in host.said)
    assert not host.own().exists()
    assert pipe.leads_to_door(host.pipe_root / "0"), "a container has it mounted, and whoever comes is to be refused"


def test_stop_and_start_again_records_the_same_saved_compute_mode(host: Host) -> None:
    started(host)
    host.stop()
    host.start()
    assert saved_compute_modes.read(host.world, host.nvml.gpu(0)) == "default"
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"


@pytest.mark.parametrize("failure", [Untrusted("/srv/0", "/srv", "everyone can write to", "-"), OSError(28, "full")])
def test_a_stop_gives_back_what_it_can(host: Host, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """Others may have come to a folder since the start, or the disk is full: the rest is undone all the same."""
    pid = started(host)

    def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(admit, "close_for_end", fails)
    monkeypatch.setattr(admit, "refuse_all", fails)
    monkeypatch.setattr(without_door, "leave", fails)
    monkeypatch.setattr(pipe, "remove", fails)
    host.systemd.jobs[UNIT] = "stop"
    quits: list[int] = []

    def ends() -> None:
        quits.append(pid)
        host.kill(pid)

    host.running().on_quit = ends
    stop.stop(host.world, "0", pid)
    stop.release(host.world, "0")
    assert quits == [pid]
    assert host.nvml.gpu(0).compute_mode == "default"
