"""The judgements of an instance's clients and their limits."""

from __future__ import annotations

from typing import Sequence

from mpsctl.checks import waits, words
from mpsctl.checks.gpu_checks import untold
from mpsctl.checks.judgement import (
    VERIFY_ONLY,
    Finding,
    View,
    by_log_alone,
    failed,
    judgement,
    passed,
    some,
    unknown,
    warned,
)
from mpsctl.checks.unit_checks import no_daemon
from mpsctl.model.finding import Reason
from mpsctl.observe.door_facts import Waiting
from mpsctl.observe.facts import ClientFacts, InstanceFacts

SPARE_MIB = 16
"""A client this near its limit has used it up: NVML counts in whole MiB, and an allocation takes 2 MiB at least."""


@judgement(verbs=VERIFY_ONLY, by_log=True)
def client_pids(view: View) -> Finding:
    """The daemon knows its clients by this host's process ids (B34: pid 0 where no pid namespace is shared)."""
    one = view.one
    if not one.pid:
        return unknown(no_daemon(view))
    if one.log_unread:
        return unknown(words.unread(one.log_unread))
    hidden = one.log.hidden + sum(client.pid == 0 for client in one.clients)
    if hidden:
        line = f"{words.number(hidden, 'client')} came with process id 0: daemon and client share no pid namespace"
        return warned(
            line,
            "process ids of this host",
            "run the daemon on the host, or its container with the host's pid namespace; limits hold all the same",
            reasons=[Reason("clients-hidden-by-pid-namespace", line)],
        )
    return passed("told by the daemon")


@judgement()
def client_limits(view: View) -> Finding:
    """No client dropped its limit or got in without one (B04)."""
    one = view.one
    why = untold(view)
    if why:
        return unknown(why)
    without = [(client, line) for client in one.clients for line in [words.without_limit(client)] if line]
    if without:
        lines = [f"{words.client(client)} has no limit: {line}" for client, line in without]
        return failed(
            some(lines),
            "each client within the limit",
            "take CUDA_MPS_PINNED_DEVICE_MEM_LIMIT out of its environment and start it anew",
            *lines,
            reasons=[reason for client, _ in without for reason in _why_unlimited(client)],
            facts={"pids": [client.pid for client, _ in without]},
        )
    unclear = []
    for client in one.clients:
        line = words.limit_untold(client)
        if line and (_limited(view) or any(limit is not None for limit in client.limits_mib)):
            unclear.append(f"{words.client(client)}: {line}")
    if unclear:
        return unknown(some(unclear), "", "", *unclear)
    return passed("every client holds its limit")


def _limited(view: View) -> bool:
    """Whether the instance has a limit that a client could drop."""
    return view.one.desired is not None and view.one.desired.limit is not None


def _why_unlimited(client: ClientFacts) -> list[Reason]:
    about = words.client(client)
    found = [Reason("limit-bypassed", f"{about}: {words.bypass(client.bypass)}")] if client.bypass else []
    found += [
        Reason("limit-over-reached", f"{about}: {words.over(each)}")
        for each in client.over
        if each.limit_mib is not None
    ]
    if client.without:
        found.append(Reason("client-without-limit", f"{about}: {words.without_limit(client)}"))
    return found


@judgement()
def older_limits(view: View) -> Finding:
    """Clients that connected before a change keep what they had: no fault, and worth a note."""
    why = untold(view)
    if why:
        return unknown(why)
    older = [f"{words.client(client)} {line}" for client in view.one.clients for line in [words.older(client)] if line]
    if older:
        count = words.number(len(older), "client")
        return passed(f"{count} hold an older limit until they are started anew", *older)
    return passed("none")


@judgement()
def limits_together(view: View) -> Finding:
    """A limit is each process's own: together the clients may be promised more than the card has."""
    one = view.one
    why = untold(view)
    if why:
        return unknown(why)
    lines = []
    for ordinal, device in enumerate(one.devices):
        limits = [client.limits_mib[ordinal] for client in one.clients if ordinal < len(client.limits_mib)]
        promised_mib = sum(limit or 0 for limit in limits)
        if device.memory_mib is not None and promised_mib > device.memory_mib:
            lines.append(
                f"device {ordinal}: the limits of {len(limits)} client processes add up to {promised_mib} MiB of"
                f" {device.memory_mib} MiB; a limit is per process, not per service or container"
            )
    return passed(some(lines), *lines) if lines else passed("within each device")


@judgement(by_log=True)
def client_memory(view: View) -> Finding:
    """No client has used up its own limit: its next allocation fails with error 2."""
    why = untold(view)
    if why:
        return unknown(why)
    lines = [
        f"{words.client(client)} holds {held} MiB of its limit of {limit} MiB on device {ordinal}"
        for client in view.one.clients
        for ordinal, (held, limit) in enumerate(zip(client.memory_mib, client.limits_mib))
        if held is not None and limit is not None and held > limit - SPARE_MIB
    ]
    if lines:
        return warned(
            some(lines),
            f"{SPARE_MIB} MiB to spare",
            "raise mps_device_memory_limit, or let it take less: frameworks keep what they once had",
            *lines,
            reasons=[Reason("own-limit-reached", line) for line in lines],
        )
    return passed("every client has room below its limit")


@judgement()
def waiting_clients(view: View) -> Finding:
    """Nobody waits longer than a moment, before the front door or in the daemon's pending list: for a place, behind
    another user's clients, for a server or the daemon (B20)."""
    one = view.one
    long = [each for each in one.waiting if waits.is_long(each)]
    if any(each.at_door for each in long):
        return _waiting(one, [each for each in long if each.at_door or one.log_trusted is not False])
    if long:
        return by_log_alone(view, _waiting(one, long))
    if one.waiting:
        lines = [waits.reason(one, each).line for each in one.waiting]
        return passed(f"{some(lines)}: a moment", *lines)
    if not one.pid:
        return unknown(no_daemon(view))
    return unknown(words.unread(one.log_unread)) if one.log_unread else passed("nobody")


def _waiting(one: InstanceFacts, every: Sequence[Waiting]) -> Finding:
    """Who waits; those behind other users first, who may wait for as long as these work."""
    reasons = [waits.reason(one, each) for each in every]
    first = [reason for reason in reasons if reason.cause == "waiting-behind-another-user"] or reasons
    return warned(
        some(reason.line for reason in first),
        "nobody waiting",
        first[0].remedy,
        *(reason.line for reason in reasons),
        reasons=reasons,
        facts={"pids": [each.pid for each in every]},
    )


@judgement()
def client_places(view: View) -> Finding:
    """No more clients are in than the front door holds places for, in all and of each share; where a number was lowered
    nobody is ended."""
    one = view.one
    if one.room is None:
        return passed("no number is held") if one.pid else unknown(no_daemon(view))
    if any(place.pids is None for place in one.room.places):
        return unknown(f"{words.room(one.room)}: the daemon does not tell its clients")
    above = [place for place in one.room.places if place.above]
    if not above:
        return passed(words.room(one.room))
    lines = [f"{words.place(place)}: pid {', '.join(map(str, place.pids or ()))}" for place in above]
    return warned(
        some(lines),
        "as many as the front door lets in",
        "wait until some have ended: nobody new comes in before; or raise mps_expected_clients or the share",
        *lines,
        reasons=[Reason("more-than-places", line) for line in lines],
        facts={place.name: list(place.pids or ()) for place in above},
    )


JUDGEMENTS = (
    client_pids,
    client_limits,
    older_limits,
    limits_together,
    client_memory,
    client_places,
    waiting_clients,
)
