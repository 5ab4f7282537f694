"""A control daemon of our own for a few seconds, on a GPU that no instance serves."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence

from mpsctl.adapters import child_process, hardware
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import NotReady

_END_S = 5


@contextmanager
def started(pipe_directory: Path, devices: Sequence[str]) -> Iterator[None]:
    """The daemon runs for the length of the block, and never longer than this process; its servers end with it.

    They do so however it ends (driver 580, H200).

    :raises NotReady: if it is not installed.
    """
    binary = hardware.binary(hardware.CONTROL_DAEMON)
    if binary is None:
        raise NotReady(f"{hardware.CONTROL_DAEMON} is not on this host; install the MPS package of its driver")
    process = subprocess.Popen(
        [str(binary), "-f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            "PATH": ":".join(hardware.SEARCH_PATH),
            PIPE_DIRECTORY: str(pipe_directory),
            VISIBLE_DEVICES: ",".join(devices),
        },
        start_new_session=True,
        preexec_fn=child_process.end_with(os.getpid(), signal.SIGTERM),
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
