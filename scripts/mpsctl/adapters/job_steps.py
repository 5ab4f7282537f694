"""Of which Slurm job a process is, by what root alone can make.

A job's variables (``SLURM_JOB_ID``) are its user's to write, and tell nothing. Two things do:

- a control group of Slurm's: ``/system.slice/slurmstepd.scope/job_7/…`` (version 2), ``/slurm/uid_1000/job_7/…``
  (version 1), each below folders that root made (cgroup.conf(5));
- an ancestor that is Slurm's step daemon. It has root as its real user and the title ``slurmstepd: [7.batch]``: the
  job's id and the step (22.05.8, 24.11.5). A process that leaves its parents, as a daemon does, has none any more.
"""

from __future__ import annotations

from typing import Mapping

from mpsctl.adapters import procfs
from mpsctl.model.pattern import Pattern

_GROUP = Pattern(
    r"(?:/system\.slice/(?:[^/]+_)?slurmstepd\.scope|/slurm(?:_[^/]+)?/uid_[0-9]+)/job_(?P<job>[1-9][0-9]{0,18})(?:/.*)?"
)
_TITLE = Pattern(r"slurmstepd: \[(?P<job>[1-9][0-9]{0,18})(?:\+[0-9]+)?\.[^\]]+\].*")
_PROGRAM = "slurmstepd"
_MOST_ANCESTORS = 100


def job_of(pid: int, groups: Mapping[str, str]) -> str:
    """The id of the job, empty where it is of none, or of one that cannot be told. ``groups`` are the process's, as
    ``procfs.control_groups`` has them."""
    for path in groups.values():
        found = _GROUP.fullmatch(path)
        if found is not None:
            return found["job"]
    return _by_ancestor(pid)


def _by_ancestor(pid: int) -> str:
    child = pid
    for _ in range(_MOST_ANCESTORS):
        parent = procfs.parent(child)
        if parent <= 1:
            return ""
        if _is_step_daemon(parent):
            found = _TITLE.fullmatch(procfs.title(parent))
            if found is not None and procfs.parent(child) == parent:  # else another process has that pid by now
                return found["job"]
        child = parent
    return ""


def _is_step_daemon(pid: int) -> bool:
    if procfs.name(pid) != _PROGRAM or not procfs.begun_by_root(pid):
        return False
    file = procfs.executable(pid)
    return file is not None and file.name.startswith(_PROGRAM)  # Debian's is slurmstepd-wlm
