"""What the steps of a plan say of themselves as data: values before and after, live, restarted, modes of GPUs."""

from __future__ import annotations

from typing import Any

from converging import POLICIES, TIMER_TEXT, Fleet, at_work, conf
from mpsctl.converge.answer import Answer


def said(answer: Answer, *whats: str) -> list[dict[str, Any]]:
    """The statements of an answer, of these kinds."""
    every = [one for step in answer.steps for one in step["statements"]]
    return [one for one in every if one["what"] in whats]


def test_a_first_converge_says_what_is_new_and_which_modes_change(fleet: Fleet) -> None:
    fleet.timer = TIMER_TEXT
    for answer in (fleet.check(_0=conf(fleet)), fleet.converge(_0=conf(fleet))):
        assert said(answer, "instance-written", "started") == [
            {"what": "instance-written", "instance": "0"},
            {"what": "started", "instance": "0"},
            {"what": "started", "name": "mps-health.timer"},
        ]
        assert said(answer, "compute-mode") == [
            {"what": "compute-mode", "instance": "0", "gpu": 0, "before": "default", "after": "exclusive_process"}
        ]
        assert said(answer, "front-door-opened") == [{"what": "front-door-opened", "instance": "0"}]
        assert said(answer, "program-installed") == [{"what": "program-installed"}]
        assert not said(answer, "setting")


def test_a_changed_limit_has_its_values_and_is_live(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert said(answer, "setting", "reloaded", "restarted", "compute-mode") == [
        {"what": "setting", "instance": "0", "name": "device_memory_limit", "before": "4G", "after": "6G"},
        {"what": "reloaded", "instance": "0"},
    ]


def test_a_limit_that_is_managed_no_more_has_no_value_after(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    (one,) = said(fleet.check(_0=fleet.host.conf("0", {"ComputeMode": "exclusive_process"})), "setting")
    assert (one["before"], one["after"]) == ("4G", None)


def test_a_default_that_stands_in_no_file_is_a_value(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    found = {
        one["name"]: one for one in said(fleet.check(_0=conf(fleet, MultiUser="yes", StopTimeoutSec=60)), "setting")
    }
    assert (found["multi_user"]["before"], found["multi_user"]["after"]) == ("no", "yes")
    assert (found["stop_timeout_s"]["before"], found["stop_timeout_s"]["after"]) == ("20", "60")


def test_a_changed_mode_names_the_gpu(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    answer = fleet.check(_0=conf(fleet, ComputeMode="default"))
    assert said(answer, "compute-mode") == [
        {"what": "compute-mode", "instance": "0", "gpu": 0, "before": "exclusive_process", "after": "default"}
    ]


def test_a_mode_that_is_managed_no_more_goes_back(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    text = fleet.host.conf("0", {"DeviceMemoryLimit": "4G"})
    (told,), (done,) = (said(run(_0=text), "compute-mode") for run in (fleet.check, fleet.converge))
    assert told == done
    assert (done["before"], done["after"]) == ("exclusive_process", "default")
    assert fleet.host.nvml.gpu(0).compute_mode == "default"


def test_a_limit_that_somebody_set_by_hand_is_a_reload_alone(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.running("0").limits["0"] = 0
    assert [one["what"] for step in fleet.converge(_0=conf(fleet)).steps for one in step["statements"]] == ["reloaded"]


def test_what_is_withheld_is_not_said(fleet: Fleet) -> None:
    for policy in POLICIES[:1]:
        at_work(fleet, policy)
        answer = fleet.converge(a=conf(fleet, "a", GPUs="1"))
        assert answer.pending
        assert said(answer, "setting")
        assert not said(answer, "restarted")


def test_an_instance_that_goes_gives_its_mode_back(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs="1"))
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0"))
    assert said(answer, "instance-removed") == [{"what": "instance-removed", "instance": "b"}]
    assert [(one["gpu"], one["after"]) for one in said(answer, "compute-mode")] == [(1, "default")]


def test_in_the_desired_state_nothing_is_said(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    assert not fleet.converge(_0=conf(fleet)).steps
