"""Floods: what takes minutes, and is tried by `make attack` alone."""

from __future__ import annotations

import pytest

from .attempts import attempt
from .conftest import ATTACKER, CLIENT, NOBODY, SOMEBODY, Target

pytestmark = pytest.mark.long


@attempt(
    "take all places at the front door",
    tried="5,000 connections of one user, held; another user's client comes ten times",
    result="256 are kept, the others are greeted and closed; the other user's client comes in each time",
)
def test_five_thousand_connections_leave_room_for_others(target: Target) -> None:
    with target.held(SOMEBODY, "silent", "5000"):
        for _ in range(10):
            assert target.client()["outcome"] == "client"
        assert target.health() == "ok"


@attempt(
    "keep the daemon busy with clients that stop in the middle",
    tried="250 processes of one user, each stopped where the daemon has answered it; another user's client comes five"
    " times",
    result="the other user's client comes in each time, within seconds",
)
def test_hundreds_that_stop_in_the_middle_leave_room_for_others(target: Target) -> None:
    with target.held(SOMEBODY, "stalled", "250"):
        for _ in range(5):
            assert target.client(within_s=30)["outcome"] == "client"
        target.run("timeout 60 systemctl reload mps-control@0")
        assert target.health() == "ok"


@attempt(
    "fill the log of the daemon",
    tried="clients that come and go, four at once, 1,000 in all, and 5,000 connections with a wrong word",
    result="refusals are told by their number; the limits are still read back, and every look ends in time",
    left_open="the daemon's own lines, some six for each client that comes and goes, and the front door's one are not"
    " bounded but by what journald keeps (SystemMaxUse=). `mpsctl` reads the newest 16 MiB of them",
)
def test_lines_of_clients_that_come_and_go(target: Target) -> None:
    loop = f"for _ in $(seq 250); do {CLIENT} --hold 0 --timeout 30 >/dev/null; done"
    target.run(
        f"cd /tmp; for _ in 1 2 3 4; do setpriv --reuid={SOMEBODY} --regid={SOMEBODY} --clear-groups"
        f" env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 sh -c '{loop}' & done; wait"
    )
    lines = "journalctl -u mps-front-door@0 -o cat --no-pager | grep -c 'turned away'; true"
    before = int(target.run(lines))
    target.as_user(NOBODY, f"{ATTACKER} wrong 5000")
    assert int(target.run(lines)) - before <= 60
    for verb in ("status", "health", "verify"):
        target.run(f"timeout 60 mpsctl {verb} >/dev/null; test $? -lt 3")
    target.restart()


@attempt(
    "be in the way of a start by thousands of connections",
    tried="two users connect without a pause during three restarts",
    result="each start goes through within a minute, and another user's client comes in meanwhile",
)
def test_starts_under_a_flood(target: Target) -> None:
    with target.held(SOMEBODY, "hammer"), target.held(NOBODY, "hammer"):
        for _ in range(3):
            target.restart()
            target.holds()
