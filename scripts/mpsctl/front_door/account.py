"""What became of each client: one line with fields in the journal, and of many alike from one user their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from mpsctl.front_door.journal import Journal
from mpsctl.model import foreign
from mpsctl.store.front_door_notes import GAVE_UP, JAMMED, LET_IN, REFUSED, TURNED_AWAY

_WINDOW_S = 60.0
_MOST = 60
"""Lines of one kind for each user and window; who came in is told without a bound."""
_INFO, _WARNING = "6", "4"


@dataclass(frozen=True)
class Client:
    """A process before the door. ``unit`` is its systemd unit or container, ``job`` its batch job, each empty where
    there is none."""

    pid: int
    uid: int
    unit: str = ""
    job: str = ""


@dataclass
class _Window:
    """Lines of one kind of one user: since when, how many there were, and why the last one."""

    since_s: float
    count: int = 0
    reason: str = ""


class Account:
    """The lines of one instance. ``now_s`` is the clock of its windows. ``count`` is told of everybody, with what
    became of him, the reason, and of how many of the kind that is the line."""

    def __init__(
        self,
        journal: Journal,
        instance: str,
        now_s: Callable[[], float],
        count: Callable[[str, str, int], None],
    ) -> None:
        self._journal, self._instance, self._now_s, self._count = journal, instance, now_s, count
        self._windows: dict[tuple[str, int], _Window] = {}
        self._next_s: Optional[float] = None

    def let_in(self, client: Client, waited_s: float) -> None:
        self._count(LET_IN, "", 1)
        self._send(self._of(LET_IN, client, "", waited_s), f"{_who(client)} was let in", _INFO)

    def refused(self, client: Client, reason: str, text: str, waited_s: float, waited_for: str = "") -> None:
        """``waited_for`` is the word for what it waited for last, empty where it did not."""
        self._count(REFUSED, reason, 1)
        if self._counted(REFUSED, client.uid, reason):
            after = f" (it waited for: {waited_for})" if waited_for else ""
            fields = self._of(REFUSED, client, reason, waited_s, waited_for)
            self._send(fields, f"{_who(client)} was refused: {text}{after}", _WARNING)

    def gave_up(self, client: Client, waited_for: str, waited_s: float) -> None:
        self._count(GAVE_UP, waited_for, 1)
        if self._counted(GAVE_UP, client.uid, waited_for):
            after = f" (it waited for: {waited_for})" if waited_for else ""
            fields = self._of(GAVE_UP, client, waited_for, waited_s, waited_for)
            self._send(fields, f"{_who(client)} gave up{after}", _WARNING)

    def turned_away(self, client: Client, reason: str, text: str, count: int) -> None:
        """``count`` connections of its user, of which it had the last."""
        self._count(TURNED_AWAY, reason, count)
        fields = {**self._of(TURNED_AWAY, client, reason), "MPS_COUNT": str(count)}
        more = f", the last of {count} of this user" if count > 1 else ""
        self._send(fields, f"{_who(client)} was turned away: {text}{more}", _WARNING)

    def jammed(self, pid: int) -> None:
        """``pid`` is the control daemon's."""
        text = f"the control daemon (pid {pid}) is jammed: it gave a client no answer and answers no command"
        self._send({"MPS_EVENT": JAMMED, "MPS_DAEMON_PID": str(pid)}, text, _WARNING)

    def settle(self, all_windows: bool = False) -> None:
        """Write how many lines were left out in windows that are over, or in all."""
        now_s = self._now_s()
        if not all_windows and (self._next_s is None or now_s < self._next_s):
            return
        for key, window in list(self._windows.items()):
            if all_windows or now_s - window.since_s >= _WINDOW_S:
                del self._windows[key]
                self._tell_rest(*key, window)
        begun = [window.since_s for window in self._windows.values()]
        self._next_s = min(begun) + _WINDOW_S if begun else None

    def _counted(self, event: str, uid: int, reason: str) -> bool:
        """Whether the line is one of the first of its user's in this window."""
        self.settle()
        window = self._windows.setdefault((event, uid), _Window(self._now_s()))
        if self._next_s is None:
            self._next_s = window.since_s + _WINDOW_S
        window.count += 1
        window.reason = reason
        return window.count <= _MOST

    def _tell_rest(self, event: str, uid: int, window: _Window) -> None:
        left_out = window.count - _MOST
        if left_out <= 0:
            return
        text = f"user {uid}: {left_out} more {event} within a minute, the last one for {window.reason}"
        fields = {"MPS_EVENT": event, "MPS_CLIENT_UID": str(uid), "MPS_REASON": window.reason}
        self._send({**fields, "MPS_COUNT": str(left_out)}, text, _WARNING)

    def _of(
        self, event: str, client: Client, reason: str, waited_s: Optional[float] = None, waited_for: str = ""
    ) -> dict[str, str]:
        fields = {
            "MPS_EVENT": event,
            "MPS_CLIENT_PID": str(client.pid),
            "MPS_CLIENT_UID": str(client.uid),
            "MPS_CLIENT_UNIT": client.unit,
            "MPS_CLIENT_JOB": client.job,
            "MPS_WAITED_MS": "" if waited_s is None else str(round(1000 * waited_s)),
            "MPS_WAITED_FOR": waited_for,
            "MPS_REASON": reason,
        }
        return {name: value for name, value in fields.items() if value}

    def _send(self, fields: dict[str, str], text: str, priority: str) -> None:
        head = {
            "MESSAGE": f"{self._instance}: {foreign.line(text)}",
            "PRIORITY": priority,
            "SYSLOG_IDENTIFIER": f"mps-front-door@{self._instance}",
            "MPS_INSTANCE": self._instance,
        }
        self._journal.write({**head, **{name: foreign.line(value) for name, value in fields.items()}})


def _who(client: Client) -> str:
    of = ", ".join([client.unit] * bool(client.unit) + [f"job {client.job}"] * bool(client.job))
    return f"pid {client.pid} (user {client.uid}{f', {of}' if of else ''})"
