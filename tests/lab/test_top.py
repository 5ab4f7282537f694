"""`mpsctl top` on a real host with clients: systemd, the control daemon and the terminal are real, the GPUs are not."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Iterator

import pytest

from .front_door import IN, DoorHost, fleet

_SCRIPT = Path(__file__).with_name("top_on_a_terminal.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def host() -> Iterator[DoorHost]:
    with fleet("top", ("550",)) as booted:
        (found,) = booted.hosts
        found.run("true")  # what follows shares its connection
        yield found
        found.end_clients()


def on_a_terminal(host: DoorHost, command: str, awaited: str, end: str) -> dict[str, Any]:
    said = host.run(f"python3 - {shlex.join([command, awaited, end])}", _SCRIPT)
    found: dict[str, Any] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert found["began"]
    assert found["found"], found["last"]
    assert found["restored"]
    assert found["longest"] <= 80
    return found


def test_looks_follow_what_happens_and_one_process_makes_them(host: DoorHost) -> None:
    clients = [host.client() for _ in range(3)]
    assert [client.outcome() for client in clients] == [IN] * 3
    found = on_a_terminal(host, "systemctl stop mps-control@1", r"1 +1 +CRITICAL", "q")
    assert found["code"] == 0
    before, after = found["lookers"]
    assert set(before) & set(after), "what looks keeps NVML open from one look to the next"
    host.run("systemctl start mps-control@1")


def test_a_signal_ends_it_and_the_host_is_as_before(host: DoorHost) -> None:
    found = on_a_terminal(host, "true", r"0 +0 +ok +[0-9]", "SIGTERM")
    assert found["code"] == 143
    told = json.loads(host.run("mpsctl top --json"))
    assert told["simulated"]
    assert {one["name"]: one["word"] for one in told["instances"]} == {"0": "ok", "1": "ok"}
    assert [one["in_force"] for row in told["instances"] for device in row["devices"] for one in [device["limit"]]] == [
        "4096 MiB",
        "4096 MiB",
    ]
    assert "mpsctl" not in host.run("ps -eo args | grep '[m]psctl top' || true")
