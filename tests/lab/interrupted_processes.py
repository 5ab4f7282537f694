"""The processes of a run, on the controller and on lab hosts, by the numbers that this machine gives them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .conftest import LabHost

_VERBS = {"reconcile", "drain", "undrain"}


@dataclass(frozen=True)
class Process:
    pid: int
    words: list[str]

    @property
    def acts(self) -> bool:
        """A mpsctl that changes its host, or the bootstrap that started it."""
        python = bool(self.words) and Path(self.words[0]).name.startswith("python")
        return python and bool(_VERBS & {*self.words}) and "--check" not in self.words

    @property
    def is_mpsctl(self) -> bool:
        """One that acts, or a command of the units. The front door's service is killed in trials of its own."""
        return self.acts or ("/usr/local/bin/mpsctl" in self.words[:3] and "front-door" not in self.words)

    @property
    def is_session(self) -> bool:
        return bool(self.words) and self.words[0].startswith(("sshd: ", "sshd-session: ")) and "@" in self.words[0]


def tree(root: int) -> list[Process]:
    """A process and all below it."""
    try:
        words = Path(f"/proc/{root}/cmdline").read_text(errors="replace").split("\0")[:-1]
        children = [
            int(word) for path in Path(f"/proc/{root}/task").glob("*/children") for word in path.read_text().split()
        ]
    except OSError:
        return []
    return [Process(root, words), *(process for child in children for process in tree(child))]


def kill(processes: list[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def acting(host: LabHost) -> bool:
    """Whether a run changes this host now."""
    return any(process.acts for process in _on(host))


def victims(what: str, host: LabHost, ansible: int) -> list[Process]:
    """Of the run whose ansible-playbook has this pid: all of it there, what serves it on a host, or each mpsctl there
    while it changes that host."""
    if what == "ansible":
        return tree(ansible)
    there = _on(host)
    if what == "sshd":
        return [process for process in there if process.is_session]
    return [process for process in there if process.is_mpsctl] if any(process.acts for process in there) else []


def _on(host: LabHost) -> list[Process]:
    return tree(int(host.facts["leader_pid"]))
