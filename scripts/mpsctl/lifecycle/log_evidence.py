"""Whether the daemon's log is evidence: looked at once, when a daemon has just been started."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mpsctl.adapters import log_fifo
from mpsctl.store import open_log
from mpsctl.store.world import World


def note(world: World, name: str, pipe_directory: Path, pid: int, started_at: Optional[int]) -> None:
    """Note down if others could write, or do write, into the log of a daemon: its journal is no evidence then.

    To be called after the daemon's start, once the modes of its files are set and before its directory is opened; and
    of a daemon that runs already, where it is taken over. What was noted holds until that process ends.
    """
    if open_log.noted(world, name, pid, started_at):
        return
    if log_fifo.is_closed(pipe_directory) and log_fifo.written_by_root_alone(pipe_directory, pid):
        open_log.forget(world, name)  # of a daemon before
    else:
        open_log.note(world, name, pid, started_at)
