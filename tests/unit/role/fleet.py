"""Fleets of folders: real runs of ansible-playbook against "hosts" on which a fake mpsctl answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional

import yaml

PROJECT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
FAKE = HERE / "fake_mpsctl.py"
FAKE_BUILD = "fake-build"

LOOK, CONVERGE = "mps : Look at the host", "mps : Converge the host"
VALIDATE = "mps : Refuse bad variables of any host"


@dataclass
class Run:
    """What a run of ansible-playbook did."""

    exit_code: int
    output: str
    results: list[dict[str, Any]]

    def of(self, task: str, status: Optional[str] = None) -> dict[str, dict[str, Any]]:
        """The results of a task by host."""
        return {
            line["host"]: line["result"]
            for line in self.results
            if line["task"] == task and status in (None, line["status"])
        }

    def changed(self) -> dict[str, list[str]]:
        """The tasks that changed something, by host."""
        found: dict[str, list[str]] = {}
        for line in self.results:
            if line["result"].get("changed"):
                found.setdefault(line["host"], []).append(line["task"])
        return found

    def failures(self) -> dict[str, str]:
        """What hosts failed with, each its last."""
        return {line["host"]: line["result"]["msg"] for line in self.results if line["status"] == "failed"}

    def summary(self) -> list[str]:
        """The lines at the end that say what was done."""
        head, _, tail = self.output.partition("\nWHAT THE RUN ")
        assert head, self.output
        return tail.splitlines()[1:]

    def message(self) -> str:
        """The one failure's text."""
        failed = [line["result"]["msg"] for line in self.results if line["status"] == "failed"]
        assert len(set(failed)) == 1, failed
        return str(failed[0])


@dataclass
class Fleet:
    """Hosts that are folders under ``root``; the connection is Ansible's own local one."""

    root: Path
    python: str = "/usr/bin/python3"
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, behaviour: Optional[Mapping[str, Any]] = None, **variables: Any) -> Path:
        """A host with variables of its own; ``behaviour`` is what its mpsctl is made to answer."""
        place = self.root / name
        (place / "tmp").mkdir(parents=True)
        (place / "host").touch()
        if behaviour is not None:
            (place / "behaviour.json").write_text(json.dumps(behaviour))
        self.hosts[name] = variables
        return place

    def calls(self, name: str) -> list[str]:
        """What the mpsctl of a host was asked: check or converge, one word a call."""
        path = self.root / name / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def python_of(self, name: str) -> str:
        """A host's Python, which tells the fake program where its host is: it travels into memory."""
        if not Path(self.python).exists():
            return self.python
        place = self.root / "pythons" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(f'#!/bin/sh\nFAKE_HOST={self.root}/{name} exec {self.python} "$@"\n')
        place.chmod(0o755)
        return str(place)

    def play(
        self,
        *arguments: str,
        fake: bool = True,
        extra: Optional[Mapping[str, Any]] = None,
        playbook: Path = PROJECT / "site.yml",
        variables: Optional[Mapping[str, Any]] = None,
    ) -> Run:
        """Run a playbook on all hosts; without ``fake`` the real program is built and would be carried."""
        inventory, record = self.root / "inventory.yml", self.root / "record"
        group = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_remote_tmp": f"{self.root}/{{{{ inventory_hostname }}}}/tmp",
            **(variables or {}),
        }
        hosts = {name: {"ansible_python_interpreter": self.python_of(name), **own} for name, own in self.hosts.items()}
        inventory.write_text(yaml.safe_dump({"gpu-nodes": {"hosts": hosts, "vars": group}}))
        record.unlink(missing_ok=True)
        given: dict[str, Any] = {"_mps_program": f"{self.root}/{{{{ inventory_hostname }}}}/mpsctl", **(extra or {})}
        if fake:
            given["__mps_validated"] = {"program": {"path": str(FAKE), "build": FAKE_BUILD}}
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("-i", str(inventory), "-e", json.dumps(given), *arguments, str(playbook)),
            ],
            cwd=PROJECT,
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(self.root),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": f"{HERE / 'callback_plugins'}:{PROJECT / 'plugins/callback'}",
                "ANSIBLE_CALLBACKS_ENABLED": "record",
                "ANSIBLE_NOCOLOR": "1",
                "RECORD_FILE": str(record),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = record.read_text().splitlines() if record.exists() else []
        return Run(done.returncode, done.stdout + done.stderr, [json.loads(line) for line in lines])
