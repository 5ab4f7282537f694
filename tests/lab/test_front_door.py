"""The front door on whole hosts with the real control daemons 535, 550 and 555, and simulated clients and servers.

A tenth of what tests/soak/test_front_door_storm.py tries. The hosts are booted once; release 0.2.0 put MPS on them, and
a client of its daemon was connected when the present one came.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import pytest

from . import front_door_trials as trials
from .front_door import IN, OUTSIDE, Client, DoorHost, Fleet, beside, fleet, seed
from .test_upgrades import RELEASES, release

KILLS = 20


@dataclass(frozen=True)
class Upgraded:
    """A client that came to the daemon of release 0.2.0, that daemon, and those that came after the converge."""

    old: Client
    pids: tuple[int, int]
    met: str
    waits: Client


@dataclass(frozen=True)
class Doors:
    """``upgraded`` is empty where this clone has no commit of release 0.2.0."""

    fleet: Fleet
    upgraded: dict[str, Upgraded]

    def of(self, daemon: str) -> DoorHost:
        return self.fleet.of(daemon)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with fleet("door", converged=False) as booted:
        try:
            former = release(RELEASES["0.2.0"], tmp_path_factory.mktemp("0.2.0"))
        except pytest.skip.Exception:
            booted.converge()
            yield Doors(booted, {})
            return
        yield Doors(booted, upgrade(booted, former))


def upgrade(booted: Fleet, former: Path) -> dict[str, Upgraded]:
    first = booted.rollout.play(str(former / "site.yml"), config=former / "ansible.cfg")
    assert first.exit_code == 0, first.output
    old = booted.everywhere(lambda host: host.client())
    assert {name: client.outcome() for name, client in old.items()} == dict.fromkeys(old, IN)
    pids = booted.everywhere(lambda host: host.main_pid())
    booted.converge()
    met = booted.everywhere(lambda host: host.meets())
    after = booted.everywhere(lambda host: host.main_pid())

    def drained(host: DoorHost) -> Client:
        host.run("mpsctl drain --timeout 1 0", check=False)
        return host.client()

    waits = booted.everywhere(drained)
    return {name: Upgraded(old[name], (pids[name], after[name]), met[name], waits[name]) for name in old}


@pytest.fixture(autouse=True)
def nobody_is_left(doors: Doors) -> Iterator[None]:
    yield
    for host in doors.fleet.hosts:
        host.end_clients()


def test_a_converge_over_release_0_2_0_disturbs_nobody(doors: Doors) -> None:
    """It comes first: the fixture converged with a client of the old daemon connected."""
    if not doors.upgraded:
        pytest.skip("this clone is shallow and has no commit of release 0.2.0")
    for host in doors.fleet.hosts:
        one = doors.upgraded[host.name]
        assert one.pids[0] == one.pids[1], f"{host.name}: the daemon was restarted"
        assert one.met == IN, host.name
        assert one.waits.waits(), f"{host.name}: the door before the old daemon"
        host.run("mpsctl undrain 0")
        assert one.waits.outcome() == IN
        assert (one.old.end(), one.waits.end()) == (0, 0), f"{host.name}: a client lost its server"
        trials.comes_in(host)
        assert host.main_pid() == one.pids[0]
        host.run("systemctl restart mps-control@0 mps-control@1")
        trials.comes_in(host)


def test_every_state_of_the_table(doors: Doors) -> None:
    doors.fleet.everywhere(trials.every_state)


def test_a_storm_of_kills_lets_nobody_past(doors: Doors) -> None:
    dice, share = seed(), -(-KILLS // len(doors.fleet.hosts))
    met = doors.fleet.everywhere(lambda host: trials.storm(host, share, dice))
    total = sum(met.values(), Counter[str]())
    print(f"{share * len(met)} kills of daemons, as many of services: {dict(total)}")
    trials.judge_storm(total)


def test_without_the_door_the_same_storm_has_clients_outside(doors: Doors) -> None:
    """What the storm proves: the clients do run outside MPS where no door stands before the daemon."""
    found = doors.of("550").storm("--direct", "--daemon", "7", "--seed", str(seed()))
    assert trials.outside(Counter(found["met"])) > 0, found


def test_a_door_that_is_taken_away_has_clients_outside(doors: Doors) -> None:
    host = doors.of("555")
    host.open()
    host.run("rm /run/nvidia-mps/0/control")
    assert host.meets() == OUTSIDE
    doors.fleet.converge()
    trials.comes_in(host)


def test_the_service_killed_at_each_step_jams_no_daemon(doors: Doors) -> None:
    def each(host: DoorHost) -> None:
        trials.killed_after_each_step(host)
        trials.killed_while_the_server_starts(host)

    doors.fleet.everywhere(each)


def test_a_daemon_jammed_by_the_services_death_heals_by_itself(doors: Doors) -> None:
    waited_s = doors.fleet.everywhere(trials.killed_in_the_moment)
    print(f"the next client waited, in seconds: {waited_s}")
    assert max(waited_s.values()) < 30  # 5 on an idle machine


def test_crowds_delay_nobody(doors: Doors) -> None:
    host = doors.of("550")
    trials.silent_connections(host)
    trials.full_backlog(host)


def test_who_comes_from_where(doors: Doors) -> None:
    beside(
        lambda: trials.namespaces(doors.of("555")),
        lambda: trials.another_place(doors.of("550")),
        lambda: trials.one_user_after_another(doors.of("535")),
    )


def test_settings_of_the_door(doors: Doors) -> None:
    beside(
        lambda: trials.short_wait(doors.of("535")),
        lambda: trials.members_only(doors.of("550")),
        lambda: trials.several_users_at_once(doors.of("555")),
    )


def test_clients_wait_through_what_operators_do(doors: Doors) -> None:
    doors.fleet.everywhere(trials.while_clients_wait)


def test_isolate_reboot_and_removal_with_clients_waiting(doors: Doors) -> None:
    """It comes last: nothing is left of MPS on one host."""
    beside(
        lambda: trials.isolated(doors.of("535")),
        lambda: trials.rebooted(doors.of("555")),
        lambda: trials.removed(doors.of("550")),
    )
