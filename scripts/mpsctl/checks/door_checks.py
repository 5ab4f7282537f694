"""The judgements of what clients of an instance find: the front door, or the daemon itself."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mpsctl.checks import words
from mpsctl.checks.judgement import VERIFY_ONLY, Finding, View, failed, judgement, passed, some, unknown, warned
from mpsctl.checks.unit_checks import no_daemon, reload
from mpsctl.model.finding import CONVERGE, PERSON, RELOAD, Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.names import door_service
from mpsctl.observe.door_facts import DoorFacts
from mpsctl.observe.facts import InstanceFacts
from mpsctl.store.admission import Admission


@judgement()
def front_door(view: View) -> Finding:
    """Clients that look for the daemon find the front door, and it lets them in unless the instance is drained."""
    one, door = view.one, view.one.door
    if door is None or one.public is None or view.host.systemd_unread:
        return unknown(words.unread(view.host.systemd_unread) if view.host.systemd_unread else "it was not looked at")
    without = one.without_door
    amiss = _door_left(door, one.public) if without else _no_door(one.name, door, one.public)
    if amiss is not None:
        return amiss
    if door.notes.unknown_greeting and not without:
        return failed(
            f"the daemon greets with {shown(door.notes.unknown_greeting)} (hexadecimal), which the front door does not"
            " understand: every client is refused with error 805",
            "the greeting of the control daemons 535 to 580",
            "see docs/decisions/front-door.md, and report the driver's version; until a release knows it, the driver of"
            " before, or mps_front_door: false",
            reasons=[Reason("unknown-greeting", "the front door does not understand the control daemon")],
        )
    if not one.pid:
        return unknown(no_daemon(view))
    if one.drain is not None and one.door_open:
        line = "clients are let in though the instance is drained"
        return failed(line, "closed while it is drained", reload(one), mends=RELOAD)
    if one.drain is not None or one.door_open:
        open_ = f"{one.public} leads to the daemon"
        return _told_another(one, door) or passed("closed by the drain" if one.drain is not None else open_)
    meets = "what uses CUDA there now runs outside MPS" if without else "clients wait, or are refused with error 805"
    line = f"nobody is let in at {one.public}: {meets}"
    reasons = [Reason("front-door-closed", line)]
    return failed(line, "clients are let in", reload(one), reasons=reasons, mends=RELOAD)


def _told_another(one: InstanceFacts, door: DoorFacts) -> Optional[Finding]:
    """What the front door does otherwise than is desired, as it was told so, or None. How long clients wait is no more
    than a warning; the rest is who comes in."""
    told, desired = door.admission, door.desired
    if told is None or desired is None or not door.amiss:
        return None
    said = {name: (_said(name, told), _said(name, desired)) for name in door.amiss}
    if "gid" in said and one.desired is not None and one.desired.group is not None:
        said["gid"] = said["gid"][0], f"the group {shown(one.desired.group)}"
    lines = [f"{_FIELDS[name]}: it was told {was}, desired {wanted}" for name, (was, wanted) in said.items()]
    make = warned if set(door.amiss) <= {"wait_s"} else failed
    return make(
        f"the front door judges by what was desired before: {some(lines)}",
        "what is desired",
        reload(one),
        *lines,
        reasons=[Reason("not-as-desired", line) for line in lines],
        mends=RELOAD,
        facts={name: was for name, (was, _) in said.items()},
    )


_FIELDS = {
    "wait_s": "how long a client waits",
    "gid": "the group that may come",
    "multi_user": "whether one server serves all users",
    "room": "how many clients at once",
    "judged_devices": "whether who would shake off his limit is refused",
}


def _said(name: str, told: Admission) -> str:
    if name == "wait_s":
        return f"{told.wait_s} s"
    if name == "gid":
        return "everyone" if told.gid is None else f"the group {told.gid}"
    if name == "room":
        return "as many as come" if told.room is None else str(told.room)
    return "yes" if getattr(told, name) else "no"


def _door_left(door: DoorFacts, public: Path) -> Optional[Finding]:
    """What is wrong where clients come to the daemon itself, or None."""
    if not door.unit.active:
        return None
    line = (
        f"{door.unit.name} is active, and the daemon itself stands at {public}: whoever came to it before waits there"
    )
    return warned(line, "no front door", f"systemctl stop {pasted(door.unit.name)}; or site.yml", mends=CONVERGE)


def _no_door(name: str, door: DoorFacts, public: Path) -> Optional[Finding]:
    """What is wrong with the socket that clients look for, or None."""
    unit = door.unit
    if "masked" in (unit.load_state, door.service.load_state):
        return _masked(door, public)
    if not door.stands:
        what = f"{public}/control does not lead to it"
        if not unit.active:
            what = f"{unit.name} is {unit.active_state}"
        elif not door.listens:
            what = f"{unit.name} is active, and its socket is closed"
        line = f"there is no front door: {what}; what uses CUDA on {public} now runs outside MPS"
        by_hand = f"systemctl stop {pasted(door_service(name))}; systemctl restart {pasted(unit.name)}"
        remedy = f"{by_hand}; where they are not found, site.yml"
        reasons = [Reason("front-door-gone", line, remedy)]
        return failed(line, "a front door", remedy, reasons=reasons, mends=CONVERGE)
    return None


def _masked(door: DoorFacts, public: Path) -> Finding:
    """Somebody masked the socket or the service behind it."""
    socket_too = door.unit.load_state == "masked"
    unit = door.unit if socket_too else door.service
    meets = f"clients find nobody on {public} and run outside MPS"
    if door.stands and socket_too:
        meets = f"it stands as yet; once it is stopped, and after a boot, {meets}"
    elif door.stands:
        meets = f"the next client that comes while it is down closes the socket, and then {meets}"
    return failed(
        f"{unit.name} is masked: {meets}",
        "a front door",
        f"systemctl unmask {pasted(unit.name)}, then site.yml",
        reasons=[Reason("front-door-gone", f"{unit.name} is masked: {meets}")],
        mends=PERSON,
    )


@judgement()
def front_door_enabled(view: View) -> Finding:
    """The front door stands from boot on, before the daemon's first start and without it."""
    door, desired = view.one.door, view.one.desired
    if door is None:
        return unknown("it was not looked at")
    if desired is not None and not desired.front_door:
        if not door.unit.enabled or view.one.serves_public is None:
            return passed("none is desired")
        line = f"{door.unit.name} is enabled, and no front door is desired"
        return warned(line, "not enabled", f"systemctl disable {pasted(door.unit.name)}", mends=CONVERGE)
    if door.unit.enabled or door.unit.load_state == "masked":
        return passed(f"{door.unit.name} is enabled" if door.unit.enabled else "masked: see front-door")
    return failed(
        f"{door.unit.name} is not enabled: after a boot clients find nobody and run outside MPS",
        "enabled",
        f"systemctl enable {pasted(door.unit.name)}",
        mends=CONVERGE,
    )


@judgement(verbs=VERIFY_ONLY)
def without_front_door(view: View) -> Finding:
    """A front door stands between clients and the daemon (mps_front_door)."""
    one = view.one
    if one.desired is None or (one.desired.front_door and one.serves_public is None):
        return passed("there is one, see front-door" if one.desired is not None else "not known")
    return warned(
        "no front door: clients that come while the daemon is down, starts or is drained run outside MPS, and those of"
        " root come in at any time, also before the limits are in force; nobody waits, no drain refuses, no group is"
        " judged, and a client that dies in its start can jam the daemon",
        "a front door",
        "mps_front_door: true, as soon as the front door understands this driver",
    )
