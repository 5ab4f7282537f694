"""What the daemon says to whoever connects: learned from each daemon once, before anybody is passed on to it."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Optional, Union

from mpsctl.adapters import procfs
from mpsctl.front_door import words
from mpsctl.front_door.judge import Refuse, Wait
from mpsctl.front_door.notebook import Notebook
from mpsctl.front_door.worker import Worker
from mpsctl.model import foreign
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.world import World

UNDERSTOOD = b"OUTBHELL\0"
"""Control daemons 535, 550, 555; driver 580, H200."""
_MOST_BYTES = 64
_HEARING_S, _AGAIN_S = 2.0, 0.25


def hear(pipe_directory: Path) -> bytes:
    """The first message of the daemon there. To close after it harms neither daemon nor server (driver 580, H200).

    :raises TimeoutError: if nothing was said within 2 s.
    :raises OSError: if nobody listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_HEARING_S)
        connection.connect(str(pipe_directory / "control"))
        try:
            return connection.recv(_MOST_BYTES)
        except socket.timeout:  # no TimeoutError before Python 3.10
            raise TimeoutError from None


@dataclass(frozen=True)
class _Heard:
    """Of which daemon, what (empty where it said nothing), and when to ask again in that case."""

    daemon: ServedDaemon
    said: bytes
    next_s: float


class Greeting:
    """The greeting of an instance's daemon. ``silent`` hears of one that said nothing."""

    def __init__(
        self,
        world: World,
        worker: Worker,
        notebook: Notebook,
        silent: Callable[[ServedDaemon], None],
        hear: Callable[[Path], bytes] = hear,
    ) -> None:
        self._world, self._worker, self._notebook, self._silent, self._hear = world, worker, notebook, silent, hear
        self._heard: Optional[_Heard] = None

    def said(self) -> bytes:
        """What clients are greeted with: as the daemon greets, or as all daemons did that are known."""
        with suppress(ValueError):
            return bytes.fromhex(self._notebook.greeting) or UNDERSTOOD
        return UNDERSTOOD

    def bars(self, daemon: ServedDaemon) -> Optional[Union[Wait, Refuse]]:
        """Why nobody is passed on to this daemon, or None where it greets as is understood. The worker asks it."""
        heard = self._heard
        if heard is None or heard.daemon != daemon or not heard.said:
            again = heard is not None and heard.daemon == daemon
            self._worker.look("greeting", partial(self._learn, daemon), heard.next_s if heard and again else 0.0)
            return Wait(words.DAEMON_SILENT)
        if heard.said == UNDERSTOOD:
            return None
        shown = foreign.shown(heard.said.decode(errors="replace"))
        return Refuse(
            words.UNKNOWN_GREETING,
            f"the control daemon (pid {daemon.pid}) greets with {shown}, expected OUTBHELL; this driver needs another"
            " release of mps-fleet",
        )

    def heard(self, daemon: ServedDaemon, said: bytes) -> None:
        """The daemon greeted with these bytes, a visitor's connection or ours."""
        self._heard = _Heard(daemon, said, self._world.now_s() + _AGAIN_S)
        if said:
            self._notebook.learned(said.hex(), understood=said == UNDERSTOOD)

    def _learn(self, daemon: ServedDaemon) -> None:
        try:
            if procfs.stopped(daemon.pid):
                raise TimeoutError
            said = self._hear(Path(daemon.pipe_directory))
        except TimeoutError:  # also of a stopped or jammed daemon
            said = b""
            self._silent(daemon)
        except OSError:
            said = b""
        self.heard(daemon, said)
