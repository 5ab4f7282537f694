"""The end of a unit, a container or a process that spares its neighbours."""

from __future__ import annotations

import os
import signal
from typing import Callable

import pytest

from fakes import FakeDaemon, Host
from mpsctl.adapters import journal, procfs
from mpsctl.lifecycle import evict
from mpsctl.lifecycle.evict import Evicted
from mpsctl.lifecycle.whose_processes import OfContainer, OfProcess, OfUnit, Target
from shell import Shell

API, WEB = "/system.slice/api.service", "/system.slice/web.service"
UNIT = OfUnit("api.service")
SERVERS = {"0": 9001, "1": 9002}
TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.fixture
def served(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Two instances, each with a server."""
    for name, server in SERVERS.items():
        host.desired(name, GPUs=name)
        host.start(name).start_server(server)
    table = host.processes

    def tree(root: int) -> list[int]:
        found = [root]
        for pid in found:
            found += [one for one, about in table.items() if about.parent == pid]
        return found

    monkeypatch.setattr(procfs, "tree", tree)
    return host


def join(host: Host, group: str = API, name: str = "0", connects: bool = True) -> int:
    """A process in a control group, and a client of an instance."""
    pid = host.client()
    host.processes[pid].group = group
    if connects:
        host.running(name).connect(SERVERS[name], pid)
    return pid


def run(host: Host, target: Target = UNIT, bound_s: float = 10, end: bool = False) -> Evicted:
    return evict.evict(host.world, target, bound_s, end)


def pids(found: Evicted) -> list[tuple[str, int]]:
    return [(name, one.pid) for name, one in found.taken_off]


def test_every_client_of_a_unit_is_taken_off_by_its_daemon_and_gets_no_signal(served: Host) -> None:
    mine = [join(served), join(served, f"{API}/worker"), join(served, API, "1")]
    others = [join(served, WEB), join(served, WEB, "1"), join(served, "/system.slice/api.service.d/x.service")]
    found = run(served)
    assert pids(found) == [("0", mine[0]), ("0", mine[1]), ("1", mine[2])]
    assert served.signals == []
    left = [pid for name, server in SERVERS.items() for pid in served.running(name).servers[server].clients]
    assert sorted(left) == sorted(others)
    assert (found.left, found.unknown) == ([], {})


def test_nobody_of_it_is_connected(served: Host) -> None:
    join(served, WEB)
    join(served, connects=False)
    assert run(served).as_json() == Evicted(OfUnit("api.service")).as_json()


def test_a_worker_that_a_supervisor_starts_anew_is_taken_off_as_well(served: Host) -> None:
    first = join(served)
    again: list[int] = []
    daemon = served.running()

    def respawn(command: str) -> None:
        if command.startswith("terminate_client") and len(again) < 3:
            served.clock.when(0.01, lambda: again.append(join(served)))

    daemon.before_command = respawn
    found = run(served)
    assert pids(found) == [("0", pid) for pid in [first, *again]]
    assert len(again) == 3
    assert found.left == []


def test_workers_without_end_are_given_up_at_the_bound(served: Host) -> None:
    def come() -> None:
        join(served)

    come()
    daemon = served.running()

    def respawn(command: str) -> None:
        if command.startswith("terminate_client"):
            served.clock.when(0.01, come)

    daemon.before_command = respawn
    began_s = served.clock.now_s
    assert not run(served, bound_s=5).settled
    assert served.clock.now_s - began_s < 6


def test_a_client_that_the_daemon_does_not_take_off_is_left_and_told_once(
    served: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(journal, "send", lambda places, fields: lines.append(fields["MESSAGE"]))
    pid = join(served)
    served.running().answer_to_terminate = "1"
    found = run(served, bound_s=5, end=True)
    assert [(name, one.pid) for name, one in found.left] == [("0", pid)]
    assert served.signals == []
    assert len(lines) == 1
    assert "evict api.service" in lines[0]


def test_daemons_that_are_down_or_silent_hold_nobody_up(served: Host) -> None:
    pid = join(served, API, "1")
    served.stop("0")
    assert pids(run(served)) == [("1", pid)]
    served.start("0").not_served = True
    join(served, API, "1")
    found = run(served)
    assert len(found.taken_off) == 1
    assert set(found.unknown) == {"0"}
    served.stop("0")
    served.stop("1")
    assert run(served).unknown == {}


def test_a_users_unit_is_told_by_his_own_manager(served: Host) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service//app.slice/api.service"
    another = "/user.slice/user-1001.slice/user@1001.service//app.slice/user@1000.service/api.service"
    mine, theirs, system = join(served, own), join(served, another), join(served)
    assert pids(run(served, OfUnit("api.service", 1000))) == [("0", mine)]
    assert pids(run(served)) == [("0", system)], "what a user named is no unit of the system"
    assert served.running().servers[9001].clients == [theirs]


def test_a_container(served: Host) -> None:
    mine, other = join(served, ""), join(served, "")
    served.processes[mine].container, served.processes[other].container = "0123456789ab" * 5, "ba9876543210"
    assert pids(run(served, OfContainer("0123456789ab"))) == [("0", mine)]


def test_a_process_and_what_it_started(served: Host) -> None:
    root = join(served, connects=False)
    worker, other = join(served), join(served)
    served.processes[worker].parent = root
    target = OfProcess(root)
    late = join(served)
    served.processes[late].parent = worker
    assert pids(run(served, target)) == [("0", worker), ("0", late)]
    served.end(root)
    served.processes[worker].parent = 1
    served.running().connect(9001, worker)
    assert pids(run(served, target)) == [("0", worker)]
    assert served.running().servers[9001].clients == [other]


# -- --end


def connected(host: Host) -> Callable[[int], bool]:
    return lambda pid: any(pid in host.running(name).servers[server].clients for name, server in SERVERS.items())


def test_with_end_all_its_processes_get_signals_once_no_client_is_left(
    served: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, client, stubborn = join(served, connects=False), join(served), join(served)
    served.processes[stubborn].ignores = frozenset({TERM})
    other = join(served, WEB)
    is_client, signalled = connected(served), served.signal

    def send(pid: int, started_at: int, number: signal.Signals) -> bool:
        assert not is_client(pid), "a client got a signal"
        return signalled(pid, started_at, number)

    monkeypatch.setattr(procfs, "send", send)
    found = run(served, end=True)
    assert served.signals == [(plain, TERM), (client, TERM), (stubborn, TERM), (stubborn, KILL)]
    assert sorted(found.ended) == [plain, client, stubborn]
    assert found.alive == []
    assert other in served.processes


def test_a_worker_that_comes_after_sigterm_is_taken_off_before_sigkill(
    served: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = join(served, connects=False)
    served.processes[master].ignores = frozenset({TERM})
    is_client, signalled, late = connected(served), served.signal, []

    def send(pid: int, started_at: int, number: signal.Signals) -> bool:
        assert not is_client(pid), "a client got a signal"
        if (pid, number) == (master, TERM):
            served.clock.when(1, lambda: late.append(join(served)))
        return signalled(pid, started_at, number)

    monkeypatch.setattr(procfs, "send", send)
    found = run(served, end=True)
    assert pids(found) == [("0", late[0])]
    assert served.signals == [(master, TERM), (late[0], TERM), (master, KILL)]


def test_this_program_and_what_started_it_are_spared(served: Host) -> None:
    """An ExecStop runs in its unit's own control group, perhaps below a shell."""
    shell = join(served, connects=False)
    me = served.process("mpsctl", "mpsctl evict", {}, pid=os.getpid())
    served.processes[me].group, served.processes[me].parent = API, shell
    front_end = join(served, connects=False)
    served.processes[front_end].parent = me
    mine = join(served)
    assert run(served, end=True).ended == [mine]
    assert {shell, me, front_end} <= set(served.processes)


def test_one_that_a_killed_process_started_a_moment_before_is_killed_as_well(
    served: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = join(served, connects=False)
    served.processes[master].ignores = frozenset({TERM})
    signalled, late = served.signal, []

    def send(pid: int, started_at: int, number: signal.Signals) -> bool:
        if (pid, number) == (master, KILL):
            late.append(join(served))
        return signalled(pid, started_at, number)

    monkeypatch.setattr(procfs, "send", send)
    found = run(served, end=True)
    assert pids(found) == [("0", late[0])]
    assert sorted(found.ended) == [master, late[0]]
    assert found.alive == []


# -- the verb


def test_the_verb(mpsctl: Shell, served: Host) -> None:
    pid = join(served)
    assert mpsctl("evict", "--unit", "api.service") == 0
    assert f"client {pid}" in mpsctl.out
    found = mpsctl.json("evict", "--unit", "api.service")
    assert (found["taken_off"], found["exit_code"]) == ([], 0)
    served.running().answer_to_terminate = "1"
    join(served)
    assert mpsctl("evict", "--unit", "api.service", "--timeout", "1") == 4
    served.running().not_served = True
    assert mpsctl("evict", "--unit", "api.service", "--timeout", "1") == 3


def test_a_unit_without_processes_is_told_from_one_without_clients(mpsctl: Shell, served: Host) -> None:
    """Its stop comes to this, and so does a name that is misspelled."""
    join(served, WEB)
    assert mpsctl("evict", "--unit", "api.service") == 0
    assert mpsctl.out == "api.service: no process of it runs, so no client is connected\n"
    join(served, connects=False)
    assert mpsctl("evict", "--unit", "api.service") == 0
    assert mpsctl.out == "api.service: no client is connected\n"
    served.running().not_served = True
    assert mpsctl("evict", "--unit", "api.service", "--timeout", "1") == 3
    assert mpsctl.out == "", "nobody can tell"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--unit", "api"],
        ["--unit", "worker@.service"],
        ["--unit", "../api.service"],
        ["--pid", "1"],
        ["--pid", "x"],
        ["--container", "short"],
        ["--pid", "7", "--user", "root"],
        ["--unit", "api.service", "--user", "nobody-of-this-name"],
        ["--unit", "api.service", "--pid", "7"],
        ["--unit", "api.service", "--timeout", "0"],
    ],
)
def test_what_names_nothing_is_refused(mpsctl: Shell, served: Host, words: list[str]) -> None:
    assert mpsctl("evict", *words) == 2


def test_the_daemons_do_it_for_root_alone(mpsctl: Shell, served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon: FakeDaemon = served.running()
    join(served)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mpsctl("evict", "--unit", "api.service") == 3
    assert daemon.terminated == []
