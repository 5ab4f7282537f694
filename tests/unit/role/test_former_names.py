"""Names of the release before: taken with a warning of one line, refused beside the present name with another value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet import CONVERGE, LOOK, PROJECT, VALIDATE, Fleet, Run
from mps_role import ansible_values, variables
from mpsctl.model.setting import Former
from mpsctl.model.settings import BY_VARIABLE

OLD, NEW = "mps_escaped_clients", "mps_limit_bypass"
WARNING = f"{OLD}: found a former name, which the next release no longer takes; write {NEW}"


def conf_of(fleet: Fleet, host: str) -> str:
    """The text of an instance's file, as a host got it."""
    state = json.loads((fleet.root / host / "state.json").read_text())
    return str(state["instance_per_gpu"])


def told(run: Run, line: str) -> int:
    """How often a person reads a line; Ansible breaks lines, wherever they are."""
    return "".join(run.output.split()).count("".join(f"[WARNING]: {line}".split()))


@pytest.mark.parametrize(
    ("former", "setting", "value", "line"),
    [
        (OLD, NEW, "terminate", "LimitBypass=terminate"),
        ("mps_escape_grace_s", "mps_limit_bypass_grace_s", 7, "LimitBypassGraceSec=7"),
    ],
)
def test_a_former_name_is_taken_and_a_warning_says_what_to_write(
    fleet: Fleet, former: str, setting: str, value: object, line: str
) -> None:
    fleet.add("a", None, **{former: value})
    fleet.add("b", None, **{setting: value})
    run = fleet.play()
    assert run.exit_code == 0, run.output
    warning = f"{former}: found a former name, which the next release no longer takes; write {setting}"
    assert run.of(VALIDATE)["a"]["warnings"] == [f"a: {warning}"]
    assert run.of(LOOK)["a"]["warnings"] == [warning]
    assert not run.of(LOOK)["b"].get("warnings")
    assert told(run, f"a: {warning}") == told(run, warning) == 1  # however many tasks say it
    assert line in conf_of(fleet, "a")
    assert conf_of(fleet, "a") == conf_of(fleet, "b")


@pytest.mark.parametrize("value", ["terminate", "report"])
def test_two_values_under_two_names_are_refused_before_any_host_is_asked(fleet: Fleet, value: str) -> None:
    """Also where the present name has the default's value: it was set all the same."""
    other = {"terminate": "report", "report": "terminate"}[value]
    fleet.add("a", None, **{OLD: other, NEW: value})
    run = fleet.play()
    assert run.message() == (
        f"a: {NEW}: found {value!r}, and {other!r} by its former name, expected one value; remove {OLD}"
    )
    assert not fleet.calls("a")


def test_one_value_under_two_names_is_taken(fleet: Fleet) -> None:
    fleet.add("a", mps_escape_grace_s=7)
    run = fleet.play(extra={"mps_limit_bypass_grace_s": "7"})
    assert run.exit_code == 0, run.output
    assert "LimitBypassGraceSec=7" in conf_of(fleet, "a")


def own_play(fleet: Fleet, given: str) -> Path:
    playbook = fleet.root / "own.yml"
    playbook.write_text(
        f"- hosts: gpu-nodes\n  gather_facts: false\n  vars: {given}\n"
        "  tasks:\n    - import_role: {name: mps, rolespec_validate: false}\n"
    )
    return playbook


def test_a_former_name_that_only_a_play_gives_is_seen_by_the_look(fleet: Fleet) -> None:
    fleet.add("a")
    run = fleet.play(playbook=own_play(fleet, f"{{{OLD}: terminate}}"))
    assert run.exit_code == 0, run.output
    assert run.of(LOOK)["a"]["warnings"] == run.of(CONVERGE)["a"]["warnings"] == [WARNING]
    assert "LimitBypass=terminate" in conf_of(fleet, "a")


def test_a_play_that_sets_the_default_by_the_present_name_is_not_overruled(fleet: Fleet) -> None:
    """The role's default has the same value, and is nothing that somebody set."""
    fleet.add("a", None, **{OLD: "terminate"})
    run = fleet.play(playbook=own_play(fleet, f"{{{NEW}: report}}"))
    assert run.message().startswith(f"a: {NEW}: found 'report', and 'terminate' by its former name")
    assert not fleet.calls("a")


def test_a_bad_value_by_a_former_name_is_refused_and_the_name_told(fleet: Fleet) -> None:
    fleet.add("a", None, **{OLD: "kill"})
    run = fleet.play(fake=False)
    assert run.message() == f"a: {NEW}: found 'kill', expected report, refuse or terminate; write report"
    assert told(run, f"a: {WARNING}") == 1


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the release before had mps_limit, in an entry of mps_instances as well."""
    row = (BY_VARIABLE["mps_device_memory_limit"], Former("mps_limit", "Limit"))
    monkeypatch.setattr(variables, "FORMER", {"mps_limit": row})


@pytest.mark.usefixtures("renamed")
def test_the_next_rename_is_one_entry_of_the_table() -> None:
    entries = [{"name": "x", "gpus": ["0"], "limit": "2G"}, {"name": "y", "gpus": ["1"]}]
    given: dict[str, Any] = {"mps_limit": "4G", "mps_instances": entries}
    read = ansible_values.of(given)
    assert read.values["mps_device_memory_limit"] == "4G"
    assert read.values["mps_instances"][0] == {"name": "x", "gpus": ["0"], "device_memory_limit": "2G"}
    assert read.warnings == [
        "mps_limit: found a former name, which the next release no longer takes; write mps_device_memory_limit",
        "mps_instances[x].limit: found a former name, which the next release no longer takes; write"
        " device_memory_limit",
    ]
    assert (read.problems, variables.unknown(given), variables.problems(read.values)) == ([], [], [])


@pytest.mark.usefixtures("renamed")
def test_an_instance_with_two_values_under_two_names_is_refused() -> None:
    entry = {"name": "x", "gpus": ["0"], "limit": "2G", "device_memory_limit": "3G"}
    problem = "found '3G', and '2G' by its former name, expected one value; remove limit"
    found = ansible_values.of({"mps_instances": [entry]}).problems
    assert found == [f"mps_instances[x].device_memory_limit: {problem}"]


@pytest.mark.parametrize("entries", ["all", None, [], ["x"], [{"gpus": 3}]])
@pytest.mark.usefixtures("renamed")
def test_instances_of_any_kind_are_left_to_the_checks(entries: object) -> None:
    assert ansible_values.of({"mps_instances": entries}).values["mps_instances"] == entries


ASKED = """\
import json, pathlib, sys
pathlib.Path(sys.argv[0]).with_name("asked").write_text(" ".join(sys.argv[1:]))
print(json.dumps({"format": 2, "instances": {"0": {"checks": []}}, "host": {"checks": []}}))
"""
WITNESS = "witness: found a former name, which the next release no longer takes; write probe_client"


@pytest.mark.parametrize(
    ("given", "probed", "warned"),
    [
        ({}, False, False),
        ({"probe_client": True}, True, False),
        ({"probe_client": "false"}, False, False),
        ({"witness": "true"}, True, True),
        ({"witness": False}, False, True),
    ],
)
def test_verify_takes_the_former_name_of_probe_client(
    fleet: Fleet, given: dict[str, Any], probed: bool, warned: bool
) -> None:
    (fleet.add("a") / "mpsctl").write_text(ASKED)
    extra = {**given, "report_directory": str(fleet.root / "reports")}
    run = fleet.play(playbook=PROJECT / "playbooks/verify.yml", extra=extra)
    assert run.exit_code == 0, run.output
    asked = (fleet.root / "a" / "asked").read_text()
    assert asked == "verify --json" + (" --probe-client" if probed else "")
    assert (WITNESS in " ".join(run.output.split())) == warned  # long lines are broken
