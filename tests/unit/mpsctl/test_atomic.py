"""An atomic request: changed limits alone, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from fakes import Host
from mpsctl.adapters import hardware
from mpsctl.converge import reconcile
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import File, Request
from mpsctl.model.shares import Room, check_shares
from mpsctl.store import admission

MIB = 1 << 20


class Fleet:
    """A converged host with the instances 0 and 1, and atomic requests for it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unit = File(host.places.units / "mps-control@.service", "# Managed by mps-fleet\n[Service]\n")

    def ask(self, atomic: bool, check: bool = False, unit: Optional[str] = None, **values: object) -> Answer:
        desired = {"DeviceMemoryLimit": "4G", "ActiveThreadPercentage": 50, **values}
        confs = tuple((name, self.host.conf(name, desired)) for name in ("0", "1"))
        unit_file = self.unit if unit is None else replace(self.unit, content=unit)
        return reconcile.reconcile(self.host.world, Request((unit_file,), confs, None, atomic), check)

    def change(self, **values: Any) -> Answer:
        self.host.systemd.acts.clear()
        return self.ask(True, **values)

    def confs(self) -> list[str]:
        return [self.host.places.conf(name).read_text() for name in ("0", "1")]


@pytest.fixture
def fleet(host: Host) -> Fleet:
    made = Fleet(host)
    assert made.ask(False).error is None
    return made


def test_changed_limits_go_in_force_by_a_reload(fleet: Fleet) -> None:
    answer = fleet.change(DeviceMemoryLimit="6G", ClientPriority=1, ExpectedClients=8)
    assert (answer.error, answer.refused, answer.put_back) == (None, None, None)
    assert fleet.host.systemd.acts == ["reload mps-control@0.service mps-control@1.service"]
    assert fleet.host.running().limits == {"0": 6144 * MIB}


PLACES = {"OverExpected": "wait", "ExpectedClients": 8, "Shares": "unit:api.service=4 each-user=2"}


def told(host: Host, name: str = "0") -> Optional[Room]:
    """How many clients the front door was told to let in."""
    found = admission.read(host.places, name)
    assert found is not None
    return found.room


@pytest.mark.parametrize(
    ("values", "room"),
    [
        (PLACES, Room(8, check_shares("unit:api.service=4 each-user=2"))),
        ({**PLACES, "Shares": "user:root=1"}, Room(8, check_shares("user:0=1"))),
        (
            {**PLACES, "OverExpected": "refuse", "ExpectedClients": None},
            Room(None, check_shares(PLACES["Shares"]), True),
        ),
        ({**PLACES, "Shares": None}, Room(8)),
    ],
)
def test_changed_places_are_told_to_the_front_door_by_a_reload_and_a_null_takes_them_back(
    fleet: Fleet, values: dict[str, object], room: Room
) -> None:
    for desired, expected in ((values, room), ({}, None)):
        before = told(fleet.host)
        answer = fleet.change(**desired)
        assert (answer.error, answer.refused, answer.put_back) == (None, None, None)
        assert fleet.host.systemd.acts == ["reload mps-control@0.service mps-control@1.service"]
        assert [told(fleet.host, name) for name in ("0", "1")] == [expected] * 2
        assert all(str(before or "as many as come") in action for action in answer.actions if "reload" in action)
        assert not fleet.change(**desired).changed


def test_who_would_shake_off_its_limit_is_refused_from_a_reload_on(fleet: Fleet) -> None:
    for word, judged in (("refuse", True), ("report", False)):
        answer = fleet.change(LimitBypass=word, LimitBypassGraceSec=5)
        assert (answer.error, answer.refused) == (None, None)
        found = admission.read(fleet.host.places, "0")
        assert found is not None
        assert bool(found.judged_devices) == judged


def test_places_are_put_back_with_the_rest(fleet: Fleet) -> None:
    assert fleet.change(**PLACES).error is None
    before = told(fleet.host)
    fleet.host.running("1").deaf_to = "mem_limit"
    answer = fleet.change(**{**PLACES, "ExpectedClients": 6}, DeviceMemoryLimit="6G")
    assert answer.put_back is True, answer.put_back_why
    assert [told(fleet.host, name) for name in ("0", "1")] == [before] * 2


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({**PLACES, "ExpectedClients": 40}, "mps_expected_clients"),
        ({"OverExpected": "wait", "Shares": "each-user=40"}, "mps_shares"),
    ],
)
def test_places_that_cannot_fit_are_refused_as_a_matter_of_this_hosts_gpus(
    fleet: Fleet, values: dict[str, object], variable: str
) -> None:
    before = fleet.host.snapshot()
    answer = fleet.change(**values)
    assert str(answer.refused).startswith(f"{variable}: found ")
    assert answer.does_not_fit
    assert fleet.host.snapshot() == before


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"PipeDirectory": "/run/elsewhere/%i"}, "restart mps-control@0.service"),
        ({"ComputeMode": "exclusive_process"}, "another compute_mode"),
        ({"StopTimeoutSec": 60}, "another stop_timeout_s"),
        ({"unit": "# Managed by mps-fleet\n[Service]\n# new\n"}, "mps-control@.service"),
    ],
)
def test_more_than_a_live_reload_is_refused_and_changes_nothing(
    fleet: Fleet, values: dict[str, str], part: str
) -> None:
    before = fleet.host.snapshot()
    for check in (True, False):
        answer = fleet.ask(True, check, **values)
        assert answer.refused is not None
        assert part in answer.refused
        assert answer.refused.endswith("run site.yml for this host")
        assert not answer.changed
    assert fleet.host.snapshot() == before


def test_limits_that_cannot_fit_are_refused_by_the_arithmetic_and_change_nothing(fleet: Fleet) -> None:
    before = fleet.host.snapshot()
    answer = fleet.change(DeviceMemoryLimit="40G", ExpectedClients=40)
    assert str(answer.refused).startswith("mps_")
    assert fleet.host.snapshot() == before


def test_an_instance_that_is_down_is_refused(fleet: Fleet) -> None:
    fleet.host.stop("1")
    answer = fleet.change(DeviceMemoryLimit="6G")
    assert "start mps-control@1.service" in str(answer.refused)


def test_what_does_not_come_into_force_is_put_back_on_the_whole_host(fleet: Fleet) -> None:
    before = fleet.confs()
    fleet.host.running("1").deaf_to = "mem_limit"
    answer = fleet.change(DeviceMemoryLimit="6G", ActiveThreadPercentage=40)
    assert answer.put_back is True
    assert answer.put_back_why is None
    assert not answer.changed
    assert "mps-control@1.service: memory limit of device 0 (default): the daemon shows 4G" in str(answer.error)
    assert str(answer.error).endswith("; the former limits are in force again")
    assert fleet.confs() == before
    for name in ("0", "1"):
        assert (fleet.host.running(name).limits, fleet.host.running(name).percentage) == ({"0": 4096 * MIB}, 50.0)
    assert not fleet.ask(False).changed


def test_a_client_that_bypassed_its_limit_does_not_keep_a_host_from_being_put_back(fleet: Fleet) -> None:
    fleet.host.running("0").start_server(9001, clients=[fleet.host.client(variable="1G")])
    fleet.host.running("1").deaf_to = "mem_limit"
    answer = fleet.change(DeviceMemoryLimit="6G")
    assert (answer.put_back, answer.put_back_why) == (True, None)
    assert str(answer.error).endswith("; the former limits are in force again")


def test_a_timer_that_is_stopped_is_more_than_a_changed_limit(fleet: Fleet) -> None:
    confs = tuple((name, fleet.host.conf(name, {"DeviceMemoryLimit": "6G"})) for name in ("0", "1"))
    fleet.host.systemd.unit("mps-health.timer").enabled = True
    request = Request((fleet.unit,), confs, None, True, ("mps-health.timer",))
    answer = reconcile.reconcile(fleet.host.world, request, check=False)
    assert "start mps-health.timer" in str(answer.refused)


def test_servers_get_their_former_limits_back_too(fleet: Fleet) -> None:
    server = fleet.host.running("0").start_server(9001, clients=[4242])
    fleet.host.running("1").deaf_to = "mem_limit"
    assert fleet.change(DeviceMemoryLimit="6G").put_back is True
    assert server.limits == {"0": 4096 * MIB}


def test_a_limit_that_was_not_managed_is_taken_away_again(host: Host) -> None:
    fleet = Fleet(host)
    fleet.ask(False, DeviceMemoryLimit=None, ActiveThreadPercentage=None)
    servers = [host.running(name).start_server(9000 + int(name), clients=[1]) for name in ("0", "1")]
    host.running("1").deaf_to = "percentage"
    answer = fleet.change(DeviceMemoryLimit="6G", ActiveThreadPercentage=40)
    assert answer.put_back is True, answer.put_back_why
    assert [host.running(name).limits["0"] for name in ("0", "1")] == [0, 0]
    assert host.running("0").percentage == servers[0].percentage == 100.0
    assert [server.limits.get("0", 0) for server in servers] == [0, 0]


def test_a_null_takes_the_limit_back(fleet: Fleet) -> None:
    answer = fleet.change(DeviceMemoryLimit=None)
    assert (answer.error, answer.changed) == (None, True)
    assert fleet.host.running().limits == {"0": 0}


def test_a_host_that_cannot_be_put_back_says_why(fleet: Fleet) -> None:
    fleet.host.running("1").deaf_to = "mem_limit"
    fleet.host.running("1").limits["0"] = 0  # by hand, so that the former limit would have to be set as well
    answer = fleet.change(DeviceMemoryLimit="6G")
    assert answer.put_back is False
    assert answer.changed
    assert "desired 4096 MiB" in str(answer.put_back_why)
    assert "; NOT put back: " in str(answer.error)


def test_a_run_that_was_killed_half_way_is_finished_by_the_next(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(verb: str, units: object = ()) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fleet.host.systemd, "act", killed)
        with pytest.raises(KeyboardInterrupt):
            fleet.change(DeviceMemoryLimit="6G")
    assert "6G" in fleet.confs()[0]
    assert fleet.host.running().limits == {"0": 4096 * MIB}
    answer = fleet.change(DeviceMemoryLimit="6G")
    assert (answer.error, answer.changed) == (None, True)
    assert fleet.host.running().limits == {"0": 6144 * MIB}


def test_a_missing_daemon_is_shown_with_its_usual_path_in_check_mode(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "binary", lambda name: None)
    fleet = Fleet(host)
    unit = "# Managed by mps-fleet\n[Service]\nExecStart=@NVIDIA_CUDA_MPS_CONTROL@ -f\n"
    answer = fleet.ask(False, True, unit=unit)
    assert answer.missing is not None
    assert any("ExecStart=/usr/bin/nvidia-cuda-mps-control -f" in entry["after"] for entry in answer.diff)
    assert "is shown with its usual path /usr/bin/nvidia-cuda-mps-control" in answer.warnings[0]
    before = host.snapshot()
    assert not fleet.ask(False, unit=unit).changed
    assert host.snapshot() == before
