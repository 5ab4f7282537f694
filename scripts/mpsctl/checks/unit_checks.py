"""The judgements of an instance's file, unit and drain."""

from __future__ import annotations

from typing import Optional

from mpsctl.adapters import pipe
from mpsctl.checks import words
from mpsctl.checks.judgement import Finding, View, failed, judgement, passed, unknown, warned
from mpsctl.model import duration
from mpsctl.model.finding import CONVERGE, ENABLE, PERSON, RESTART, START, UNDRAIN, Reason
from mpsctl.model.foreign import pasted, shown
from mpsctl.model.places import FINGERPRINT
from mpsctl.observe import client_environment
from mpsctl.observe.facts import InstanceFacts

_RECENT_S = 3600
NO_DAEMON = "no daemon runs"


def no_daemon(view: View) -> str:
    """Why what only a running daemon tells is not known."""
    return words.unread(view.host.systemd_unread) if view.host.systemd_unread else NO_DAEMON


def reload(one: InstanceFacts) -> str:
    return f"systemctl reload {pasted(one.unit.name)}"


def restart(one: InstanceFacts) -> str:
    return f"systemctl restart {pasted(one.unit.name)}, when no client is at work"


def as_root(view: View) -> str:
    """What to do about what may not be read; nothing where root asks already."""
    return "" if view.host.is_root else "ask as root"


@judgement()
def configuration(view: View) -> Finding:
    """The instance's file is there and says what can be."""
    one = view.one
    if one.refused is not None:
        return failed(one.refused.found, one.refused.expected, one.refused.remedy)
    for refused in (one.group_refused, one.room_refused):
        if refused is not None:
            return failed(refused.found, refused.expected, refused.remedy)
    if one.unread is not None:
        return unknown(words.unread(one.unread))
    return passed(f"{view.host.places.configuration}/{one.name}.conf")


@judgement()
def unit_enabled(view: View) -> Finding:
    """The unit starts at boot."""
    unit = view.one.unit
    if unit.load_state == "masked":
        return failed(
            f"{unit.name} is masked: it can neither be started nor start at boot",
            "enabled",
            f"systemctl unmask {pasted(unit.name)}, then site.yml",
            reasons=[Reason("unit-masked", f"{unit.name} is masked")],
            mends=PERSON,
        )
    if unit.enabled:
        return passed(f"{unit.name} is enabled")
    return failed(
        f"{unit.name} is not enabled: it will not start at boot",
        "enabled",
        f"systemctl enable {pasted(unit.name)}",
        mends=ENABLE,
    )


@judgement()
def unit_active(view: View) -> Finding:
    """The unit runs (B26: an active unit alone proves nothing, see the other checks)."""
    if view.host.systemd_unread:
        return unknown(words.unread(view.host.systemd_unread))
    one = view.one
    unit = one.unit
    state = f"{unit.name} is {unit.active_state} ({unit.sub_state})"
    see = f"see why: journalctl -b -u {pasted(unit.name)}"
    if unit.result == "exec-condition":
        state += ", skipped on this host"
    if not one.active:
        masked = unit.load_state == "masked"
        starting = unit.active_state in ("activating", "deactivating")
        return failed(
            state,
            "active (running)",
            f"systemctl unmask {pasted(unit.name)}, then site.yml" if masked else see,
            reasons=[Reason("unit-masked" if masked else "unit-not-active", state)],
            mends=PERSON if masked else START,
            facts={"starting": starting, "skipped": unit.result == "exec-condition"},
        )
    if unit.needs_daemon_reload:
        found = f"{state}, and its file has changed since"
        return warned(found, "as systemd read it", "systemctl daemon-reload", mends=CONVERGE)
    return passed(state)


@judgement()
def restarts(view: View) -> Finding:
    """The daemon lasts: no loop of crashes now, and no restart by systemd in the last hour."""
    if view.host.systemd_unread:
        return unknown(words.unread(view.host.systemd_unread))
    one, unit, expected = view.one, view.one.unit, "a daemon that lasts"
    remedy = f"see why it ended: journalctl -b -u {pasted(unit.name)}"
    if one.short_lives > 1 and not one.lasts:
        line = f"{one.short_lives} starts in a row did not last"
        return failed(line, expected, remedy, reasons=[Reason("daemon-went-away", line)])
    if not unit.restarts:
        return passed("never restarted by systemd")
    line = f"systemd restarted it {words.number(unit.restarts, 'time')}"
    if unit.active_since_s is None or one.in_force_s is None:
        return warned(line, expected, remedy, reasons=[Reason("daemon-went-away", line)])
    ago_s = max(0.0, view.host.now_s - unit.active_since_s)
    line += f", last {duration.text(ago_s)} ago"
    if ago_s < _RECENT_S:
        return warned(line, expected, remedy, reasons=[Reason("daemon-went-away", line)])
    return passed(f"{line}, and it has lasted since")


@judgement()
def drain(view: View) -> Finding:
    """No drain keeps new clients out."""
    one = view.one
    if one.drain is None:
        return passed("not drained")
    since = f"drained since {shown(one.drain.since)}"
    since += f" by {shown(one.drain.by)}" if one.drain.by else ""
    since += f" ({shown(one.drain.why)})" if one.drain.why else ""
    if one.drain.run_pid is not None:
        line = f"{since}: no new client is let in while pid {one.drain.run_pid} waits"
        remedy = f"wait for that run to end; `mpsctl undrain {pasted(one.name)}` lets clients in at once"
    else:
        line = f"{since}: no new client is let in"
        remedy = f"mpsctl undrain {pasted(one.name)}"
    return warned(
        line,
        "an instance that lets clients in",
        remedy,
        reasons=[Reason("drained", line, remedy)],
        mends=UNDRAIN,
        facts={"since": one.drain.since, "by": one.drain.by, "why": one.drain.why, "run_pid": one.drain.run_pid},
    )


@judgement()
def restart_pending(view: View) -> Finding:
    """Nothing is desired that only a restart brings about, and that waits for clients to leave."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    why = why_restart(one)
    if why is None:
        return passed("none")
    remedy = f"mpsctl drain {pasted(one.name)}, then systemctl restart {pasted(one.unit.name)}; or site.yml with"
    return warned(
        why,
        "a daemon in the desired state",
        f"{remedy} mps_on_clients",
        reasons=[Reason("set-before-restart", why)],
        mends=RESTART,
    )


def why_restart(one: InstanceFacts) -> Optional[str]:
    """What of the desired state only a restart brings about, or None."""
    main, desired = one.main, one.desired
    if main is None or desired is None or main.serves is None or one.public is None:
        return None
    served, wanted = main.serves.devices, tuple(device.uuid for device in one.devices)
    listens_on = one.door.unit.listens_on if one.door is not None else None
    at_the_door = desired.front_door and one.door is not None and one.door.unit.active
    if at_the_door and listens_on is not None and listens_on != one.public / pipe.DOOR:
        return f"the front door stands at {shown(str(listens_on.parent))}, desired {one.public}"
    directory = main.serves.pipe_directory
    if desired.front_door and one.serves_public is not None:
        return f"the daemon serves {shown(str(directory))} itself, desired behind a front door"
    if not desired.front_door and directory != one.public:
        return f"the daemon serves {shown(str(directory))}, desired {one.public} itself, without a front door"
    if wanted and served != wanted:
        return f"the daemon serves {', '.join(map(shown, served))}, desired {', '.join(wanted)}"
    if main.several_users != desired.multi_user:
        return f"the daemon serves {'one user' if desired.multi_user else 'several users'} at a time"
    return main.replaced


@judgement()
def client_file(view: View) -> Finding:
    """The file of variables for clients says where the daemon that runs is found, and its GPUs."""
    one = view.one
    path = view.host.places.client_environment(one.name)
    if not one.pid:
        return unknown(no_daemon(view))
    if one.found_at is None or not one.serves:
        return unknown("what the daemon serves is not told", remedy=as_root(view))
    if one.client_file_unread is not None:
        return unknown(words.unread(one.client_file_unread), "a file", "look at it")
    variables = client_environment.variables(str(one.found_at), one.serves)
    expected = client_environment.file(one.name, variables)
    if one.client_file == expected:
        return passed(str(path))
    remedy = "site.yml writes it anew"
    if one.client_file is None:
        return warned(f"no {path}: a unit that reads it does not start", "one", remedy, mends=CONVERGE)
    if not one.client_file.startswith(FINGERPRINT):
        return warned(f"{path} is not ours", "one of ours", f"move it away, then {remedy}", mends=PERSON)
    lines = [line for line in one.client_file.splitlines() if not line.startswith("#")]
    found = f"{path} says {shown(', '.join(lines)) or 'nothing'}: clients that read it may run outside MPS"
    return warned(found, client_environment.render(variables, "systemd").replace("\n", ", "), remedy, mends=CONVERGE)


JUDGEMENTS = (configuration, unit_enabled, unit_active, restarts, drain, restart_pending, client_file)
