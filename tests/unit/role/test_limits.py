"""Runs of playbooks/limits.yml over a fleet of folders: batches, refusals, and what a failure says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleet import CONVERGE, LOOK, PROJECT, Fleet, Run

LIMITS = PROJECT / "playbooks" / "limits.yml"
HOSTS = "abcdefgh"
BATCH = "PLAY [Change the limits, batch by batch]"


@pytest.fixture(scope="module")
def once(place_of_module: Path) -> Path:
    """The folders of eight hosts with a limit of 4G, as a run of site.yml left them."""
    fleet = Fleet(place_of_module)
    for name in HOSTS:
        fleet.add(name)
    assert fleet.play(variables={"mps_device_memory_limit": "4G"}).exit_code == 0
    for name in HOSTS:
        (fleet.root / name / "calls").unlink()
    return fleet.root


@pytest.fixture
def converged(fleet: Fleet, once: Path) -> Fleet:
    """Those hosts, for one test."""
    for name in HOSTS:
        fleet.add(name)
        shutil.copytree(once / name, fleet.root / name, dirs_exist_ok=True)
    return fleet


def change(fleet: Fleet, *arguments: str, **variables: object) -> Run:
    return fleet.play(*arguments, playbook=LIMITS, variables={"mps_device_memory_limit": "6G", **variables})


def behave(fleet: Fleet, name: str, **behaviour: object) -> None:
    (fleet.root / name / "behaviour.json").write_text(json.dumps(behaviour))


def test_all_hosts_are_looked_at_and_then_changed_one_then_a_quarter_then_the_rest(converged: Fleet) -> None:
    run = change(converged)
    assert run.exit_code == 0, run.output
    assert run.output.count(BATCH) == 3
    assert [(line["task"], line["host"]) for line in run.results if line["task"] == LOOK][:1]
    phases = [line["task"] for line in run.results if line["task"] in (LOOK, CONVERGE)]
    assert phases == [LOOK] * 8 + [CONVERGE] * 8
    assert all(converged.calls(name) == ["check", "converge"] for name in "abcdefgh")
    assert all((converged.root / name / "atomic").read_text() == "true" for name in "abcdefgh")


def test_a_second_run_changes_nothing(converged: Fleet) -> None:
    change(converged)
    assert change(converged).changed() == {}


@pytest.mark.parametrize(("serial", "batches"), [(3, 3), ("50%", 2), ([2, "100%"], 2), ("100%", 1)])
def test_the_batches_can_be_chosen(converged: Fleet, serial: object, batches: int) -> None:
    assert change(converged, mps_serial=serial).output.count(BATCH) == batches


def test_in_check_mode_nothing_is_changed_and_the_change_is_shown(converged: Fleet) -> None:
    run = change(converged, "--check", "--diff")
    assert run.exit_code == 0
    assert sorted(run.changed()) == list("abcdefgh")
    assert "DeviceMemoryLimit=6G" in run.output
    assert all(converged.calls(name) == ["check"] for name in "abcdefgh")


def test_the_first_failure_ends_the_run_and_its_line_says_who_was_not_begun(converged: Fleet) -> None:
    behave(converged, "b", converge_error="the daemon shows 4G; the former limits are in force again", put_back=True)
    run = change(converged)
    assert run.exit_code != 0
    assert run.message() == (
        "the daemon shows 4G; the former limits are in force again; not begun and untouched: d, e, f, g and 1 more"
    )
    assert sorted(run.changed()) == ["a", "c"], "those before it and beside it in its batch"
    assert run.of(CONVERGE, "failed")["b"]["put_back"] is True
    assert all(converged.calls(name) == ["check"] for name in "defgh")


def test_a_failure_in_the_last_batch_says_so(converged: Fleet) -> None:
    behave(converged, "h", converge_error="no")
    assert change(converged).message() == "no; no host was left to come"


MORE = {"refused": "found a change that needs more; run site.yml for this host"}


def test_more_than_a_live_reload_on_one_host_is_refused_there_alone(converged: Fleet) -> None:
    behave(converged, "g", answer=MORE)
    run = change(converged)
    assert run.exit_code != 0
    assert run.failures() == {"g": f"g: {MORE['refused']}"}
    assert sorted(run.changed()) == list("abcdefh")
    assert run.summary() == [
        "a … f, h (7 hosts): state.json written",
        f"refused: g: {MORE['refused']}",
    ]


@pytest.mark.parametrize("answer", [MORE, {"error": "the driver is not loaded"}])
@pytest.mark.parametrize("value", ["true", "yes"])
def test_all_or_nothing(converged: Fleet, answer: dict[str, str], value: str) -> None:
    behave(converged, "g", answer=answer)
    run = change(converged, "-e", f"mps_all_or_nothing={value}")
    assert run.exit_code != 0
    assert list(run.failures()) == ["g"]
    assert all(converged.calls(name) == ["check"] for name in HOSTS)
    assert run.summary()[0] == ("not begun and untouched, as mps_all_or_nothing is set: a … f, h (7 hosts)")
    behave(converged, "g")
    assert sorted(change(converged, mps_all_or_nothing=True).changed()) == list(HOSTS)


NO_FIT = {"refused": "mps_shares: found each-user=9, expected what fits; at most 3 clients", "does_not_fit": True}


@pytest.mark.parametrize("names", ["g", "a", "ab", "h", "abcdefg"])
def test_hosts_whose_gpus_cannot_hold_it_refuse_alone_and_the_others_are_changed(converged: Fleet, names: str) -> None:
    """Also where a whole batch refuses: the first is one host, the second two."""
    for name in names:
        behave(converged, name, answer=NO_FIT)
    run = change(converged)
    assert run.exit_code != 0
    assert run.failures() == {name: f"{name}: {NO_FIT['refused']}" for name in names}
    assert sorted(run.changed()) == [name for name in HOSTS if name not in names]
    assert all(converged.calls(name) == ["check"] for name in names)


def test_where_no_host_can_hold_it_none_is_changed(converged: Fleet) -> None:
    for name in HOSTS:
        behave(converged, name, answer=NO_FIT)
    run = change(converged)
    assert run.exit_code != 0
    assert not run.changed()


def test_a_failure_still_ends_the_run_where_another_host_could_not_hold_it(converged: Fleet) -> None:
    behave(converged, "a", answer=NO_FIT)
    behave(converged, "b", converge_error="the daemon shows 4G", put_back=True)
    run = change(converged)
    assert run.exit_code != 0
    assert sorted(run.changed()) == ["c"], "beside it in its batch"
    assert all(converged.calls(name) == ["check"] for name in "adefgh")


def test_a_host_that_cannot_be_looked_at_fails_alone(converged: Fleet) -> None:
    behave(converged, "g", answer={"error": "the driver is not loaded"})
    run = change(converged)
    assert run.exit_code != 0
    assert run.failures() == {"g": "the driver is not loaded"}
    assert sorted(run.changed()) == list("abcdefh")


def test_a_host_that_cannot_be_reached_fails_alone_or_stops_all_by_choice(converged: Fleet) -> None:
    converged.add("i", ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1, ansible_user="root")
    assert change(converged, mps_all_or_nothing=True).exit_code != 0
    assert all(converged.calls(name) == ["check"] for name in HOSTS)
    run = change(converged)
    assert run.exit_code != 0
    assert sorted(run.changed()) == list(HOSTS)
    assert run.summary()[-1].startswith("unreachable: i: ")


def test_bad_variables_of_one_host_are_refused_before_any_is_asked(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b", mps_device_memory_limit="6GB")
    run = fleet.play(playbook=LIMITS, fake=False)
    assert run.exit_code != 0
    assert "b: mps_device_memory_limit: found '6GB'" in run.message()
    assert fleet.calls("a") == []


def test_no_package_is_installed_on_the_way(converged: Fleet) -> None:
    behave(converged, "a", answer={"missing": {"what": "x", "message": "x was not found"}, "changed": False})
    run = change(converged, mps_package=True)
    assert run.exit_code != 0
    assert run.message() == "x was not found"


def test_limits_by_group_host_and_instance(fleet: Fleet) -> None:
    """Ansible's own precedence; null is not managed and has no line in the file."""
    fleet.add("a")
    fleet.add("b", mps_device_memory_limit="2G", mps_active_thread_percentage=None)
    fleet.add("c", mps_instances=[{"name": "t", "gpus": ["0"], "device_memory_limit": None, "client_priority": 1}])
    variables = {"mps_device_memory_limit": "6G", "mps_active_thread_percentage": 40}
    assert fleet.play(playbook=LIMITS, variables=variables).exit_code == 0

    def lines(name: str) -> list[str]:
        state = json.loads((fleet.root / name / "state.json").read_text())
        conf = state["instance_per_gpu"] or state["instances"][0]["conf"]
        keys = ("DeviceMemoryLimit", "ActiveThreadPercentage", "ClientPriority")
        return [line for line in conf.splitlines() if line.startswith(keys)]

    assert lines("a") == ["DeviceMemoryLimit=6G", "ActiveThreadPercentage=40"]
    assert lines("b") == ["DeviceMemoryLimit=2G"]
    assert lines("c") == ["ActiveThreadPercentage=40", "ClientPriority=1"]
