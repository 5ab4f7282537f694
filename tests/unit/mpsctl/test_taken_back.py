"""A null after a value: what a run had set is taken back, live, is said in the plan, and is so after a restart too."""

from __future__ import annotations

from typing import Any

import pytest

from converging import Fleet, as_desired, conf
from fakes import Host, h200
from judging import judge
from mpsctl.lifecycle import apply, health, stop
from mpsctl.model.errors import NotInForce
from mpsctl.model.finding import CRITICAL, OK
from mpsctl.store import record, saved_compute_modes

VALUES: dict[str, Any] = {"DeviceMemoryLimit": "8G", "ActiveThreadPercentage": 50, "ClientPriority": 1}
FRESH: tuple[dict[str, int], float, str] = ({"0": 0}, 100.0, "0")


def state(host: Host, name: str = "0") -> tuple[dict[str, int], float, str]:
    """The daemon's defaults: limits in bytes, percentage, priority."""
    daemon = host.running(name)
    return {"0": daemon.limits.get("0", 0)}, daemon.percentage, daemon.ask(["get_default_client_priority"], 1)[0][0]


def at_work(host: Host) -> Any:
    host.desired(**VALUES)
    host.start()
    daemon = host.running("0")
    daemon.start_server(9001, clients=[host.client()])
    return daemon


def test_a_reload_takes_all_three_back_from_the_daemon_and_its_servers(host: Host) -> None:
    daemon = at_work(host)
    assert state(host) == ({"0": 8 << 30}, 50.0, "1")
    host.desired()
    changes = apply.apply(host.world, "0", daemon.pid)
    assert state(host) == FRESH
    server = daemon.servers[9001]
    assert (server.limits.get("0", 0), server.percentage) == (0, 100.0)
    assert [line for line in changes if "default" in line] == [
        "memory limit of device 0 (default): 8G -> no limit, as it is no longer managed",
        "active thread percentage (default): 50.0 -> 100 %, as it is no longer managed",
        "client priority (default): 1 -> 0, as it is no longer managed",
    ]
    assert apply.apply(host.world, "0", daemon.pid) == []


def test_it_is_the_same_after_a_restart(host: Host) -> None:
    at_work(host)
    host.desired()
    host.kill(host.running("0").pid)
    host.start()
    assert state(host) == FRESH


def test_what_somebody_set_by_hand_is_left(host: Host) -> None:
    host.desired()
    daemon = host.start()
    daemon.ask(["set_default_device_pinned_mem_limit 0 3G", "set_default_active_thread_percentage 30"], 1)
    assert apply.apply(host.world, "0", daemon.pid) == []
    assert state(host)[:2] == ({"0": 3 << 30}, 30.0)


BY_HAND = [
    "set_default_device_pinned_mem_limit 0 3G",
    "set_default_active_thread_percentage 30",
    "set_default_client_priority 0",
]


@pytest.mark.parametrize("looked", [False, True], ids=["", "seen by health"])
@pytest.mark.parametrize("restarted", [False, True], ids=["live", "by a restart"])
@pytest.mark.parametrize("set_by_hand", [BY_HAND[:1], BY_HAND[1:2], BY_HAND], ids=["limit", "percentage", "all"])
def test_what_somebody_set_by_hand_over_ours_is_taken_back_with_it(
    host: Host, set_by_hand: list[str], restarted: bool, looked: bool
) -> None:
    """A daemon that starts anew does not have it either."""
    daemon = at_work(host)
    daemon.ask(set_by_hand, 1)
    if looked:
        for _ in range(2):
            health.health(host.world)
    host.desired()
    if restarted:
        host.restart()
    else:
        apply.apply(host.world, "0", daemon.pid)
    assert state(host) == FRESH


def test_until_then_every_verb_says_so(host: Host) -> None:
    daemon = at_work(host)
    assert judge(host).check("0", "memory-limit").level == OK
    host.desired()
    report = judge(host)
    for name in ("memory-limit", "thread-percentage", "client-priority"):
        check = report.check("0", name)
        assert (check.level, check.mends) == (CRITICAL, "reload")
        assert "no longer managed" in check.found
    apply.apply(host.world, "0", daemon.pid)
    report = judge(host)
    assert [report.check("0", name).level for name in ("memory-limit", "thread-percentage", "client-priority")] == [
        OK
    ] * 3


def test_a_run_shows_it_before_and_does_it_without_a_restart(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet, **VALUES))
    pid = fleet.host.running("0").pid
    without = fleet.host.conf("0", {"ComputeMode": "exclusive_process"})
    shown = fleet.check(_0=without)
    assert any("no limit, as it is no longer managed" in action for action in shown.actions), shown.actions
    assert state(fleet.host) == ({"0": 8 << 30}, 50.0, "1")
    answer = fleet.converge(_0=without)
    assert answer.error is None
    assert as_desired(answer, "0")
    assert (fleet.host.running("0").pid, state(fleet.host)) == (pid, FRESH)
    assert not fleet.converge(_0=without).changed


def test_a_rollout_of_limits_alone_takes_a_null_too(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet, **VALUES))
    fleet.more = {"atomic": True}
    answer = fleet.converge(_0=fleet.host.conf("0", {"ComputeMode": "exclusive_process"}))
    assert (answer.refused, answer.error) == (None, None)
    assert state(fleet.host) == FRESH


@pytest.mark.parametrize("deaf_to", ["set_default_device_pinned_mem_limit", "set_default_active_thread_percentage"])
def test_what_was_not_taken_back_stays_on_record_until_it_is(host: Host, deaf_to: str) -> None:
    daemon = at_work(host)
    host.desired()
    daemon.deaf_to = deaf_to
    with pytest.raises(NotInForce):
        apply.apply(host.world, "0", daemon.pid)
    known = record.read(host.world, "0", daemon.pid)
    assert known is not None
    assert (known.limits_mib, known.thread_percentage) == ((8192,), 50.0)
    daemon.deaf_to = None
    apply.apply(host.world, "0", daemon.pid)
    assert state(host) == FRESH


# -- the same of compute modes


def test_a_compute_mode_is_taken_back_once_and_then_left(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    daemon = host.start()
    gpu = host.nvml.all[0]
    assert gpu.compute_mode == "exclusive_process"
    host.desired()
    found = judge(host).check("0", "compute-mode")
    assert (found.level, found.mends) == (CRITICAL, "reload")
    changes = apply.apply(host.world, "0", daemon.pid)
    assert changes == [f"compute mode of {gpu}: exclusive_process -> default, as it is no longer managed"]
    assert host.nvml.all[0].compute_mode == "default"
    assert saved_compute_modes.recorded(host.world) == set()
    host.nvml.set_compute_mode(host.nvml.all[0], "exclusive_process")  # somebody by hand
    assert apply.apply(host.world, "0", daemon.pid) == []
    assert judge(host).check("0", "compute-mode").level == OK
    assert host.nvml.all[0].compute_mode == "exclusive_process"


@pytest.mark.parametrize("restarted", [True, False], ids=["restart", "stop"])
def test_a_compute_mode_is_taken_back_by_a_restart_and_by_a_stop(host: Host, restarted: bool) -> None:
    host.desired(ComputeMode="exclusive_process")
    daemon = host.start()
    host.desired()
    host.kill(daemon.pid)
    if restarted:
        host.start()
    else:
        host.systemd.jobs["mps-control@0.service"] = "stop"
        stop.release(host.world, "0")
    assert host.nvml.all[0].compute_mode == "default"


@pytest.mark.parametrize(
    "wanted", [{"DeviceMemoryLimit": "4G"}, {"ActiveThreadPercentage": 25}, {"ClientPriority": 1}], ids=str
)
@pytest.mark.parametrize("before", [{}, VALUES], ids=["nothing", "other values"])
def test_what_a_reload_that_broke_off_had_set_is_taken_back_as_well(
    host: Host, before: dict[str, Any], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.desired(**before)
    daemon = host.start()
    host.desired(**wanted)
    with monkeypatch.context() as patch:
        patch.setattr(apply, "_start_server", lambda *_: pytest.fail("it broke off"))
        with pytest.raises(pytest.fail.Exception):
            apply.apply(host.world, "0", daemon.pid)
    host.desired()
    apply.apply(host.world, "0", daemon.pid)
    assert state(host) == FRESH


def test_a_mode_that_we_did_not_set_since_boot_is_somebody_elses(host: Host) -> None:
    """It was managed once, long ago; the driver forgot it at the reboot, and the administrator set it since."""
    saved_compute_modes.record(host.world, host.nvml.gpu(0))
    host.nvml.all[0] = h200(0, compute_mode="exclusive_process")
    host.desired()
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    assert judge(host).check("0", "compute-mode").level == OK
    assert apply.apply(host.world, "0", daemon.pid) == []
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"


def test_no_gpu_is_closed_under_its_daemon_by_a_null(host: Host) -> None:
    """It was prohibited before the first start."""
    host.nvml.all[0] = h200(0, compute_mode="prohibited")
    host.desired(ComputeMode="exclusive_process")
    daemon = host.start()
    host.desired()
    apply.apply(host.world, "0", daemon.pid)
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"
