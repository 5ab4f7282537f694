"""What visitors have in their environment, read without waiting for it.

To read the environment of a process is to read its memory, and a user can have that take as long as he likes. So each
is read by a process of its own, which is ended after a second. It prevents accidents, and attacks it does not: what a
program sets for itself once it runs cannot be seen there.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import Mapping, Optional

from mpsctl.adapters import procfs
from mpsctl.front_door.judge import Visitor
from mpsctl.store.world import World

_BOUND_S = 1.0
_MOST, _MOST_OF_USER = 16, 4
"""Read at once; whoever comes beyond that waits for his turn."""


class NotYet(Exception):
    """It is being read, or will be."""


@dataclass
class _Reading:
    process: subprocess.Popen[bytes]
    until_s: float
    uid: int


class Environments:
    """Of the visitors of one instance."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: dict[int, Optional[Mapping[str, str]]] = {}
        self._reading: dict[int, _Reading] = {}

    def of(self, visitor: Visitor) -> Optional[Mapping[str, str]]:
        """The visitor's environment, None where it could not be read within a second.

        :raises NotYet: while it is being read.
        """
        number = visitor.number
        if number in self._read:
            return self._read[number]
        reading = self._reading.get(number)
        if reading is None:
            self._begin(visitor)
            raise NotYet
        if reading.process.poll() is None and self._world.now_s() < reading.until_s:
            raise NotYet
        self._read[number] = self._end(number)
        return self._read[number]

    def forget(self, visitor: Visitor) -> None:
        self._read.pop(visitor.number, None)
        self._end(visitor.number)

    def _begin(self, visitor: Visitor) -> None:
        of_user = Counter(one.uid for one in self._reading.values())
        if len(self._reading) >= _MOST or of_user[visitor.uid] >= _MOST_OF_USER:
            return
        try:
            process = procfs.begin_environment(visitor.pid)
        except OSError:
            self._read[visitor.number] = None
            return
        self._reading[visitor.number] = _Reading(process, self._world.now_s() + _BOUND_S, visitor.uid)

    def _end(self, number: int) -> Optional[Mapping[str, str]]:
        reading = self._reading.pop(number, None)
        if reading is None:
            return None
        if reading.process.poll() is None:
            reading.process.kill()
            reading.process.poll()  # what hangs in the kernel is reaped later, by the next one that is begun
        return procfs.read_environment(reading.process)
