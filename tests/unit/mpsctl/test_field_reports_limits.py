"""Field reports of limits and percentages: each row of docs/field-reports.md is a test of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import Host, uuid
from mpsctl.adapters import procfs
from mpsctl.causes import environment
from mpsctl.model import client_variable, fit, quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card, Demand
from reporting import CONTROL, COSTS, begin, in_log, in_text, in_unit, join, named, on_host, report

pytestmark = pytest.mark.usefixtures("shown_processes")


# -- limits


@report("B01")
@pytest.mark.parametrize("text", ["8192MB", "8192", "0:8192M", "0=8192", "=8G", "0=8G,", "0=8K", "0=8.5G"])
def test_a_limit_variable_of_another_form(text: str) -> None:
    assert named(environment.lint({client_variable.VARIABLE: text}, ["GPU-1"])) == ["limit-bypassed"]


@report("B01")
@pytest.mark.parametrize("text", ["85899345920", "8192", "8192MB", "0=8G", "-1G"])
def test_a_limit_in_bytes_or_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        quantity.parse(text)


@report("B02")
@pytest.mark.parametrize(
    ("limits", "text"),
    [({0: 2048}, "0=2048M"), ({0: 2048, 1: 512}, "0=2048M,1=512M"), ({uuid(0): 512}, f"{uuid(0)}=512M")],
)
def test_the_limit_variable_has_one_form_which_holds(limits: dict[Any, int], text: str) -> None:
    assert client_variable.render(limits) == text
    assert client_variable.limit_bypass({client_variable.VARIABLE: text}, [uuid(0), uuid(1)]) is None


@report("B04")
@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("CUDA_MPS_DEVICE_MEM_LIMIT", "0=1G", "misspelt-variable"),
        ("CUDA_MPS_PIPE_DIR", "/run/x", "misspelt-variable"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "''0=1G,1=512MB''", "quotes-in-value"),
        ("CUDA_MPS_PIPE_DIRECTORY", '"/run/nvidia-mps/0"', "quotes-in-value"),
    ],
)
def test_variables_as_they_stand_in_examples(name: str, value: str, cause: str) -> None:
    assert cause in named(environment.lint({name: value}, ["GPU-1", "GPU-2"]))


@report("B05")
@pytest.mark.parametrize(
    "words", ["set_default_active_thread_percentage 50", "start_server -uid 0", "get_server_list", "ps", "lspart"]
)
def test_commands_as_arguments(words: str) -> None:
    assert in_unit("[Service]", f"ExecStartPost={CONTROL} {words}")[0] == "command-as-argument"
    assert in_unit(f"nvidia-cuda-mps-control {words} && echo started") == ["command-as-argument"]


@report("B06")
@pytest.mark.parametrize("name", [uuid(0), "GPU-00000000", "7"])
def test_a_limit_that_reads_back_as_nothing(name: str) -> None:
    command = f"default_device_pinned_mem_limit {name}"
    assert in_log(f"Cmd:set_{command} 3G", f"Cmd:get_{command}", "UI closed") == ["limit-not-stored"]


@report("B07")
@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_daemon_is_given_uuids_and_its_limits_go_by_its_own_ordinals(host: Host, index: int) -> None:
    host.desired(str(index), DeviceMemoryLimit="8G")
    daemon = host.start(str(index))
    assert (procfs.environment(daemon.pid) or {})["CUDA_VISIBLE_DEVICES"] == uuid(index)
    assert set(daemon.limits) == {"0"}


@report("B07")
def test_a_limit_for_a_device_that_the_daemon_does_not_have() -> None:
    assert in_log("Invalid device ordinal!") == ["limit-for-no-device"]


@report("B09")
@pytest.mark.parametrize(("processes", "fits"), [(4, True), (5, False), (8, False)])
def test_processes_are_counted_and_not_services(processes: int, fits: bool) -> None:
    verdict = fit.judge(Card("NVIDIA A100", 40_960, "550.1"), COSTS, Demand(clients=processes, limit_mib=10_000))
    assert (verdict.word != fit.REFUSED) == fits


@report("B09")
def test_limits_that_add_up_to_more_than_the_card(host: Host) -> None:
    daemon = begin(host, DeviceMemoryLimit="50%")
    for _ in range(3):
        join(host, daemon)
    assert {"limit-is-per-process", "limits-oversubscribed"} <= on_host(host, errors=["2"])


@report("B10")
@pytest.mark.parametrize("text", ['{"total_memory": 47697362944}', "prop.totalGlobalMem shows the full card"])
def test_totals_say_nothing_about_a_limit(text: str) -> None:
    assert in_text(text) == ["total-is-the-whole-card"]


# -- percentages


@report("B11")
@pytest.mark.parametrize(
    ("percentage", "clients", "told"), [(33, 2, True), (10, 1, False), (50, 2, False), (33, 4, False)]
)
def test_a_percentage_that_leaves_multiprocessors_idle(host: Host, percentage: int, clients: int, told: bool) -> None:
    daemon = begin(host, ActiveThreadPercentage=percentage)
    for _ in range(clients):
        join(host, daemon)
    assert on_host(host) == ({"percentage-caps-everyone"} if told else set())


@report("B12")
@pytest.mark.parametrize(
    "text", ["GPU-Util stays at 99 %", "utilization.gpu is 100", "gpu utilisation does not change"]
)
def test_utilisation_proves_no_percentage(text: str) -> None:
    assert in_text(text) == ["utilization-is-no-share"]


@report("B12")
def test_a_percentage_that_is_not_in_force(host: Host) -> None:
    daemon = begin(host, ActiveThreadPercentage=50)
    daemon.percentage = 100.0
    assert on_host(host) == {"not-as-desired"}
