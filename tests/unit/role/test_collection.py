"""The project laid out as a collection: its role and playbooks find the plugins there, without this ansible.cfg."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Mapping

import pytest

PROJECT = Path(__file__).resolve().parents[3]
NAMESPACE, NAME = "of_a_test", "mps_fleet"


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("collections") / "ansible_collections" / NAMESPACE / NAME
    for name in ("plugins", "roles", "scripts", "playbooks"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "galaxy.yml").write_text(
        f"namespace: {NAMESPACE}\nname: {NAME}\nversion: 0.0.1\nreadme: README.md\nauthors: [a]\n"
    )
    (root / "README.md").write_text("of a test\n")
    return root


def ansible(
    collection: Path, folder: Path, *words: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    (folder / "inventory.yml").write_text("gpu-nodes: {hosts: {a: {ansible_connection: local}}}\n")
    (folder / "ansible.cfg").write_text("[defaults]\ninterpreter_python = /usr/bin/python3\n")
    tool, *rest = words
    return subprocess.run(
        [str(Path(sys.executable).with_name(tool)), *rest],
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(collection.parents[2]),
            "ANSIBLE_NOCOLOR": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def play(
    collection: Path, folder: Path, *words: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return ansible(collection, folder, "ansible-playbook", "-i", "inventory.yml", *words, environment=environment)


def test_the_collections_role_validates_and_builds_its_own_program(collection: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(
        "- hosts: gpu-nodes\n  gather_facts: false\n  tasks:\n"
        f"    - import_role: {{name: {NAMESPACE}.{NAME}.mps, tasks_from: validate, rolespec_validate: false}}\n"
        "    - debug: {msg: 'built {{ __mps_validated.program.path }}'}\n"
    )
    done = play(collection, tmp_path, "own.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"built {collection}/build/mpsctl" in done.stdout
    refused = play(collection, tmp_path, "own.yml", "-e", "mps_device_memory_limit=20GB")
    assert refused.returncode != 0
    assert "a: mps_device_memory_limit: found '20GB'" in refused.stdout + refused.stderr


@pytest.mark.parametrize("name", ["verify", "site"])
def test_the_collections_playbooks_find_its_role_and_plugins(collection: Path, tmp_path: Path, name: str) -> None:
    done = play(collection, tmp_path, f"{NAMESPACE}.{NAME}.{name}", "-e", "mps_package=a;b")
    assert "a: mps_package: found 'a;b'" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["mps_drain", "mps_host", "mps_reboot", "mps_report", "mps_validate"])
def test_a_module_is_documented_under_the_collections_name(collection: Path, tmp_path: Path, name: str) -> None:
    done = ansible(collection, tmp_path, "ansible-doc", "--json", f"{NAMESPACE}.{NAME}.{name}")
    assert f'"{NAMESPACE}.{NAME}.{name}"' in done.stdout, done.stderr


def test_a_collections_callback_is_enabled_by_its_name(collection: Path, tmp_path: Path) -> None:
    """Beside a stdout callback of the user's own."""
    for enabled in (f"{NAMESPACE}.{NAME}.mps_summary", ""):
        environment = {"ANSIBLE_CALLBACKS_ENABLED": enabled, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal"}
        done = play(collection, tmp_path, f"{NAMESPACE}.{NAME}.site", "-e", "mps_package=a;b", environment=environment)
        said = done.stdout + done.stderr
        assert ("refused: a: mps_package: found 'a;b'" in said) == bool(enabled), said
