"""Slurm's own command, `scontrol`, as root's Prolog and Epilog ask it.

Slurm runs them with no PATH. So the command is taken from the usual places, and by root from no place that others can
change.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Sequence

from mpsctl.adapters import trusted
from mpsctl.model import foreign
from mpsctl.model.errors import NotReady

PLACES = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin")
"""Where distributions, Slurm's own build and its documentation put it."""
TIMEOUT_S = 10
_PASSED_ON = ("SLURM_CONF",)
_NO_JOB = "Invalid job id"
"""As Slurm says it (22.05.8, 24.11.5)."""


class NoSuchJob(NotReady):
    """Slurm knows no job of that number any more."""


def job(job: str) -> str:
    """What Slurm tells of a job and its nodes in detail. Of the first job of an array it tells the others as well.

    :raises NoSuchJob: if Slurm knows none of that number any more.
    :raises NotReady: as ``_ask``.
    """
    return _ask("show", "job", "-o", "-d", job)


def node(node: str) -> str:
    """:raises NotReady: as ``_ask``."""
    return _ask("show", "node", "-o", node)


def configuration() -> str:
    """:raises NotReady: as ``_ask``."""
    return _ask("show", "config")


def begin_anew(job: str, hold: bool) -> None:
    """End a job, and have it wait in the queue; with ``hold`` until somebody lets it go on.

    :raises NotReady: as ``_ask``; also for a job that may not be queued twice.
    """
    _ask("requeuehold" if hold else "requeue", job)


def drain(node: str, reason: str) -> None:
    """Let no new job on a node. What a failing Prolog has Slurm write there does not replace the reason (22.05.8,
    24.11.5).

    :raises NotReady: as ``_ask``.
    """
    _ask("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def find() -> Path:
    """:raises NotReady: if it is in no usual place.
    :raises Untrusted: if root asks, and others can change it."""
    for place in PLACES:
        path = Path(place) / "scontrol"
        if path.is_file() and os.access(path, os.X_OK):
            trusted.require(path)
            return path
    raise NotReady(f"found no scontrol in {', '.join(PLACES)}; install Slurm's client commands on this node")


def _ask(*words: str) -> str:
    """:raises NotReady: if it does not answer within ``TIMEOUT_S``, or refuses."""
    command: Sequence[str] = [str(find()), *words]
    said = foreign.shown(" ".join(["scontrol", *words]))
    environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NotReady(f"`{said}` did not end within {TIMEOUT_S} s; see whether slurmctld answers") from None
    if done.returncode:
        why = foreign.shown(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}")
        kind = NoSuchJob if _NO_JOB in why else NotReady
        raise kind(f"`{said}` failed: {why}")
    return done.stdout.decode(errors="replace")
