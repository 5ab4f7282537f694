"""What is asked of a host: files rendered from the variables, in mpsctl's own form."""

from __future__ import annotations

from typing import Any

import pytest

from mps_role import deferred, request, variables
from mpsctl.converge.request import Request
from mpsctl.model.instance_file import parse_conf

PLACES = {
    "_mps_program": "/usr/local/bin/mpsctl",
    "_mps_unit": "/etc/systemd/system/mps-control@.service",
    "_mps_door_socket": "/etc/systemd/system/mps-front-door@.socket",
    "_mps_door_service": "/etc/systemd/system/mps-front-door@.service",
    "_mps_health_service": "/etc/systemd/system/mps-health.service",
    "_mps_health_timer": "/etc/systemd/system/mps-health.timer",
}


def _request(**given: Any) -> dict[str, Any]:
    values = {**variables.defaults(), **{f"mps_{key}": value for key, value in given.items()}}
    assert variables.problems(values) == []
    return request.request(values, PLACES, "b1")


def test_one_instance_for_each_gpu_by_default() -> None:
    found = _request(device_memory_limit="4G")
    assert found["instances"] == []
    instance = parse_conf(found["instance_per_gpu"], "3")
    assert instance.gpus == ("3",)
    assert instance.pipe_directory == "/run/nvidia-mps/3"
    assert instance.limit is not None
    assert instance.limit.mib == 4096
    assert instance.compute_mode == "exclusive_process"


def test_null_is_absent_from_the_file() -> None:
    found = _request(compute_mode=None)
    instance = parse_conf(found["instance_per_gpu"], "0")
    assert instance.compute_mode is None
    assert instance.limit is None
    assert instance.thread_percentage is None
    assert instance.client_priority is None


def test_an_instance_overrides_with_a_value_or_with_null() -> None:
    found = _request(
        device_memory_limit="4G",
        active_thread_percentage=50,
        instances=[
            {"name": "own", "gpus": [0], "device_memory_limit": "20%", "client_priority": 1, "compute_mode": None},
            {"name": "fleet", "gpus": ["1", "0000:3b:00.0"]},
        ],
    )
    assert found["instance_per_gpu"] is None
    own, fleet = (parse_conf(entry["conf"], entry["name"]) for entry in found["instances"])
    assert (own.limit.text if own.limit else None, own.client_priority, own.compute_mode) == ("20%", 1, None)
    assert (fleet.limit.text if fleet.limit else None, fleet.client_priority) == ("4G", None)
    assert fleet.compute_mode == "exclusive_process"
    assert fleet.gpus == ("1", "0000:3b:00.0")
    assert own.thread_percentage == fleet.thread_percentage == 50


def test_the_timeouts_reach_unit_and_file() -> None:
    found = _request(driver_timeout_s=200, stop_timeout_s=45)
    instance = parse_conf(found["instance_per_gpu"], "0")
    assert (instance.driver_timeout_s, instance.stop_timeout_s) == (200, 45)
    unit = found["files"][0]["content"]
    start = next(line for line in unit.splitlines() if line.startswith("TimeoutStartSec="))
    assert int(start.partition("=")[2]) > 200


@pytest.mark.parametrize("root", ["/run/nvidia-mps", "/run/other/mps", "/var/lib/mps-pipes"])
def test_the_front_door_stands_at_the_pipe_root_and_no_unit_removes_that_directory(root: str) -> None:
    files = {file["path"].rpartition("/")[2]: file["content"] for file in _request(pipe_root=root)["files"]}
    socket = files["mps-front-door@.socket"].splitlines()
    assert f"ListenSequentialPacket={root}/%i/front-door" in socket
    assert f"ExecStartPost=/bin/ln -sfn front-door {root}/%i/control" in socket
    for content in files.values():
        assert not [line for line in content.splitlines() if line.startswith(("RuntimeDirectory=", "RemoveOnStop="))]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("TriggerLimitIntervalSec=0", "systemd closes a socket whose service starts often"),
        ("SocketMode=0666", "a permission would be a silent way past MPS"),
        ("IgnoreOnIsolate=yes", "isolate would leave clients without MPS"),
        ("WantedBy=sockets.target", "it stands from boot on"),
    ],
)
def test_nothing_closes_the_front_doors_socket(line: str, why: str) -> None:
    files = {file["path"].rpartition("/")[2]: file["content"] for file in _request()["files"]}
    assert line in files["mps-front-door@.socket"].splitlines(), why
    assert "StartLimitIntervalSec=0" in files["mps-front-door@.service"].splitlines()
    assert not [
        line for line in files["mps-front-door@.socket"].splitlines() if line.startswith(("Accept=", "MaxConn"))
    ]


def test_the_policy_for_clients_without_their_limit_reaches_the_file() -> None:
    by_default = parse_conf(_request()["instance_per_gpu"], "0")
    assert (by_default.limit_bypass, by_default.limit_bypass_grace_s) == ("report", 60)
    strict = parse_conf(_request(limit_bypass="terminate", limit_bypass_grace_s=5)["instance_per_gpu"], "0")
    assert (strict.limit_bypass, strict.limit_bypass_grace_s) == ("terminate", 5)


@pytest.mark.parametrize("policy", ["ignore", "warn", "fail"])
def test_the_policy_for_distributed_jobs_reaches_the_file(policy: str) -> None:
    assert parse_conf(_request()["instance_per_gpu"], "0").distributed_jobs == "warn"
    assert parse_conf(_request(distributed_jobs=policy)["instance_per_gpu"], "0").distributed_jobs == policy


@pytest.mark.parametrize("policy", ["report", "restart"])
def test_the_policy_for_a_daemon_that_answers_nothing_reaches_the_file(policy: str) -> None:
    assert parse_conf(_request()["instance_per_gpu"], "0").unresponsive_daemon == "report"
    desired = _request(unresponsive_daemon=policy)["instance_per_gpu"]
    assert parse_conf(desired, "0").unresponsive_daemon == policy


def test_the_health_timer_is_carried_and_desired_to_run() -> None:
    found = _request()
    files = {entry["path"].rpartition("/")[2]: entry["content"] for entry in found["files"]}
    assert found["units"] == ["mps-health.timer"]
    assert "ExecStart=/usr/local/bin/mpsctl health\n" in files["mps-health.service"]
    assert "Type=oneshot\n" in files["mps-health.service"]
    assert {"OnUnitInactiveSec=60", "RandomizedDelaySec=10", "Persistent=no", "WantedBy=timers.target"} <= set(
        files["mps-health.timer"].splitlines()
    )


def test_what_a_run_may_do_with_clients_is_asked_for_and_stands_in_no_file() -> None:
    by_default = _request()
    assert Request.from_json(by_default).on_clients == "refuse"
    found = Request.from_json(_request(on_clients="terminate", drain_timeout_s="60"))
    assert (found.on_clients, found.drain_timeout_s) == ("terminate", 60)
    assert found.files == Request.from_json(by_default).files
    assert found.instance_per_gpu == by_default["instance_per_gpu"]


@pytest.mark.parametrize("policy", ["refuse", "wait", "terminate"])
def test_a_removal_is_asked_for_with_the_same_policy(policy: str) -> None:
    values = {**variables.defaults(), "mps_on_clients": policy, "mps_drain_timeout_s": 60}
    found = Request.from_json(request.removal(values, "b1"))
    assert (found.remove, found.on_clients, found.drain_timeout_s) == (True, policy, 60)


@pytest.mark.parametrize("policy", ["refuse", "wait", "terminate"])
@pytest.mark.parametrize("check", [True, False])
def test_where_nobody_can_tell_who_is_connected_no_policy_is_named(policy: str, check: bool) -> None:
    found = deferred.line({"instance": "0", "why": "it hangs", "clients": []}, policy, 300, check)
    assert "clients: not told; nobody is ended unseen" in found
    assert "300" not in found


def test_the_first_line_says_whose_the_file_is() -> None:
    found = _request()
    for text in (*(entry["content"] for entry in found["files"]), found["instance_per_gpu"]):
        assert text.startswith("# Managed by mps-fleet")
        assert text.endswith("\n")


@pytest.mark.parametrize("word", [False, "false", "no"])
def test_without_a_front_door_the_unit_does_not_start_its_socket(word: object) -> None:
    def unit(found: dict[str, Any]) -> str:
        return next(str(one["content"]) for one in found["files"] if one["path"] == PLACES["_mps_unit"])

    wanted = "Wants=mps-front-door@%i.socket"
    assert wanted in unit(_request())
    found = _request(front_door=word)
    assert wanted not in unit(found)
    assert "{%" not in unit(found)
    assert not parse_conf(found["instance_per_gpu"], "0").front_door
