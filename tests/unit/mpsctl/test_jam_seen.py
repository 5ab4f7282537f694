"""A jam that a look itself sees: the daemon tells its defaults and its servers, and nothing of a server (driver 580).

Seen on an H200 without a front door, where a first client was killed while its server started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import pytest

from fakes import FakeDaemon, Host
from mpsctl.lifecycle import health
from mpsctl.model.finding import CRITICAL, UNKNOWN
from mpsctl.observe.host import look
from mpsctl.store import admission, front_door_notes, quiet
from mpsctl.store.front_door_notes import Jammed, Notes
from test_health import KILL, SERVER, Look, begin, join


def jam(daemon: FakeDaemon) -> FakeDaemon:
    def stays_silent(command: str) -> None:
        daemon.not_served = command.startswith(("get_server_status", "get_client_list"))

    daemon.before_command = stays_silent
    return daemon


def is_jammed(host: Host) -> bool:
    return look(host.world).instances["0"].jammed


@pytest.mark.parametrize("door", ["yes", "no"])
def test_it_is_told_as_a_jam(host: Host, door: str) -> None:
    jam(begin(host, FrontDoor=door))
    assert is_jammed(host)
    found = Look(host).amiss["daemon-answers"]
    assert (found.level, [reason.cause for reason in found.reasons]) == (CRITICAL, ["daemon-jammed"])


@pytest.mark.parametrize(
    "otherwise",
    [
        pytest.param(lambda host, daemon: setattr(daemon, "holders", (4711,)), id="somebody holds its session"),
        pytest.param(lambda host, daemon: setattr(daemon, "holders_untold", "no list"), id="nobody can tell who does"),
        pytest.param(lambda host, daemon: setattr(host.processes[SERVER], "state", "T"), id="its server is stopped"),
        pytest.param(lambda host, daemon: setattr(host.processes[daemon.pid], "state", "T"), id="it is stopped"),
        pytest.param(lambda host, daemon: setattr(daemon, "not_served", True), id="it tells nothing at all"),
        pytest.param(lambda host, daemon: daemon.servers.clear(), id="it has no server"),
    ],
)
def test_what_else_makes_a_daemon_silent_is_no_jam(host: Host, otherwise: Callable[[Host, FakeDaemon], object]) -> None:
    daemon = jam(begin(host))
    otherwise(host, daemon)
    if daemon.not_served:
        daemon.before_command = lambda command: None
    assert not is_jammed(host)


def noted_by_the_door(host: Host, daemon: FakeDaemon) -> None:
    began = host.processes[daemon.pid].started_at
    front_door_notes.write(host.places, "0", Notes(jammed=Jammed(daemon.pid, began, host.world.now_s())))


@pytest.mark.parametrize("policy", ["report", "restart"])
def test_one_that_the_door_found_too_is_healed_at_the_first_look_where_nobody_can_be_hurt(
    host: Host, policy: str
) -> None:
    daemon = jam(begin(host, UnresponsiveDaemon=policy))
    noted_by_the_door(host, daemon)
    assert Look(host).kinds == [health.DAEMON_ENDED]
    assert host.systemd.acts == [KILL]


def test_one_that_a_look_alone_takes_for_jammed_may_let_clients_in_by_now(host: Host) -> None:
    jam(begin(host))
    assert [Look(host).kinds for _ in range(3)] == [[], [], []]
    assert host.systemd.acts == []


def test_where_notes_were_lost_somebody_may_be_hurt(host: Host) -> None:
    daemon = jam(begin(host))
    noted_by_the_door(host, daemon)
    notes = front_door_notes.read(host.places, "0")
    front_door_notes.write(host.places, "0", replace(notes, whole=False))
    assert [Look(host).kinds for _ in range(3)] == [[], [], []]
    assert host.systemd.acts == []


def passing(host: Host, monkeypatch: pytest.MonkeyPatch) -> admission.Held:
    """A client that the front door is passing on, for longer than a look waits."""
    monkeypatch.setattr(quiet, "WAIT_S", 0.02)
    held = admission.try_hold(host.places, "0")
    assert held is not None
    return held


@pytest.mark.parametrize("silent", ["about everything", "about its servers"])
def test_a_daemon_is_not_ended_for_clients_that_hold_it_one_after_the_other(
    host: Host, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Each stops in the middle of its start, for a second. Whether the daemon would have answered is not known."""
    daemon = begin(host, UnresponsiveDaemon="restart")
    if silent == "about everything":
        daemon.not_served = True
    else:
        jam(daemon)
    held = passing(host, monkeypatch)
    for _ in range(3):
        found = Look(host)
        assert (found.amiss["daemon-answers"].level, found.kinds) == (UNKNOWN, [health.DAEMON_NOT_ENDED])
    assert host.systemd.acts == []
    held.close()
    daemon.not_served = silent == "about everything"
    assert Look(host).kinds == [health.DAEMON_WILL_BE_ENDED], "its two looks begin anew"


def test_a_daemon_that_answers_beside_them_is_well(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(host)
    held = passing(host, monkeypatch)
    assert "daemon-answers" not in Look(host).amiss
    held.close()


def test_one_that_the_door_found_is_healed_whoever_is_being_passed_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the door's own connection that the daemon does not answer."""
    noted_by_the_door(host, jam(begin(host)))
    held = passing(host, monkeypatch)
    assert Look(host).kinds == [health.DAEMON_ENDED]
    held.close()


def test_a_client_that_nvml_lists_leaves_it_to_the_policy(host: Host) -> None:
    daemon = begin(host)
    host.nvml.clients_mib[join(host, daemon)] = 600
    noted_by_the_door(host, jam(daemon))
    assert [Look(host).kinds for _ in range(3)] == [[], [], []]
    assert host.systemd.acts == []


def test_without_a_door_nobody_counts_who_is_coming_and_the_policy_decides(host: Host) -> None:
    jam(begin(host, FrontDoor="no"))
    assert [Look(host).kinds for _ in range(3)] == [[], [], []]
    assert host.systemd.acts == []


def test_without_a_door_it_is_healed_at_the_second_look_where_that_is_desired(host: Host) -> None:
    jam(begin(host, FrontDoor="no", UnresponsiveDaemon="restart"))
    assert [Look(host).kinds for _ in range(2)] == [[health.DAEMON_WILL_BE_ENDED], [health.DAEMON_ENDED]]
    assert host.systemd.acts == [KILL]
