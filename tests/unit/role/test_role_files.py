"""The role's own files agree with one another."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mps_role import packages, variables
from mpsctl.model.errors import BadValue
from mpsctl.model.setting import Setting
from mpsctl.model.settings import BY_VARIABLE, SETTINGS

PROJECT = Path(__file__).resolve().parents[3]
ROLE = PROJECT / "roles" / "mps"


DEFAULTS: dict[str, Any] = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
SPEC: dict[str, Any] = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"][
    "options"
]


def plain_text(markup: str) -> str:
    """Ansible's documentation markup without its marks."""
    return re.sub(r"\b[VCO]\(([^)]*)\)", r"\1", markup)


def test_defaults_and_argument_specs_have_the_tables_variables() -> None:
    assert set(DEFAULTS) == set(SPEC) == set(BY_VARIABLE)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.variable)
def test_a_row_of_the_table_is_the_same_in_defaults_and_argument_specs(setting: Setting) -> None:
    option = SPEC[setting.variable]
    description = option["description"] if isinstance(option["description"], list) else [option["description"]]
    assert option["type"] == setting.type
    assert option.get("default") == setting.default == DEFAULTS[setting.variable]
    assert type(DEFAULTS[setting.variable]) is type(setting.default)
    assert plain_text(description[0]).startswith(setting.meaning)


@pytest.mark.parametrize("name", [name for name, option in SPEC.items() if "choices" in option])
def test_the_choices_are_those_that_the_check_takes(name: str) -> None:
    for choice in SPEC[name]["choices"]:
        BY_VARIABLE[name].check(choice)
    with pytest.raises(BadValue) as refusal:
        BY_VARIABLE[name].check("another word")
    expected = re.split(r", | or ", refusal.value.expected)
    assert sorted(expected) == sorted(SPEC[name]["choices"])


def test_the_defaults_are_good_values() -> None:
    assert variables.problems(variables.defaults()) == []
    assert variables.defaults() == DEFAULTS


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.per_instance], ids=lambda one: one.name)
def test_an_override_is_of_its_variables_type(setting: Setting) -> None:
    option = SPEC["mps_instances"]["options"][setting.name]
    assert option["type"] == setting.type
    assert option["description"] == f"Overrides O({setting.variable}) for this instance."


def test_an_instances_own_keys_are_those_that_are_read() -> None:
    assert set(SPEC["mps_instances"]["options"]) == {"name", "gpus", *variables.OVERRIDES}


def test_the_readmes_table_is_current() -> None:
    done = subprocess.run([sys.executable, PROJECT / "scripts" / "document_role.py", "--check"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("inventory", ["example", "lab"])
def test_an_inventory_knows_only_variables_of_the_role(inventory: str) -> None:
    for path in (PROJECT / "inventories" / inventory / "group_vars").glob("*.yml"):
        values: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
        assert variables.unknown(values) == []
        assert variables.problems({**variables.defaults(), **values}) == []


def test_the_example_explains_every_variable_with_its_default() -> None:
    texts = "".join(
        (PROJECT / "inventories/example/group_vars" / name).read_text() for name in ("all.yml", "gpu-nodes.yml")
    )
    shown: dict[str, list[Any]] = {}
    for name, value in re.findall(r"^# (mps_\w+): (.+)$", texts, re.MULTILINE):
        shown.setdefault(name, []).append(yaml.safe_load(value))
    for name, default in variables.defaults().items():
        assert default in shown[name]
    assert set(shown) == set(variables.defaults())


@pytest.mark.parametrize("path", sorted((ROLE / "tasks").glob("*.yml")), ids=lambda path: path.name)
def test_a_task_file_begins_with_what_goes_in_and_out(path: Path) -> None:
    head = path.read_text().split("- name:")[0]
    if path.name != "main.yml":
        assert "\n# In:" in head
        assert "\n# Out:" in head


@pytest.mark.parametrize(
    ("release", "like", "file"),
    [
        ("debian", "", "debian.yml"),
        ("ubuntu", "debian", "ubuntu.yml"),
        ("linuxmint", "ubuntu debian", "ubuntu.yml"),
        ("rhel", "fedora", "rhel.yml"),
        ("rocky", "rhel centos fedora", "rhel.yml"),
        ("arch", "", None),
        ("main", "", None),
        ("../x", "", None),
    ],
)
def test_the_package_of_a_distribution(release: str, like: str, file: str | None) -> None:
    assert packages.vars_file({"ID": release, "ID_LIKE": like}) == file


def test_the_lab_inventory_groups_running_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPS_LAB_PREFIX", raising=False)  # set by whoever works with hosts of their own
    spec = importlib.util.spec_from_file_location("lab_hosts", PROJECT / "inventories" / "lab" / "hosts.py")
    assert spec is not None
    assert spec.loader is not None
    hosts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hosts)
    listed = [
        {
            "name": f"lab-0{number}",
            "address": f"127.77.0.1{number}",
            "port": 22,
            "user": "root",
            "key": "/lab/key",
            "release": "bookworm",
            "daemon": daemon,
            "model": "h200",
            "state": state,
        }
        for number, daemon, state in ((1, "535", "running"), (2, "550", "running"), (3, "550", "stopped"))
    ]
    found = hosts.inventory(listed)
    assert found["gpu-nodes"]["hosts"] == ["lab-01", "lab-02"]
    assert found["daemon_550"]["hosts"] == ["lab-02"]
    assert found["release_bookworm"]["hosts"] == ["lab-01", "lab-02"]
    assert found["_meta"]["hostvars"]["lab-01"]["ansible_host"] == "127.77.0.11"
    assert json.dumps(found)


@pytest.mark.parametrize("name", ["mps_drain", "mps_host", "mps_reboot", "mps_report", "mps_validate"])
def test_a_module_called_by_mistake_says_where_it_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, PROJECT / "plugins/modules" / f"{name}.py"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {}}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is an action and runs on the controller" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["mps_drain", "mps_host", "mps_reboot", "mps_report", "mps_validate"])
def test_a_module_is_documented(name: str) -> None:
    text = (PROJECT / "plugins/modules" / f"{name}.py").read_text()
    sections = dict(re.findall(r'^(DOCUMENTATION|EXAMPLES|RETURN) = r"""\n(.*?)"""', text, re.DOTALL | re.MULTILINE))
    documentation = yaml.safe_load(sections["DOCUMENTATION"])
    assert documentation["module"] == name
    action = (PROJECT / f"plugins/action/{name}.py").read_text()
    taken = re.findall(r"_VALID_ARGS = frozenset(?:\[str\])?\((.*?)\)\n", action, re.DOTALL)
    assert set(documentation["options"]) == set(re.findall(r'"(\w+)"', taken[0]))
    assert set(documentation["attributes"]) == {"check_mode", "diff_mode", "idempotent"}
    assert yaml.safe_load(sections["EXAMPLES"])
    assert yaml.safe_load(sections["RETURN"])


def test_what_python_leaves_beside_an_inventory_script_draws_no_warning(tmp_path: Path) -> None:
    """`-l gpu-nodes` warns of nothing, also after a test has imported the script."""
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "hosts.yml").write_text("gpu-nodes: {hosts: {a: }}\n")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    command = ["ansible-inventory", "-i", str(tmp_path), "--list", "--limit", "gpu-nodes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stdout + done.stderr
    assert json.loads(done.stdout)["gpu-nodes"] == {"hosts": ["a"]}


DOOR_SERVICE = (ROLE / "templates/mps-front-door@.service.j2").read_text()


def paused_s(place: Path, result: str, status: str) -> str:
    """How long the door's service waits before its next start, as systemd would run its ExecStopPost=; the sleep is a
    stub that says it."""
    (line,) = re.findall(r"^ExecStopPost=-\+(.*)$", DOOR_SERVICE, re.MULTILINE)
    stub = place / "bin/sleep"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/sh\necho $1\n")
    stub.chmod(0o755)
    words = shlex.split(line.replace("$$", "$").replace("/run/mps-fleet/%i", str(place / "run")))
    environment = {"PATH": f"{stub.parent}:/usr/bin:/bin", "SERVICE_RESULT": result, "EXIT_STATUS": status}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.parametrize(("result", "status"), [("success", "0"), ("signal", "KILL"), ("oom-kill", "KILL")])
def test_a_front_door_that_was_killed_or_had_nothing_to_do_does_not_wait(
    tmp_path: Path, result: str, status: str
) -> None:
    (tmp_path / "run").mkdir()
    assert [paused_s(tmp_path, result, status) for _ in range(3)] == ["", "", ""]
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("result", "status"), [("exit-code", "203"), ("exit-code", "1"), ("core-dump", "SEGV"), ("resources", "")]
)
def test_a_front_door_that_ends_by_itself_waits_ever_longer(tmp_path: Path, result: str, status: str) -> None:
    (tmp_path / "run").mkdir()
    assert [paused_s(tmp_path, result, status) for _ in range(7)] == ["1", "2", "4", "8", "16", "16", "16"]
    (tmp_path / "run/front-door.pause").unlink()  # one has served
    assert paused_s(tmp_path, result, status) == "1"


def test_without_a_place_to_count_it_waits_all_the_same(tmp_path: Path) -> None:
    assert [paused_s(tmp_path, "exit-code", "203") for _ in range(2)] == ["1", "1"]
