"""Who has how many connections to the door, and who makes room for another where there is none left."""

from __future__ import annotations

from mpsctl.adapters.subordinate_ids import SubordinateIds


class Holders:
    """A holder is a user, or all ids together that a user was given beside his own (subuid(5)): a person could have a
    connection of each of 65,536 of these."""

    def __init__(self, ids: SubordinateIds) -> None:
        self._ids = ids
        self._of: dict[str, int] = {}
        self.total = 0

    def holder(self, uid: int) -> str:
        return self._ids.owner(uid) or str(uid)

    def count(self, holder: str) -> int:
        return self._of.get(holder, 0)

    def take(self, holder: str) -> None:
        self._of[holder] = self.count(holder) + 1
        self.total += 1

    def give_back(self, holder: str) -> None:
        self._of[holder] -= 1
        self.total -= 1
        if not self._of[holder]:
            del self._of[holder]

    def makes_room_for(self, newcomer: str) -> str:
        """Who has most, where that is still no less than the newcomer's with one more each; "" if nobody.

        So everybody who comes finds a place, until as many holders are there as places; and nobody gets one by
        connecting again whenever another one did.
        """
        most = max(self._of, key=self.count, default="")
        return most if self.count(most) > self.count(newcomer) + 1 else ""
