"""The judgements of an instance's servers, by the daemon and by their log."""

from __future__ import annotations

from typing import Iterable, Optional

from mpsctl.adapters.daemon_log import ServerLog
from mpsctl.checks import words
from mpsctl.checks.gpu_checks import untold
from mpsctl.checks.judgement import Finding, View, failed, judgement, passed, unknown, warned, worst_of
from mpsctl.checks.unit_checks import no_daemon, reload
from mpsctl.model import duration
from mpsctl.model.finding import RELOAD, Reason
from mpsctl.model.foreign import pasted
from mpsctl.observe.facts import ServerFacts

_LOOP = 3
"""So many servers of one user that failed in a row without a client are a loop (a daemon tries six times)."""
WINDOW_S = 600
"""And each within this time of the one before; the last within an hour."""
RECENT_S = 3600
_INEXACT_WINDOW_S, _START_WINDOW_S = 30, 120
"""The log has whole seconds, and a clock is not set by less; a server may end while its daemon's unit starts."""


@judgement()
def server_state(view: View) -> Finding:
    """No server is in FAULT; the server that is desired without clients is there."""
    why = untold(view)
    if why:
        return unknown(why)
    one = view.one
    amiss = worst_of(each for server in one.servers for each in [_state_amiss(server)] if each)
    if amiss is not None:
        return amiss
    wanted = one.desired.eager_server if one.desired else None
    if wanted is not None and not one.servers and one.active:
        found, expected = "no server", f"the server of user {wanted}, without waiting for a client"
        reasons = [Reason("not-as-desired", f"{found}, desired {expected}")]
        return failed(found, expected, reload(one), reasons=reasons, mends=RELOAD)
    return passed(
        ", ".join(f"server {s.pid} is {s.state}" for s in one.servers) or "no server yet, it comes with a client"
    )


def _state_amiss(server: ServerFacts) -> Optional[Finding]:
    """What is wrong with one server's state, or None."""
    if server.process_state in ("T", "t"):
        found = f"server {server.pid} is stopped (state T): its clients hang"
        reasons = [Reason("server-stopped", found, f"kill -CONT {server.pid}, and find who stopped it")]
        return failed(found, "ACTIVE", reasons[0].remedy, reasons=reasons)
    if server.state is None:
        return unknown(f"server {server.pid}: this driver's daemon does not tell its state")
    if server.state == "ACTIVE":
        return None
    level, cause = (failed, "client-fault") if server.state == "FAULT" else (warned, "server-not-ready")
    found = f"server {server.pid} is in state {server.state}"
    remedy = "end the clients that met the error; the server comes back by itself when they are gone"
    return level(found, "ACTIVE", remedy, reasons=[Reason(cause, found)])


@judgement(by_log=True)
def server_exits(view: View) -> Finding:
    """No server ended with a failure and was not replaced; no loop of failing servers (B53)."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    if one.log_unread:
        return unknown(words.unread(one.log_unread))
    servers = list(one.log.servers.values())
    bad = [server for server in servers if server.exit_status not in (None, 0)]
    ended = next((each for each in servers[-1:] if each.left), None)
    if ended is not None and _recently(view, ended):
        pids = ", ".join(map(str, ended.left[:8]))
        line = f"server {ended.pid} ended under {words.number(len(ended.left), 'client')} (pid {pids})"
        return warned(
            line,
            "servers that end when their clients have left",
            "its clients met error 806: start them anew; never kill a server that has clients",
            reasons=[Reason("server-gone", line)],
        )
    if not bad:
        return passed("no server failed since the daemon's start")
    lines = [f"server {each.pid} of user {each.uid} exited with status {each.exit_status}" for each in bad]
    loop = _loop(view, servers)
    if loop:
        return failed(
            loop,
            "a server that starts",
            f"see the server's lines: journalctl -u {pasted(one.unit.name)}",
            *lines[-6:],
            reasons=[Reason("server-crash-loop", loop)],
        )
    last = servers[-1]
    if last.exit_status not in (None, 0) and _recently(view, last):
        remedy = "see dmesg and the journal for why"
        return warned(
            f"the last server ({lines[-1]}{_ago(view, last)})",
            "servers that end with 0",
            f"its clients met error 806: start them anew; {remedy}" if last.served else remedy,
            *lines[-6:],
            reasons=[Reason("server-gone" if last.served else "server-failed", lines[-1])],
        )
    return passed(f"{words.number(len(bad), 'server')} failed since the daemon's start, and none of late", *lines[-6:])


def _loop(view: View, servers: Iterable[ServerLog]) -> Optional[str]:
    """The loop of failing servers that goes on now, in words; or None."""
    known = list(servers)
    for uid in dict.fromkeys(server.uid for server in known):
        mine = [server for server in known if server.uid == uid]
        tail: list[ServerLog] = []
        for server in reversed([each for each in mine if each.exit_status is not None]):
            together = not tail or _gap_s(server, tail[-1]) <= WINDOW_S
            if server.exit_status == 0 or server.served or not together:
                break
            tail.append(server)
        alive = any(server.exit_status is None for server in mine)
        if len(tail) >= _LOOP and _recently(view, tail[0]) and not (alive and view.one.servers):
            return f"{len(tail)} servers of user {uid} in a row exited with a failure before any client"
    return None


def _gap_s(earlier: ServerLog, later: ServerLog) -> float:
    """How far two ends are apart; 0 where the log does not tell."""
    if earlier.ended_s is None or later.ended_s is None:
        return 0
    return later.ended_s - earlier.ended_s


def _recently(view: View, server: ServerLog) -> bool:
    """Whether it ended within the last hour, or that is not told."""
    ago_s = _ago_s(view, server)
    return ago_s is None or ago_s < RECENT_S


def _ago(view: View, server: ServerLog) -> str:
    ago_s = _ago_s(view, server)
    return "" if ago_s is None else f", {duration.text(ago_s)} ago"


def _ago_s(view: View, server: ServerLog) -> Optional[float]:
    """How long ago it ended; None where the log does not tell, or tells a time at which its daemon did not run.

    The log has the time of day. Where the clock was set since the start of the daemon, a line may be of before or after
    that: what fits into the life of the daemon is taken, the later end where both do.
    """
    if server.ended_s is None:
        return None
    unit, by_clock_s = view.one.unit, view.host.wall_s - server.ended_s
    ages_s = [by_clock_s, by_clock_s - unit.clock_set_s]
    if unit.clock_set_s and unit.active_since_s is not None:
        runs_s = view.host.now_s - unit.active_since_s
        ages_s = [age_s for age_s in ages_s if age_s <= runs_s + _START_WINDOW_S]
    ages_s = [age_s for age_s in ages_s if age_s >= -_INEXACT_WINDOW_S]
    return max(0.0, min(ages_s)) if ages_s else None


@judgement(by_log=True)
def client_faults(view: View) -> Finding:
    """No client's fatal fault has ended the work of all, or others have come since (error 700 in each: driver 580)."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    if one.log_unread:
        return unknown(words.unread(one.log_unread))
    faults = [(server.pid, fault) for server in one.log.servers.values() for fault in server.faults]
    if not faults:
        return passed("none since the last client connected")
    server, fault = faults[-1]
    # The log names a bystander where more than one client is connected (10 of 10, driver 580, H200).
    line = f"{words.fault(server, fault.connected, fault.alone)}: every client of it met the same error"
    return warned(
        line,
        "clients without a fault",
        "start them all again; find the fault with compute-sanitizer, outside MPS",
        reasons=[Reason("client-fault", line)],
        facts={"server": server, "culprit": fault.named if fault.alone else None, "clients": list(fault.connected)},
    )


JUDGEMENTS = (server_state, server_exits, client_faults)
