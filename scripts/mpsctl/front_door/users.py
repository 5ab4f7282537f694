"""Who comes first where one server serves one user at a time (single-user mode)."""

from __future__ import annotations


class Queue:
    """The visitors that are before the door, by user, in the order in which they came."""

    def __init__(self) -> None:
        self._of_user: dict[int, dict[int, None]] = {}

    def enter(self, number: int, uid: int) -> None:
        self._of_user.setdefault(uid, {})[number] = None

    def leave(self, number: int, uid: int) -> None:
        mine = self._of_user.get(uid, {})
        mine.pop(number, None)
        if not mine:
            self._of_user.pop(uid, None)

    def behind_another(self, number: int, uid: int) -> bool:
        """Whether a visitor of another user came before. So newcomers of the user whose server runs overtake nobody."""
        return any(next(iter(theirs)) < number for other, theirs in self._of_user.items() if other != uid)
