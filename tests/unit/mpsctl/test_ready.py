"""Whether a client of a user would come in now: by what every look judges, and by who he is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NoReturn, Optional

import pytest

from fakes import FakeDaemon, Host, uuid
from judging import SERVER, connect
from mpsctl.adapters import control_groups
from mpsctl.checks import ready
from mpsctl.lifecycle import drain
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.shares import Room, Whose, check_shares
from mpsctl.observe import reachability
from mpsctl.observe.door_facts import ANOTHER_USER
from mpsctl.observe.reachability import User
from mpsctl.store import admission, configuration
from shell import Shell

ALICE = 1000
"""The user of the client that is at work, and of its server in single-user mode."""


@pytest.fixture
def served(live: Host) -> Host:
    """As ``live``, with the server of the user of its client, and a way there for everyone."""
    live.processes[SERVER].uid = ALICE
    live.places.root.chmod(0o755)
    return live


def cause(host: Host, uid: int = ALICE, clients: int = 1, group: str = "") -> Optional[str]:
    found = ready.why_not(host.world, "0", uid, clients, group)
    return None if found is None else found.cause


def tell(host: Host, **changes: object) -> None:
    told = admission.stored(host.places, "0")
    assert told is not None
    admission.write(host.places, "0", replace(told, **changes))  # type: ignore[arg-type]


def test_the_next_client_of_a_running_instance_comes_in(served: Host) -> None:
    assert ready.of_user(served.world, "0", ALICE) == ready.Ready("0", ALICE, None)


def test_an_instance_without_a_server_takes_anybody(host: Host) -> None:
    host.places.root.chmod(0o755)
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    assert cause(host) is None
    assert cause(host, 1001) is None


def test_a_stopped_and_a_drained_instance(served: Host) -> None:
    drain.drain(served.world, [configuration.load(served.world, "0")], 1)
    assert cause(served) == "drain"
    drain.undrain(served.world, "0")
    assert cause(served) is None
    served.stop()
    assert cause(served) == "unit-active"


def test_a_limit_that_is_not_in_force(served: Host) -> None:
    served.running().limits["0"] = 5 << 30
    assert cause(served) == "memory-limit"


def test_a_daemon_that_does_not_answer_and_one_that_is_not_asked(served: Host) -> None:
    served.running().not_served = True
    assert cause(served) == "daemon-answers"


def test_a_server_in_fault(served: Host) -> None:
    served.running().servers[SERVER].state = "FAULT"
    assert cause(served) == "server-state"


def test_another_user_waits_unless_one_server_serves_all(served: Host) -> None:
    assert cause(served, 1001) == ANOTHER_USER
    assert "1000" in str(ready.why_not(served.world, "0", 1001))
    tell(served, multi_user=True)
    assert cause(served, 1001) is None


def test_a_server_whose_clients_have_left_is_replaced(served: Host) -> None:
    daemon = served.running()
    for pid in list(daemon.servers[SERVER].clients):
        daemon.leave(SERVER, pid)
    assert cause(served, 1001) is None


def test_only_the_group_comes_in(served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(served, gid=4711, multi_user=True)
    assert cause(served) == ready.GROUP
    assert cause(served, 0) is None
    monkeypatch.setattr(ready, "_user", lambda uid: User(uid, (4711,)))
    assert cause(served) is None


def test_the_groups_of_a_user_are_those_of_the_host() -> None:
    import grp
    import pwd

    entry = pwd.getpwuid(os.getuid())
    mine = {entry.pw_gid} | {one.gr_gid for one in grp.getgrall() if entry.pw_name in one.gr_mem}
    assert set(ready._user(os.getuid()).gids) >= mine
    assert ready._user(4_000_000_001) == User(4_000_000_001)


def test_a_closed_folder_on_the_way(served: Host) -> None:
    served.pipe_root.chmod(0o700)
    assert cause(served) == ready.WAY
    assert cause(served, 0) == ANOTHER_USER  # root gets there, and waits


def test_a_full_instance_and_a_full_share(served: Host) -> None:
    tell(served, room=Room(2, check_shares("unit:api.service=1"), refuse=True))
    assert cause(served) is None
    assert cause(served, clients=2) == ready.PLACE
    (client,) = served.running().servers[SERVER].clients
    served.processes[client].group = "/system.slice/api.service"
    assert cause(served, group="/system.slice/api.service") == ready.PLACE
    assert cause(served, group="/system.slice/web.service") is None
    connect(served, served.running())
    assert cause(served) == ready.PLACE


def test_an_instance_that_is_none(served: Host) -> None:
    with pytest.raises(BadValue):
        ready.why_not(served.world, "7", ALICE)


def test_what_root_is_not_told_keeps_it_from_being_ready(served: Host) -> None:
    served.nvml.hangs = False
    served.nvml.driver_up = False
    found = ready.of_user(served.world, "0", ALICE)
    assert found.why_not is not None
    assert found.why_not.cause == "gpus-answer"


def as_alice(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is called by an unprivileged user, to whom the daemon's directory is closed."""
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(reachability, "myself", lambda: User(ALICE, (ALICE,)))
    monkeypatch.setattr(control_groups, "whose", lambda pid, uid: Whose(uid))


def test_what_a_user_is_not_told_is_said_and_counts_against_nothing(
    served: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(served, room=Room(1, check_shares(""), refuse=True))
    as_alice(served, monkeypatch)
    found = ready.of_caller(served.world, "0")
    assert found.why_not is None
    assert len(found.untold) == 3, found.untold  # the daemon's answers, a place, another user's clients


@pytest.mark.parametrize("state", [admission.WAITING, admission.CLOSED])
def test_a_user_who_may_not_ask_systemd_goes_by_the_doors_word(
    served: Host, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:

    def refused(units: object) -> NoReturn:
        raise NotReady("systemctl show failed")

    monkeypatch.setattr(served.systemd, "show", refused)
    as_alice(served, monkeypatch)
    assert ready.of_caller(served.world, "0").why_not is None
    served.tell_door(state)
    found = ready.of_caller(served.world, "0").why_not
    assert found is not None
    assert found.cause == ready.CLOSED


# -- the verbs


def test_ready_ends_with_0_or_says_why_not(mpsctl: Shell, served: Host) -> None:
    tell(served, multi_user=True)
    assert mpsctl("ready", "0") == 0
    assert mpsctl.err == ""
    found = mpsctl.json("ready", "--gpu", uuid(0))
    assert (found["instance"], found["ready"], found["why"], found["exit_code"]) == ("0", True, None, 0)
    served.stop()
    assert mpsctl("ready", "0") == 3
    assert mpsctl.out == ""
    assert mpsctl.err.startswith("mpsctl ready: 0: not ready")
    assert mpsctl.json("ready", "0")["why"]["cause"] == "unit-active"


def test_a_yes_by_less_than_all_says_so(mpsctl: Shell, served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(served, multi_user=True)
    assert mpsctl("ready", "0") == 0
    assert "told" not in mpsctl.out
    as_alice(served, monkeypatch)
    assert mpsctl("ready", "0") == 0
    assert mpsctl.out.startswith("0: by what this user is told, a client of user ")
    assert "not told to user " in mpsctl.err


def test_ready_waits(mpsctl: Shell, served: Host) -> None:
    tell(served, multi_user=True)
    daemon: FakeDaemon = served.running()
    daemon.servers[SERVER].state = "FAULT"

    def well() -> None:
        daemon.servers[SERVER].state = "ACTIVE"

    served.clock.when(3, well)
    assert mpsctl("ready", "0", "--wait", "2") == 3
    assert mpsctl("ready", "0", "--wait", "5") == 0
    assert mpsctl("ready", "0", "--wait", "0") == 2


@pytest.mark.parametrize("verb", ["ready", "env"])
def test_an_instance_is_named_once(mpsctl: Shell, served: Host, verb: str) -> None:
    assert mpsctl(verb) == 2
    assert mpsctl(verb, "0", "--gpu", "0") == 2
    assert mpsctl(verb, "--gpu", "3") == 2
    assert "which no instance serves" in mpsctl.err
    served.desired("other", GPUs="0")
    assert mpsctl(verb, "--gpu", "0") == 2
    assert "0, other" in mpsctl.err


def test_env_says_when_nobody_is_let_in_and_shows_the_variables_all_the_same(mpsctl: Shell, served: Host) -> None:
    assert mpsctl("env", "0") == 0
    shown = mpsctl.out
    assert mpsctl.err == ""
    assert mpsctl("drain", "0", "--timeout", "1") == 1
    assert mpsctl("env", "--gpu", "0") == 0
    assert mpsctl.out == shown
    assert "lets no client in: drained since" in mpsctl.err
    assert mpsctl("undrain", "0") == 0
    served.stop()
    assert mpsctl("env", "0") == 0
    assert mpsctl.out == shown
    assert "lets no client in" in mpsctl.err


def test_env_of_an_instance_that_never_ran(mpsctl: Shell, host: Host) -> None:
    host.desired()
    assert mpsctl("env", "0") == 0
    assert "was not started since boot" in mpsctl.err
