"""Why a process is taken for left over, in words."""

from __future__ import annotations

from mpsctl.model.foreign import shown
from mpsctl.observe import leftovers
from mpsctl.observe.leftovers import Mark


def why(mark: Mark) -> str:
    """One line for people."""
    parent = f"pid {mark.parent} ({shown(mark.parent_command)})"
    of = shown(mark.of)
    return {
        leftovers.GONE: "its process is gone and the GPU is still in its name",
        leftovers.ZOMBIE: f"it has ended (zombie) and its parent, {parent}, has not taken note",
        leftovers.WAITS: "it waits in the kernel (state D) and no signal ends it; see dmesg: the GPU may need a reset",
        leftovers.SERVER: "an MPS server whose control daemon is gone",
        leftovers.OF_CONTAINER: f"of container {of}, which nothing runs any more: its parent is process 1",
        leftovers.OF_SESSION: f"of login session {of}, which has ended, and its parent with it",
        leftovers.OF_JOB: f"of batch job {of}, which has no step daemon any more, and its parent is gone",
    }[mark.kind]
