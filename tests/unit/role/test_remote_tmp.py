"""No module of Ansible's runs on a host from a folder that others can change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml

from fleet import PROJECT, Fleet
from mps_role import transport

PLAYBOOKS = sorted([*PROJECT.glob("playbooks/*.yml"), PROJECT / "roles/mps/tasks/package.yml"])
LOOK = "mps_remote_tmp"
OF_THE_CONTROLLER = {
    *("include_tasks", "import_tasks", "include_role", "import_role", "import_playbook", "include_vars", "set_fact"),
    *("fail", "debug", "assert", "meta", LOOK, "mps_host", "mps_report", "mps_validate"),
}
"""What runs no module on a host."""
KEYWORDS = {
    *("name", "when", "vars", "register", "timeout", "tags", "loop", "loop_control", "until", "retries", "delay"),
    *("changed_when", "failed_when", "ignore_unreachable", "ignore_errors", "run_once", "delegate_to", "throttle"),
    *("no_log", "environment", "args", "block", "rescue", "always", "notify", "become", "check_mode", "diff"),
    *("any_errors_fatal",),
}


def actions(path: Path) -> Iterator[str]:
    """The actions that a playbook's hosts come to, in order, those of included files as well."""
    for one in yaml.safe_load(path.read_text()) or ():
        if "hosts" in one:
            for part in ("pre_tasks", "tasks", "post_tasks"):
                yield from _of_tasks(one.get(part) or [], path)
        else:
            yield from _of_tasks([one], path)


def _of_tasks(tasks: list[dict[str, Any]], path: Path) -> Iterator[str]:
    for task in tasks:
        for part in ("block", "rescue", "always"):
            yield from _of_tasks(task.get(part) or [], path)
        for key, value in task.items():
            name = key.rpartition(".")[2]
            if key in KEYWORDS or name in KEYWORDS:
                continue
            if name == "include_tasks" and not str(value).startswith("{{"):
                places = [path.parent / str(value), path.parent / "tasks" / Path(str(value)).name]
                yield from actions(next(one for one in places if one.exists()))
            elif task.get("delegate_to") != "localhost":
                yield name


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_the_folder_is_looked_at_before_the_first_module(path: Path) -> None:
    every = list(actions(path))
    first = next((number for number, one in enumerate(every) if one not in OF_THE_CONTROLLER), None)
    assert first is None or LOOK in every[:first], every[: (first or 0) + 1]


def test_playbooks_with_modules_are_found() -> None:
    """Else the test above proves nothing."""
    found = {path.stem for path in PLAYBOOKS if not OF_THE_CONTROLLER.issuperset(actions(path))}
    assert {"drain", "undrain", "reboot", "measure", "bench", "package"} <= found


def judged(folder: Path, user: int) -> str:
    done = subprocess.run(
        ["sh", "-c", transport.judgement(str(folder), str(user)) + " && sleep 0"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root has nothing to lose")
@pytest.mark.parametrize("user", [0, 1234])
def test_what_is_root_s_or_who_connects_is_taken_and_nothing_else(fleet: Fleet, user: int) -> None:
    home = fleet.root / "home"
    folder = home / ".ansible" / "tmp"
    folder.mkdir(parents=True)
    os.chown(home, user, 0)
    beside = judged(fleet.root, user)  # where tests lie may be anybody's
    assert judged(folder, user) == beside
    assert judged(folder / "not" / "there", user) == beside
    for spoiled, mode, owner, group in (
        (folder, 0o755, 4321, 0),
        (folder.parent, 0o1777, user, 0),
        (home, 0o775, user, 55),
    ):
        os.chown(spoiled, owner, group)
        spoiled.chmod(mode)
        assert judged(folder, user) != beside
        os.chown(spoiled, user, 0)
        spoiled.chmod(0o755)
    assert judged(folder, user) == beside
