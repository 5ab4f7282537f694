"""Whether systemd still has something in hand for the daemon's unit, asked while somebody waits for the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Mapping, Optional

from mpsctl.front_door import words
from mpsctl.front_door.judge import Refuse
from mpsctl.front_door.worker import Worker
from mpsctl.model.errors import MpsctlError
from mpsctl.store.world import World

_RUNS = ("active", "activating", "reloading", "refreshing", "deactivating", "maintenance")
_AGAIN_S, _SECOND_LOOK_S = 1.0, 0.5
_IN_A_ROW_S = 3.0
"""Two looks further apart are not in a row."""
_HOLDS_S = 0.1
"""A refusal is given by a look that is no older: whoever comes right after the unit was started waits for it."""


@dataclass(frozen=True)
class _Told:
    """The last look: ``of`` is what was known of the instance otherwise, ``since_s`` the first look of a row that all
    said what ``refusal`` says. ``answered`` is false where systemd could not be asked."""

    of: object
    refusal: Optional[Refuse]
    since_s: float
    at_s: float
    answered: bool


class UnitState:
    """The unit that runs the daemon of an instance. It is asked in the worker, at most once a second."""

    def __init__(self, world: World, instance: str, worker: Worker) -> None:
        self._world, self._worker = world, worker
        self._unit = f"mps-control@{instance}.service"
        self._told: Optional[_Told] = None

    def refusal(self, of: object, stopped: Optional[Refuse] = None) -> Optional[Refuse]:
        """Why nobody needs to wait for the daemon, or None while that is not known, or not so.

        ``of`` is what the caller knows otherwise: once it is something else, systemd is asked anew. Two looks in a row
        must say the same: between the stop and the start of a restart the unit may have no job for a moment. One look
        is enough where the caller knows that the unit was ``stopped``, and that no restart did it; that is the answer
        where systemd cannot be asked.
        """
        told = self._told
        if told is None or told.of != of:
            self._worker.look("unit", partial(self._look, of))
            return None
        age_s = self._world.now_s() - told.at_s
        first = told.refusal is not None and stopped is None and told.at_s - told.since_s < _SECOND_LOOK_S
        if age_s <= _HOLDS_S and not first:
            refusal = told.refusal if told.answered else stopped
            if refusal is not None:
                return refusal
        pause_s = _SECOND_LOOK_S if first else _AGAIN_S if told.refusal is None else 0.0
        self._worker.look("unit", partial(self._look, of), told.at_s + pause_s)
        return None

    def _look(self, of: object) -> None:
        answered = True
        try:
            shown = self._world.systemd.show([self._unit]).get(self._unit, {})
            refusal = None
            if shown.get("ActiveState") not in _RUNS and self._world.systemd.job(self._unit) is None:
                refusal = self._refusal(shown)
        except MpsctlError:
            refusal, answered = None, False  # who does not know lets wait
        before, now_s = self._told, self._world.now_s()
        in_a_row = before is not None and before.of == of and now_s - before.at_s <= _IN_A_ROW_S
        same = before is not None and before.refusal == refusal
        self._told = _Told(of, refusal, before.since_s if before and in_a_row and same else now_s, now_s, answered)

    def _refusal(self, shown: Mapping[str, str]) -> Refuse:
        unit = self._unit
        if shown.get("LoadState") == "masked":
            return Refuse(words.MASKED, f"{unit} is masked; `systemctl unmask {unit}` allows its start")
        if shown.get("LoadState") == "not-found":
            return Refuse(words.NOT_FOUND, f"{unit} does not exist; converge the host")
        if shown.get("Result") == "exec-condition":
            return Refuse(words.SKIPPED, f"{unit} was skipped on this host; `journalctl -u {unit}` says why")
        if shown.get("ActiveState") == "failed":
            return Refuse(words.FAILED, f"{unit} has failed; `journalctl -u {unit}` says why")
        if not self._world.systemd.enabled(unit):
            return Refuse(words.DISABLED, f"{unit} does not run and is not enabled; `systemctl enable --now {unit}`")
        return Refuse(words.STOPPED, f"{unit} does not run; `systemctl start {unit}` starts it")
