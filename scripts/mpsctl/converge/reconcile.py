"""Bringing a host into the desired state: what the role asks for in one call.

First everything is looked at and planned; a plan that is refused changes nothing. Then its steps are taken. A step that
would end clients without the operator's consent is withheld and reported as pending.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mpsctl.adapters import journal
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request
from mpsctl.lifecycle import acts, host_lock
from mpsctl.observe.asked import Asked
from mpsctl.store.world import World


def reconcile(world: World, request: Request, check: bool, program: Optional[Path] = None) -> Answer:
    """Bring the host into the desired state, or with ``check`` only say what would be done.

    ``program`` is the file this program runs from, installed where the host lacks it or has another.
    Everything that goes wrong stands in the answer: ``refused`` (nothing was changed), ``missing`` (the
    daemon is not installed; nothing was changed), ``error`` (what could not be brought about).
    """
    if request.remove:
        from mpsctl.converge import removal  # seldom needed

        return removal.remove(world, check, request.on_clients, request.drain_timeout_s)
    try:
        if check:
            host_lock.wait_for_others(world)
            return _run(world, request, check, program)
        with host_lock.taken(world):
            answer = _run(world, request, check, program)
        problem = answer.refused or answer.error
        if problem:
            acts.tell(world, acts.REFUSE, f"a run was not brought to its end: {problem}", priority=journal.WARNING)
        return answer
    except host_lock.Busy as error:
        return Answer(check, error=str(error))


def _run(world: World, request: Request, check: bool, program: Optional[Path]) -> Answer:
    begun = Asked(world, [name for name, _ in request.instances])
    from mpsctl.converge import run  # read while NVML and systemd are at work

    return run.run(world, request, check, program, begun)
