"""Who is waited for, told on the controller: in few lines for all hosts, by one of them, and not too often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet import PROJECT, Fleet
from mps_role import progress


def clients(count: int, user: str = "alice") -> list[dict[str, Any]]:
    return [{"pid": 100 + number, "uid": 1, "user": user, "command": "python3 serve.py"} for number in range(count)]


def test_who_is_left_is_told_by_instance_with_the_first_pids(tmp_path: Path) -> None:
    progress.note(tmp_path, "gpu-01", progress.CLIENTS, 1000, {"0": clients(5), "1": []})
    said: list[str] = []
    progress.tell(tmp_path, said.append, 1045)
    assert said == [
        "waiting for 5 clients on 1 host, for 45 s now:",
        "  gpu-01: instance 0: 5 clients left: pid 100 (python3 serve.py, user alice), pid 101 (python3 serve.py, user"
        " alice), pid 102 (python3 serve.py, user alice) and 2 more",
    ]


def test_it_is_told_once_for_all_and_not_too_often(tmp_path: Path) -> None:
    for number in range(48):
        progress.note(tmp_path, f"gpu-{number:02}", progress.CLIENTS, 0, {"0": clients(2)})
    said: list[str] = []
    for _ in range(48):
        progress.tell(tmp_path, said.append, 20)
    assert len(said) <= 8
    assert said[0] == "waiting for 96 clients on 48 hosts, for 20 s now:"
    assert said[-1] == "  and on gpu-05 … gpu-47 (43 hosts)"
    before = len(said)
    progress.tell(tmp_path, said.append, 20 + progress.EVERY_S - 1)
    assert len(said) == before
    progress.tell(tmp_path, said.append, 20 + progress.EVERY_S)
    assert len(said) == 2 * before


def test_who_is_waited_for_no_more_is_not_told(tmp_path: Path) -> None:
    progress.note(tmp_path, "a", progress.REBOOT, 0, {})
    progress.note(tmp_path, "b", progress.REBOOT, 0, {})
    progress.forget(tmp_path, "a")
    progress.forget(tmp_path, "a")
    said: list[str] = []
    progress.tell(tmp_path, said.append, 60)
    assert said == ["waiting for b to come back, for 60 s now"]


def test_a_containers_client_is_named_by_it_and_foreign_texts_do_not_print() -> None:
    left = [{"pid": 1, "uid": 7, "user": None, "command": "x\x1b[2J", "container": None}]
    left += [{"pid": 2, "uid": 0, "user": "root", "command": "y", "container": "docker abc"}]
    assert progress.clients_told(left) == ("2 clients left: pid 1 (x\\x1b[2J, user 7), pid 2 (y, container docker abc)")


def answer(left: int, *, ended: int = 0, unknown: object = None) -> str:
    one = {"instance": "0", "left": clients(left), "ended": [{"pid": 1}] * ended, "unknown": unknown}
    return json.dumps({"instances": {"0": one}})


def drained(fleet: Fleet, name: str, *answers: tuple[int, str]) -> None:
    """A host whose mpsctl answers so, one call after the other; of the last one again."""
    place = fleet.add(name)
    for number, (code, text) in enumerate(answers):
        (place / f"answer-{number}").write_text(text)
        (place / f"code-{number}").write_text(str(code))
    program = place / "mpsctl"
    program.write_text(
        '#!/bin/sh\nhere=${0%/*}\necho "$*" >>"$here/calls"\n[ $1 = drain ] || exit 0\n'
        'number=$(($(grep -c ^drain "$here/calls") - 1))\n'
        f"[ $number -lt {len(answers)} ] || number={len(answers) - 1}\n"
        'cat "$here/answer-$number"; exit $(cat "$here/code-$number")\n'
    )
    program.chmod(0o755)


DRAIN, UNDRAIN = PROJECT / "playbooks/drain.yml", PROJECT / "playbooks/undrain.yml"


def asked(fleet: Fleet, name: str) -> list[str]:
    return (fleet.root / name / "calls").read_text().splitlines()


def test_a_wait_that_is_soon_over_is_not_told(tmp_path: Path) -> None:
    progress.note(tmp_path, "a", progress.CLIENTS, 0, {"0": clients(1)})
    said: list[str] = []
    progress.tell(tmp_path, said.append, progress.FIRST_S - 1)
    assert said == []
    progress.tell(tmp_path, said.append, progress.FIRST_S)
    assert len(said) == 2


def test_a_drain_is_a_row_of_short_waits(fleet: Fleet) -> None:
    drained(fleet, "a", (1, answer(2)), (1, answer(1)), (0, answer(0)))
    drained(fleet, "b", (0, answer(0)))
    run = fleet.play(playbook=DRAIN, variables={"mps_drain_timeout_s": 300, "drain_reason": "a new driver"})
    assert run.exit_code == 0, run.output
    assert asked(fleet, "a") == ["drain --json --reason a new driver --timeout 10"] * 3
    assert "waiting for" not in run.output, "none of it took long"
    assert run.summary() == ["a: instance 0 drained of 2 clients", "b: instance 0 drained"]


def test_only_the_last_wait_ends_clients(fleet: Fleet) -> None:
    drained(fleet, "a", *[(1, answer(2))] * 3, (0, answer(0, ended=2)))
    run = fleet.play(playbook=DRAIN, variables={"mps_drain_timeout_s": 13, "mps_on_clients": "terminate"})
    first, *others = asked(fleet, "a")
    assert first == "drain --json --timeout 10"
    assert run.exit_code == 0 or others[-1].endswith(" --terminate"), run.output


def test_who_stays_over_all_waits_is_named_with_the_whole_length(fleet: Fleet) -> None:
    drained(fleet, "a", (1, answer(1)))
    run = fleet.play(playbook=DRAIN, variables={"mps_drain_timeout_s": 3})
    assert run.exit_code != 0
    (line,) = run.summary()
    assert line == (
        "failed: a: 0: no new client gets in, and after 3 s 1 client left: pid 100 (python3 serve.py, user alice);"
        " clients are let in again"
    )
    assert asked(fleet, "a")[-1] == "undrain"


def test_an_undrain_says_who_was_drained(fleet: Fleet) -> None:
    for name, was in (("a", ["0", "1"]), ("b", [])):
        program = fleet.add(name) / "mpsctl"
        program.write_text(f"#!/bin/sh\necho '{json.dumps({'was_drained': was, 'changes': {}})}'\n")
        program.chmod(0o755)
    run = fleet.play(playbook=UNDRAIN)
    assert run.exit_code == 0, run.output
    assert run.summary() == ["a: instances 0 and 1 let clients in again", "nothing to do: b"]


def test_in_check_mode_no_host_is_asked(fleet: Fleet) -> None:
    drained(fleet, "a", (0, answer(0)))
    run = fleet.play("--check", playbook=DRAIN)
    assert run.exit_code == 0, run.output
    assert run.summary() == ["a: would drain all instances"]
    assert not (fleet.root / "a" / "calls").exists()
