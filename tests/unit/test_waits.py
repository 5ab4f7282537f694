"""Every wait has an end, and a line in docs/reliability.md."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = PROJECT / "scripts" / "mpsctl"


def documenting() -> Any:
    spec = importlib.util.spec_from_file_location("document_waits", PROJECT / "scripts" / "document_waits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["document_waits"] = module
    spec.loader.exec_module(module)
    return module


WAITS = documenting()


def test_the_page_is_current() -> None:
    done = subprocess.run([sys.executable, PROJECT / "scripts" / "document_faults.py", "--check"], check=False)
    assert done.returncode == 0


# -- the program


def test_every_length_of_the_program_is_a_wait_of_the_table_or_no_wait() -> None:
    """A new bound is written down, or named for what it is instead: a pause, an age, a window."""
    known = {one.place for one in WAITS.OF_PROGRAM}
    lengths = set(WAITS.lengths())
    assert known <= lengths
    assert sorted(place for place in lengths - known if not WAITS.is_no_wait(place)) == []


ENDLESS = {
    "mpsctl/adapters/rank.py": "a rank of a measurement, which its pool ends",
    "mpsctl/adapters/worker_pool.py": "after SIGKILL",
    "mpsctl/adapters/temporary_daemon.py": "after SIGKILL",
    "mpsctl/adapters/cuda.py": "after SIGKILL",
}
"""Modules that wait without saying how long, and why that ends."""


RUNNERS = {"run", "call", "check_call", "check_output"}
WAITERS = {"wait", "communicate", "join", "result", "acquire"}


def unbounded(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that wait for another process, thread or lock and say no length."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and waits(node, node.func):
            yield node


def waits(node: ast.Call, function: ast.Attribute) -> bool:
    name, of, text = function.attr, ast.unparse(function.value), ast.unparse(node)
    said = bool(node.args) or bool(node.keywords)
    if of == "subprocess" and name in RUNNERS:
        return all(word.arg != "timeout" for word in node.keywords)
    if of == "select" and name == "select":
        return len(node.args) < 4
    if name == "waitpid":
        return "WNOHANG" not in text
    if name == "flock":
        return "LOCK_NB" not in text and "LOCK_UN" not in text
    return name in WAITERS and not said


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_call_waits_without_an_end(path: Path) -> None:
    if str(path.relative_to(SOURCES.parent)) not in ENDLESS:
        found = [f"line {call.lineno}: {ast.unparse(call)}" for call in unbounded(ast.parse(path.read_text()))]
        assert found == []


def test_what_is_excused_still_waits() -> None:
    for name in ENDLESS:
        assert list(unbounded(ast.parse((SOURCES.parent / name).read_text()))), name


# -- units


def test_every_unit_that_runs_something_says_how_long_its_start_and_its_end_may_take() -> None:
    for path in (PROJECT / "roles/mps/templates").glob("*.service.j2"):
        text = path.read_text()
        assert "TimeoutStartSec=" in text, path.name
        assert "TimeoutStopSec=" in text, path.name
    for path in (PROJECT / "roles/mps/templates").glob("*.socket.j2"):
        assert "TimeoutSec=" in path.read_text(), path.name


# -- playbooks

LOCAL = {
    "ansible.builtin.debug",
    "ansible.builtin.fail",
    "ansible.builtin.meta",
    "ansible.builtin.set_fact",
    "ansible.builtin.include_vars",
    "ansible.builtin.include_tasks",
    "ansible.builtin.import_tasks",
    "ansible.builtin.import_role",
    "ansible.builtin.include_role",
    "mps_validate",
    "mps_report",
}
"""What is done on the controller, or is more than a task."""


@pytest.mark.parametrize("path", WAITS.task_files(), ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_task_that_goes_to_a_host_has_an_end(path: Path) -> None:
    for task in WAITS.tasks(yaml.safe_load(path.read_text())):
        if "ansible.builtin.import_playbook" in task or LOCAL & set(task) or task.get("delegate_to") == "localhost":
            continue
        assert "timeout" in task or "mps_reboot" in task, f"{path.name}: {task.get('name')}"
