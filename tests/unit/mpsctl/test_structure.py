"""The shape of the program: rooms in order, no circle, nothing too long, and the field's words."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

PROJECT = Path(__file__).parents[3]
PROGRAM = PROJECT / "scripts" / "mpsctl"
ROOMS = (
    "model",
    "adapters",
    "store",
    "observe",
    "front_door",
    "checks",
    "metrics",
    "causes",
    "lifecycle",
    "converge",
    "measuring",
    "cli",
)
"""Each may import those before it."""
REBUILT = ("model", "store", "observe", "front_door", "checks", "metrics", "causes", "lifecycle", "converge", "cli")
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 60

MODULES = {
    ".".join(("mpsctl", *path.relative_to(PROGRAM).with_suffix("").parts)): path
    for path in sorted(PROGRAM.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
}


def imports(path: Path) -> Iterator[str]:
    """The modules of the program that one imports, at its head or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mpsctl"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


GRAPH = {name: sorted({one for one in imports(path) if one in MODULES}) for name, path in MODULES.items()}


def test_every_module_stands_in_a_room_that_is_known() -> None:
    assert {name.split(".")[1] for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", MODULES)
def test_no_arrow_runs_up(name: str) -> None:
    mine = ROOMS.index(name.split(".")[1])
    assert [one for one in GRAPH[name] if ROOMS.index(one.split(".")[1]) > mine] == []


def test_the_front_door_runs_by_itself() -> None:
    """What it shares with the unit's commands are files in store; only the command line knows it."""
    users = {name.split(".")[1] for name in GRAPH if any(one.startswith("mpsctl.front_door.") for one in GRAPH[name])}
    assert users <= {"front_door", "cli"}


def test_no_circle() -> None:
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for one in GRAPH[name]:
                walk(one, (*way, name))
            done.add(name)

    for name in GRAPH:
        walk(name, ())


def test_only_one_module_knows_pynvml() -> None:
    """Whoever else asks NVML asks that one."""
    knows = [
        name for name, path in MODULES.items() if "pynvml" in re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
    ]
    assert knows == ["mpsctl.adapters.nvml"]


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[1] in REBUILT])
def test_nothing_is_too_long(name: str) -> None:
    text = MODULES[name].read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MOST_LINES_OF_A_FUNCTION, node.name


BANNED = re.compile(
    r"\b(?:wish(?:ed|es)?|unwished|courier|carrier|crew|tether|lent[ _]daemon|quiet[ _]gpu|witness(?:es|ed)?|way[ _]in"
    r"|escaped?[ _]clients?|clients?[ _]escape[sd]?|silent[ _]daemons?|former[ _](?:compute[ _])?modes?|held[ _]back"
    r"|bereft|cut[ _]off|strangers?|metal|wedged?|gate|gates)\b",
    re.IGNORECASE,
)
"""Words that stand for one thing in this project and say another, or nothing, to whoever knows the field."""
IDENTIFIERS = re.compile(
    r"(?:^|_)(?:wish|wished|wishes|courier|crew|tether|lent|witness|escaped|escapes|bereft|stranger|strangers|gate|turn)"
    r"(?:_|$)",
    re.IGNORECASE,
)
ALLOWED = (
    "former-compute-modes",  # where 0.1.0 and 0.2.0 put the saved compute modes, and hosts have them
    "surrogateescape",
    "Metal Performance Shaders",  # Apple's MPS, by its name
    "metal-performance-shaders",
    "--witness",  # 0.2.0's option and variable: taken with a warning, and refused by the next release
    "witness: found a former name",
    "witness is defined",
    "default(witness |",
)
CHECKED = ("*.py", "*.yml", "*.md", "*.j2", "*.sh", "*.service", "Makefile")
FORMER_NAMES = (
    "tests/lab/test_upgrades.py",
    "tests/unit/mpsctl/test_former_options.py",
    "tests/unit/role/test_former_names.py",
)
"""Tests of what this release still takes from 0.2.0."""
SPARED = ("docs/measurements/", "CHANGELOG.md", "tests/unit/mpsctl/test_structure.py", *FORMER_NAMES)


def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", *CHECKED], cwd=PROJECT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if not name.startswith(SPARED) and (PROJECT / name).is_file()]


def test_the_words_are_the_fields() -> None:
    found = []
    for name in files():
        for number, line in enumerate((PROJECT / name).read_text(errors="replace").splitlines(), 1):
            for allowed in ALLOWED:
                line = line.replace(allowed, "")
            found += [f"{name}:{number}: {match[0]}" for match in BANNED.finditer(line)]
    assert found == []


@pytest.mark.parametrize("name", MODULES)
def test_identifiers_are_the_fields(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert [one for one in sorted(names) if IDENTIFIERS.search(one)] == []
