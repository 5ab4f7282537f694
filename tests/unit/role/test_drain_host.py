"""playbooks/drain.yml on a host whose clients stay: what kept it, and whether the host lets clients in again."""

from __future__ import annotations

import pytest

from fleet import PROJECT, Fleet, Run

IN_THE_WAY = "mpsctl drain: 0: no new client gets in, and after 300 s 1 client left: pid 7"
BY_HAND = "run `ansible-playbook -l a playbooks/undrain.yml`"


def drain(fleet: Fleet, undrain: str, at_drain: str = "exit 1", **variables: object) -> Run:
    """A run over one host. ``undrain`` and ``at_drain`` are what its mpsctl does, in words of a shell."""
    program = fleet.add("a") / "mpsctl"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>"${{0%/*}}/calls"\ncase $1 in\n'
        f"drain) echo '{IN_THE_WAY}' >&2; {at_drain};;\nundrain) {undrain};;\nesac\n"
    )
    program.chmod(0o755)
    return fleet.play(playbook=PROJECT / "playbooks/drain.yml", variables=variables)


def said(run: Run) -> str:
    """What the play says at last of the host."""
    return str([line["result"]["msg"] for line in run.results if line["status"] == "failed"][-1])


def test_a_host_whose_clients_stay_is_undrained_and_says_so(fleet: Fleet) -> None:
    run = drain(fleet, "exit 0")
    assert run.exit_code != 0
    assert said(run) == f"a: {IN_THE_WAY}; clients are let in again"
    assert fleet.calls("a") == ["drain", "undrain"]


def test_an_undrain_that_fails_is_told_with_its_reason_and_what_to_do(fleet: Fleet) -> None:
    run = drain(fleet, "echo 'mpsctl: 0: the limit is not in force' >&2; exit 4")
    assert run.exit_code != 0
    assert said(run) == (
        f"a: {IN_THE_WAY}; `mpsctl undrain` failed too (mpsctl: 0: the limit is not in force), and instances may still"
        f" let no client in: see `mpsctl status` there, mend what it names, then {BY_HAND}"
    )


def test_an_undrain_that_hangs_is_given_up_and_told(fleet: Fleet) -> None:
    run = drain(fleet, "exec sleep 1000", undrain_timeout_s=1)
    assert run.exit_code != 0
    assert "; `mpsctl undrain` did not end within 1 s, and instances may still let no client in: " in said(run)
    assert said(run).endswith(BY_HAND)


def test_a_program_that_went_meanwhile_is_told(fleet: Fleet) -> None:
    run = drain(fleet, "exit 0", 'rm "$0"; exit 1')
    assert run.exit_code != 0
    assert "; `mpsctl undrain` failed too (" in said(run)
    assert "No such file" in said(run)


@pytest.mark.parametrize("lost_at", ["drain", "undrain"])
def test_of_a_host_that_is_lost_it_cannot_be_told(fleet: Fleet, lost_at: str) -> None:
    """From the moment on at which the file ``gone`` is there, the host is behind a port at which nobody listens."""
    gone = fleet.root / "gone"
    if lost_at == "drain":
        gone.touch()
    run = drain(
        fleet,
        "exit 0",
        f"touch '{gone}'; exit 1",
        ansible_connection=f"{{{{ 'ssh' if '{gone}' is exists else 'local' }}}}",
        ansible_host="127.0.0.1",
        ansible_port=1,
    )
    assert run.exit_code != 0
    assert said(run).startswith("a: ")
    assert ("127.0.0.1" if lost_at == "drain" else IN_THE_WAY) in said(run)
    assert "; the host cannot be reached, and whether it lets clients in cannot be told: once it is back, " in said(run)
    assert said(run).endswith(BY_HAND)
    assert fleet.calls("a") == ([] if lost_at == "drain" else ["drain"])
