"""Trials of how many clients a door lets in at once, on whole hosts: what is given and what must hold."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .front_door import IN, NOBODY, OUTSIDE, REFUSED, SOMEBODY, DoorHost, until

ROOM = 8
SHARES = {"crowd-a.service": 4, "crowd-b.service": 2}
"""By unit; the two others have EACH."""
EACH = 3
USERS = {
    "535": (SOMEBODY, NOBODY),
    "550": (SOMEBODY, SOMEBODY),
    "555": (SOMEBODY, NOBODY),
}
"""Two users in turn (single-user mode), one, and two at once (multi-user)."""
_STORM = Path(__file__).with_name("places_storm.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Crowd:
    """``clients`` of each of four units, and kills of the daemon and of the door's service meanwhile."""

    clients: int
    kills: int
    seed: int


def hold(host: DoorHost) -> None:
    """Room for eight, and shares of units."""
    if host.daemon == "555":
        host.set("Instance", "MultiUser=yes")
    shares = " ".join([*(f"unit:{unit}={most}" for unit, most in SHARES.items()), f"each-unit={EACH}"])
    host.set("Clients", f"ExpectedClients={ROOM}")
    host.set("Clients", "OverExpected=wait")
    host.set("Clients", f"Shares={shares}")


def let_go(host: DoorHost) -> None:
    host.run("sed -i -E '/^(Shares|OverExpected|ExpectedClients)=/d' /etc/mps/0.conf && systemctl reload mps-control@0")


def storm(host: DoorHost, crowd: Crowd) -> dict[str, Any]:
    """What was seen; nobody above his share, nobody past the door, nobody left behind."""
    first, second = USERS[host.daemon]
    units = {f"crowd-{name}.service": uid for name, uid in zip("abcd", (first, second, first, second))}
    words = [word for unit, uid in units.items() for word in ("--unit", f"{unit}:{uid}")]
    words += ["--clients", str(crowd.clients), "--seed", str(crowd.seed)]
    words += ["--daemon", str(crowd.kills), "--service", str(crowd.kills)]
    found: dict[str, Any] = json.loads(host.run(f"python3 - {shlex.join(words)}", _STORM).splitlines()[-1])
    print(f"{host.name}, room for {ROOM}: {json.dumps(found)}")
    most = found["most"]
    assert found["looks"] > crowd.clients / 4, found
    assert most["clients"] <= ROOM, found
    for unit in units:
        assert most.get(unit, 0) <= SHARES.get(unit, EACH), (unit, found)
    assert max(most.get(unit, 0) for unit in units) >= 2, "a crowd that never stood side by side shows nothing"
    met = sum((Counter(every) for every in found["met"].values()), Counter[str]())
    assert sum(met.values()) == crowd.clients * len(units), found
    assert met[OUTSIDE] <= 1, found
    assert all(every.get(IN, 0) > 0 for every in found["met"].values()), found
    if not crowd.kills:
        assert not met[REFUSED], "nobody waited longer than the bound"
    assert not found["left"], found
    counts_right(host)
    return found


def counts_right(host: DoorHost) -> None:
    """As many come in as there is room for, and the next one waits; once one has gone, that comes in."""
    host.open()
    units = [f"crowd-last-{number}.service" for number in range(ROOM)]
    uid = SOMEBODY
    through = "systemd-run -q --pipe --wait --collect -E CUDA_MPS_PIPE_DIRECTORY --unit="
    clients = [host.client(through=through + unit, uid=uid) for unit in units]
    assert [client.outcome() for client in clients] == [IN] * ROOM
    late = host.client(uid=uid)
    assert late.waits()
    told = json.loads(host.run("cat /run/mps-fleet/0/front-door.json"))["waiting"]
    assert [(one["why"], one["place"]) for one in told] == [("no-place", "clients")], told
    clients[0].end()
    assert late.outcome() == IN
    for client in (*clients[1:], late):
        client.end()
    until(lambda: not json.loads(host.run("cat /run/mps-fleet/0/front-door.json"))["waiting"], "nobody waits")
