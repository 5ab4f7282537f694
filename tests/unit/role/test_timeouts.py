"""A host on which mpsctl is stopped, or hangs, ends its task and nobody else's."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from fleet import CONVERGE, FAKE, LOOK, PROJECT, Fleet, Run

STUCK = {"stopped": "kill -STOP $$", "asleep": "exec sleep 1000", "deaf": "trap '' HUP TERM PIPE; exec sleep 1000"}
each_way = pytest.mark.parametrize("how", STUCK)


def put(fleet: Fleet, name: str, how: str, when: str) -> None:
    """The installed program of a host does nothing, and never ends, when it is asked to look or to converge."""
    place = fleet.add(name)
    script = f'import os, sys\nif ("--check" in sys.argv) == {when == "look"}:\n'
    script += f'    open("{place}/stuck", "a").write(f"{{os.getpid()}}\\n")\n'
    script += f'    os.execv("/bin/sh", ["sh", "-c", {STUCK[how]!r}])\n'
    (place / "mpsctl").write_text(script + FAKE.read_text().partition("\n")[2])


def end_stuck(fleet: Fleet) -> None:
    for path in fleet.root.glob("*/stuck"):
        for pid in path.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def play(fleet: Fleet, **more: object) -> Run:
    try:
        return fleet.play(extra={"_mps_look_timeout_s": 3, "_mps_change_timeout_s": 3, **more})
    finally:
        end_stuck(fleet)


@each_way
def test_a_look_that_does_not_end_fails_its_host_alone(fleet: Fleet, how: str) -> None:
    put(fleet, "a", how, "look")
    fleet.add("b")
    run = play(fleet)
    assert run.exit_code != 0
    assert run.message().startswith("found no answer of mpsctl within 3 s, expected one; ")
    assert list(run.of(LOOK, "failed")) == ["a"]
    assert run.changed() == {"b": [CONVERGE]}


@each_way
def test_a_change_that_does_not_end_fails_its_host_alone(fleet: Fleet, how: str) -> None:
    put(fleet, "a", how, "converge")
    fleet.add("b")
    run = play(fleet)
    assert run.exit_code != 0
    assert run.message().startswith("found no answer of mpsctl within 3 s")
    assert list(run.of(CONVERGE, "failed")) == ["a"]
    assert run.changed() == {"b": [CONVERGE]}


def test_the_bound_of_a_change_is_longer_than_its_drains(fleet: Fleet) -> None:
    """What is set is an odd length of a drain; the bound is read from the task's own line."""
    put(fleet, "a", "asleep", "converge")
    try:
        run = fleet.play(
            extra={"_mps_change_timeout_s": "{{ mps_drain_timeout_s | int - 3598 }}"},
            variables={"mps_drain_timeout_s": 3600},
        )
    finally:
        end_stuck(fleet)
    assert run.message().startswith("found no answer of mpsctl within 2 s")


def test_a_drain_that_does_not_end_is_told_and_undrained(fleet: Fleet) -> None:
    place = fleet.add("a")
    program = place / "mpsctl"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>"${{0%/*}}/calls"\ncase $1 in drain) echo $$ >>{place}/stuck; kill -STOP $$;; esac\n'
    )
    program.chmod(0o755)
    try:
        run = fleet.play(
            playbook=PROJECT / "playbooks/drain.yml",
            variables={"mps_drain_timeout_s": "-597"},
        )
    finally:
        end_stuck(fleet)
    assert run.exit_code != 0
    failed = [line["result"]["msg"] for line in run.results if line["status"] == "failed"]
    assert failed[-1].endswith("; clients are let in again")
    assert fleet.calls("a") == ["drain", "undrain"]
