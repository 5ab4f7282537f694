"""Connections that were turned away, told to the judge one by one, and in a flood together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from mpsctl.front_door.judge import Judge

_TOLD_SINGLY = 3
"""Of one user for one reason, within one length of time."""
_TOLD_SINGLY_IN_ALL = 30


@dataclass
class _Alike:
    """Connections of one user for one reason: how many were told, how many not yet, and the last of these."""

    told: int = 0
    untold: int = 0
    pid: int = 0
    text: str = ""


class TurnedAway:
    def __init__(self, judge: Judge, clock: Callable[[], float], each_s: float) -> None:
        self._judge = judge
        self._clock = clock
        self._each_s = each_s
        self._alike: dict[tuple[int, str], _Alike] = {}
        self.next_s: Optional[float] = None
        """When those that were not told are summed up."""

    def tell(self, pid: int, uid: int, reason: str, text: str) -> None:
        if self.next_s is None:
            self.next_s = self._clock() + self._each_s
        alike = self._alike.setdefault((uid, reason), _Alike())
        if alike.told < _TOLD_SINGLY and sum(one.told for one in self._alike.values()) < _TOLD_SINGLY_IN_ALL:
            alike.told += 1
            self._judge.turned_away(pid, uid, reason, text, 1)
        else:
            alike.untold, alike.pid, alike.text = alike.untold + 1, pid, text

    def sum_up(self) -> None:
        """Tell the rest, and begin anew."""
        alike, self._alike, self.next_s = self._alike, {}, None
        for (uid, reason), one in alike.items():
            if one.untold:
                self._judge.turned_away(one.pid, uid, reason, one.text, one.untold)
