"""Tests that need whole hosts: each boots its own under a prefix of its own, and ends them."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

PROJECT = Path(__file__).resolve().parents[2]
LAB = PROJECT / "lab/lab"


@dataclass(frozen=True)
class LabHost:
    """A running host of the lab; ``facts`` is its row of `lab/lab list --json`."""

    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    def run(self, command: str, stdin: bytes = b"", check: bool = True) -> str:
        """Run a shell command on the host; what it printed on both streams."""
        done = subprocess.run([LAB, "ssh", self.name, command], input=stdin, capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert not check or done.returncode == 0, f"{self.name}: `{command}` ended with {done.returncode}:\n{said}"
        return said


@contextmanager
def hosts(prefix: str, *options: str) -> Iterator[list[LabHost]]:
    """Hosts booted for the length of the block."""
    subprocess.run([LAB, "up", "--prefix", prefix, *options], check=True)
    try:
        listed = json.loads(subprocess.run([LAB, "list", "--json"], capture_output=True, check=True).stdout)
        yield [LabHost(host) for host in listed if host["name"].startswith(f"{prefix}-")]
    finally:
        subprocess.run([LAB, "down", "--prefix", prefix], check=True)
