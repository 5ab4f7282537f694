"""Whether a process, or one that it started, became an MPS client; and if not, why.

CUDA says nothing when it finds no daemon: the program runs, outside MPS, with the whole GPU. So it is looked
for in NVML's list of MPS clients, in what the front door wrote down, and, as root, in the daemon's own list.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Optional, Sequence

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import procfs
from mpsctl.adapters.nvml import Nvml
from mpsctl.model.errors import MpsctlError, one_line
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.pattern import Pattern
from mpsctl.observe import front_door, reachability
from mpsctl.observe.door_facts import Waiting
from mpsctl.observe.process_facts import Obstacle
from mpsctl.store import admission, door_journal, front_door_notes
from mpsctl.store.door_journal import Refusal
from mpsctl.store.world import World

_LIBRARY = "libcuda.so"
_NAMED_IN_LOG = Pattern(r"Client \{PID: (\d+),|NEW CLIENT (\d+) from user")
_JOURNAL_LINES = 200
_SPARE_S = 1.0


@dataclass
class Watch:
    """What has been seen so far of the process tree below ``root``.

    ``client`` is the process that became a client and ``seen_by`` who said so.
    """

    world: World
    instance: Instance
    devices: Sequence[Device]
    root: int
    client: Optional[int] = None
    seen_by: str = ""
    pids: set[int] = field(default_factory=set)
    opened_cuda: set[int] = field(default_factory=set)
    own_variables: dict[int, Obstacle] = field(default_factory=dict)
    daemon_problem: Optional[str] = None
    waited: Optional[Waiting] = None
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.world.now_s()

    @property
    def public(self) -> Path:
        return Path(self.instance.pipe_directory)

    def look(self, nvml: Optional[Nvml], ask_daemon: bool) -> bool:
        """Look once; whether it has become a client."""
        if self.client is not None:
            return True
        tree = procfs.tree(self.root)
        for pid in tree:
            self._look_at(pid)
        if nvml is not None:
            self._found(
                "NVML", (pid for device in self.devices for pid in nvml.client_memory_mib(device.gpu.uuid) or ())
            )
        if ask_daemon and self.client is None:
            self._ask_daemon()
        return self.client is not None

    def _look_at(self, pid: int) -> None:
        self.pids.add(pid)
        if pid not in self.opened_cuda and procfs.maps(pid, _LIBRARY):
            self.opened_cuda.add(pid)
        environment = procfs.environment(pid)
        if not environment:
            return
        wrong = reachability.wrong_variables(environment, self.public, [device.uuid for device in self.devices])
        if wrong:
            self.own_variables[pid] = wrong

    def _ask_daemon(self) -> None:
        """Or the front door, which wrote down whom it let in, where only root comes to the daemon."""
        places, name = self.world.places, self.instance.name
        self.waits()
        self._found("the front door", (one.pid for one in front_door_notes.read(places, name).let_in))
        told = admission.read(places, name)
        served = Path(told.daemon.pipe_directory) if told is not None and told.daemon else None
        directory = served or places.daemon_directory(self.instance)
        if self.client is not None or not os.access(directory, os.X_OK):
            return
        try:
            daemon = self.world.daemon_of(name, directory)
            lines = daemon.ask([control.SERVER_LIST], deadline_s=2)[0]
            servers = [word for line in lines for word in line.split() if word.isdigit()]
            if servers:
                answers = daemon.ask([f"get_client_list {server}" for server in servers], deadline_s=2)
                self._found("the daemon", (int(w) for a in answers for line in a for w in line.split() if w.isdigit()))
            self.daemon_problem = None
        except (MpsctlError, OSError) as error:
            self.daemon_problem = one_line(error)

    def _found(self, seen_by: str, clients: Iterable[int]) -> None:
        for pid in clients:
            if pid in self.pids and self.client is None:
                self.client, self.seen_by = pid, seen_by

    def waits(self) -> bool:
        """Whether one of them waits before the front door; ``waited`` is the last that did."""
        places, name = self.world.places, self.instance.name
        found = front_door.at_door(front_door_notes.read(places, name), (), self.world.now_s())
        mine = next((one for one in found if one.pid in self.pids), None)
        self.waited = mine or self.waited
        return mine is not None

    def refusal(self) -> Optional[Refusal]:
        """The last one of theirs that the front door refused; None where none was, or the journal may not be read."""
        age_s = self.world.now_s() - self.began_s
        try:
            found = door_journal.refusals(self.world, self.instance.name, age_s + _SPARE_S)
        except MpsctlError:
            return None
        return next((one for one in reversed(found) if one.pid in self.pids), None)

    def look_back(self) -> bool:
        """After the end: a client that lived shorter than our looks stands in the journal, where that may be read."""
        if self.client is None and self.pids:
            try:
                lines = self.world.systemd.journal(self.instance.unit, _JOURNAL_LINES)
            except MpsctlError:
                lines = []
            named = (int(m[1] or m[2]) for m in map(_NAMED_IN_LOG.search, lines) if m)
            self._found("the journal", named)
        return self.client is not None

    def obstacle(self) -> Optional[Obstacle]:
        """What keeps this user from the instance's socket; None where nothing does, or it is not there.

        :raises OSError: if it may not be looked at.
        """
        me = reachability.myself()
        return reachability.closed_directory(self.public, me) or reachability.closed_socket(self.public, me)
