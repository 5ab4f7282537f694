"""What clients wait for, and what to do: each word that the front door has for it, and the daemon's own pending list.

A wait that ends by itself in a moment is no fault. Each has its moment; whoever waits longer is told.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

from mpsctl.checks import words
from mpsctl.model.finding import Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.observe.door_facts import ANOTHER_USER, PENDING, Waiting
from mpsctl.observe.facts import InstanceFacts

_AT_ONCE, _SOON, _START = 0.0, 3.0, 30.0
"""Seconds: of the daemon's list it is not told how long somebody is in it; a few; what the start of a daemon or server
may take."""


class Wait(NamedTuple):
    """``what`` goes behind "waits"; ``cause`` is of the catalogue. ``remedy`` is what to do once it took longer than
    ``moment_s`` seconds, with UNIT and INSTANCE for their names."""

    what: str
    cause: str
    moment_s: float
    remedy: str


_LOG = "`journalctl -u UNIT` says what is the matter"
_LOOK_AGAIN = "look again in a few seconds; if it stays, `mpsctl verify INSTANCE`"
_OTHER = "waiting-at-front-door"
NO_PLACE = "no-place"
WAITS: Mapping[str, Wait] = {
    "limits-not-in-force": Wait("until the daemon's limits are in force", "waiting-for-daemon", _START, _LOG),
    "daemon-down": Wait("for the daemon, which is down", "waiting-for-daemon", _START, _LOG),
    "daemon-silent": Wait("for the daemon, which gave no answer", "waiting-for-daemon", _SOON, _LOOK_AGAIN),
    "daemon-stopped": Wait(
        "for the daemon, which a signal stopped",
        "daemon-stopped",
        _SOON,
        "`kill -CONT` the daemon, whose pid `mpsctl verify INSTANCE` has, and find who stopped it",
    ),
    "session-held": Wait(
        "because somebody holds the daemon's command session",
        "session-held",
        _SOON,
        "end that process: `mpsctl verify INSTANCE` names it",
    ),
    "jammed": Wait(
        "for the daemon, which is jammed",
        "daemon-jammed",
        _SOON,
        "`systemctl restart UNIT`, which ends its clients; where none is connected, the health timer does it",
    ),
    "drained": Wait("because the instance is drained", "drained", _SOON, "mpsctl undrain INSTANCE"),
    ANOTHER_USER: Wait(
        "behind another user's clients",
        "waiting-behind-another-user",
        _SOON,
        "one user at a time is served: run all as one user, give each an instance, or set mps_multi_user",
    ),
    NO_PLACE: Wait(
        "for a place",
        "no-place",
        _SOON,
        "wait until a client ends (`mpsctl clients INSTANCE`), or raise mps_expected_clients or its share (mps_shares)",
    ),
    "server-starting": Wait("for its user's server, which starts", "waiting-for-server", _START, _LOG),
    "server-not-ready": Wait("for its server, which is not ready", "waiting-for-server", _SOON, _LOG),
    "server-fault": Wait(
        "for its server, which a client's fault stopped",
        "server-not-ready",
        _SOON,
        "end the clients of before the fault (`mpsctl clients INSTANCE`): the server ends with the last one, and the"
        " next one starts",
    ),
    "server-stopped": Wait(
        "for its server, which a signal stopped",
        "server-stopped",
        _SOON,
        "`kill -CONT` the server, whose pid `mpsctl status INSTANCE` has, and find who stopped it",
    ),
    "environment": Wait("until its environment was read", _OTHER, _SOON, _LOOK_AGAIN),
    "client-ended": Wait("and has ended, or is another process by now", _OTHER, _SOON, _LOOK_AGAIN),
    PENDING: Wait("in the daemon's pending list", "waiting-for-server", _AT_ONCE, _LOOK_AGAIN),
}
"""By the front door's words, and PENDING. A door of another release may have one that is not here."""


def of(each: Waiting) -> Wait:
    """What a client waits for; in the daemon's own list it may be another user's clients as well (B20)."""
    if each.why == PENDING and each.behind:
        return WAITS[ANOTHER_USER]._replace(moment_s=_AT_ONCE)
    return WAITS.get(each.why) or Wait(f"for {shown(each.why)!r}", _OTHER, _SOON, _LOOK_AGAIN)


def is_long(each: Waiting) -> bool:
    """Whether it waits longer than such a wait takes that ends by itself."""
    return each.waited_s is None or each.waited_s > of(each).moment_s


def reason(one: InstanceFacts, each: Waiting) -> Reason:
    """Who waits, for what or whom and how long, with its cause and what to do."""
    found = of(each)
    remedy = found.remedy.replace("UNIT", pasted(one.unit.name)).replace("INSTANCE", pasted(one.name))
    return Reason(found.cause, f"{words.waiting_process(each)} {line(one, each)}", remedy)


def line(one: Optional[InstanceFacts], each: Waiting) -> str:
    """For what a client waits, or for whom, and how long; ``one`` is its instance where that was looked at."""
    if each.behind:
        what = f"behind user{'s' if len(each.behind) > 1 else ''} {', '.join(map(str, each.behind))}"
    elif each.why == PENDING:
        server = "its own user's server is up" if one and one.servers else "no server is there yet"
        return f"waits, and {server}"
    else:
        what = of(each).what
    if each.place:
        places = one.room.places if one and one.room else ()
        known = next((words.place(place) for place in places if place.name == each.place), None)
        what += f" ({known or words.place_name(each.place)})"
    return f"waits {what}" + (f", {each.waited_s:.0f} s" if each.waited_s is not None else "")
