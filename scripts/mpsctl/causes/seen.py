"""What was seen of the host, once, for every question of a consultation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from mpsctl.adapters import procfs
from mpsctl.checks.judgement import VERIFY
from mpsctl.checks.report import Report, report
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY
from mpsctl.observe import gpus
from mpsctl.observe import host as host_look
from mpsctl.observe.facts import DaemonProcess, InstanceFacts
from mpsctl.observe.host import HostFacts
from mpsctl.store.world import World

NVML_TIMEOUT_S, INSTANCE_TIMEOUT_S = gpus.TIMEOUT_S, host_look.INSTANCE_TIMEOUT_S


@dataclass(frozen=True)
class Seen:
    """The facts of the host and of its instances, and what verify judges of them."""

    world: World
    host: HostFacts
    report: Report

    @property
    def instances(self) -> list[InstanceFacts]:
        return list(self.host.instances.values())

    @property
    def foreign(self) -> list[DaemonProcess]:
        """The control daemons of no instance."""
        return self.host.foreign

    def client_of(self, pid: int) -> Optional[InstanceFacts]:
        """The instance whose daemon lists a process as its client, or None."""
        return next((one for one in self.instances if any(client.pid == pid for client in one.clients)), None)

    def meant_by(self, variables: dict[str, str]) -> Optional[InstanceFacts]:
        """The instance whose directory stands in a process's environment, or None."""
        named = variables.get(PIPE_DIRECTORY, "").rstrip("/")
        return next((one for one in self.instances if named and str(one.public) == named), None)

    def served_by(self, pid: int, variables: dict[str, str]) -> Optional[DaemonProcess]:
        """The control daemon of no instance on the directory that a process looks in, or None."""
        directory = variables.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
        return next((one for one in self.foreign if _is_same(pid, directory, one)), None)


def look(world: World, names: Optional[Sequence[str]] = None) -> Seen:
    """Look at the host and at the named instances, or at all. Changes nothing and raises nothing; every wait ends."""
    facts = host_look.look(
        world,
        names,
        isolated=True,
        deep=True,
        nvml_timeout_s=NVML_TIMEOUT_S,
        instance_timeout_s=INSTANCE_TIMEOUT_S,
    )
    return Seen(world, facts, report(facts, VERIFY))


def _is_same(pid: int, directory: str, daemon: DaemonProcess) -> bool:
    """Whether a process finds a daemon in a directory, each in the file tree that it sees."""
    if daemon.directory is None:
        return False
    seen, served = directory.rstrip("/").lstrip("/"), str(daemon.directory).lstrip("/")
    try:
        return _path(pid, seen).samefile(_path(daemon.pid, served))
    except OSError:
        return seen == served and not daemon.elsewhere


def _path(pid: int, path: str) -> Path:
    return procfs.root(pid) / path
