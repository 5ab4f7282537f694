"""Runs and drains that are killed at any step: what was open is open again, or the state says what opens it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import pytest

from converging import Fleet, at_work, conf, this_run
from door import Door
from fakes import Host
from judging import judge
from mpsctl.adapters import files, locks
from mpsctl.checks.judgement import STATUS
from mpsctl.converge import removal
from mpsctl.front_door.judge import LetIn
from mpsctl.lifecycle import drain, health, host_lock
from mpsctl.model.finding import CRITICAL, OK, RELOAD, UNDRAIN
from mpsctl.store import admission, drains, last_good
from mpsctl.store.admission import WAITING, Admission
from shell import Shell

FAR = 200


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches a SIGKILL."""


class Kill:
    """Kills this program before its step ``steps`` + 1: a file written or removed, a unit acted on, a look at the
    clock's pause, a mode set. Nothing that a killed process would not do is done from then on."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        self._left, self._in_systemd, self.dead = steps, False, False
        self._host = host
        act = host.systemd.act
        for place, name in (
            (files, "write"),
            (files, "remove"),
            (host.clock, "sleep"),
            (host.nvml, "set_compute_mode"),
        ):
            monkeypatch.setattr(place, name, self._step(getattr(place, name)))
        monkeypatch.setattr(host.systemd, "act", self._step(act, systemd=True))

    def _step(self, really: Callable[..., Any], systemd: bool = False) -> Callable[..., Any]:
        def step(*arguments: Any, **more: Any) -> Any:
            if self._in_systemd:  # what systemd does is not killed with it
                return really(*arguments, **more)
            if self.dead or self._left == 0:
                self.dead = True
                raise Killed
            self._left -= 1
            self._in_systemd = systemd
            try:
                return really(*arguments, **more)
            finally:
                self._in_systemd = False

        return step


def restarted(fleet: Fleet, **more: Any) -> Any:
    """What only a restart of instance a brings about."""
    return fleet.converge(a=conf(fleet, "a", GPUs="1", **more))


def gone(fleet: Fleet) -> Any:
    return fleet.converge(b=conf(fleet, "b", GPUs="2"))


def all_gone(fleet: Fleet) -> Any:
    return removal.remove(fleet.host.world, False, "wait", 60)


def without_its_door(fleet: Fleet) -> Any:
    return restarted(fleet, FrontDoor="no")


def dead(host: Host) -> None:
    """No process of the killed run is there any more."""
    host.processes.pop(os.getpid(), None)


RUNS = [restarted, gone, all_gone, without_its_door]


def serves(host: Host, name: str) -> bool:
    """Whether the daemon of an instance runs, by its unit."""
    return host.systemd.unit(f"mps-control@{name}.service").main_pid in host.processes


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("run", RUNS)
def test_a_killed_run_leaves_the_door_of_a_daemon_that_runs_open(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, run: Callable[[Fleet], Any], leaves: bool
) -> None:
    """Also before it is run again: nobody has to come."""
    host = fleet.host
    for steps in range(FAR):
        daemon, pids = at_work(fleet, "wait")
        if leaves:
            host.clock.when(3, lambda: host.end(pids[0]))  # noqa: B023 (it is over before the next round)
        was = daemon.pid
        with monkeypatch.context() as patch:
            kill = Kill(host, patch, steps)
            with suppress(Killed):
                run(fleet)
        dead(host)
        if serves(host, "a") and host.running("a").pid == was:
            assert host.door_is_open("a"), f"killed before step {steps + 1}"
        for pid in pids:
            if pid in host.processes:
                host.end(pid)
        fleet.more = {}
        assert fleet.converge(a=conf(fleet, "a", GPUs="0")).error is None
        assert host.door_is_open("a")
        if not kill.dead:
            return
    raise AssertionError("no run came to its end")


@pytest.mark.parametrize("end_clients", [True, False])
def test_a_killed_drain_of_an_operator_is_closed_and_says_so_or_open(
    host: Host, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, end_clients: bool
) -> None:
    host.desired("0")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    for steps in range(FAR):
        client = host.client()
        host.running().servers.clear()
        host.running().start_server(9001, clients=[client])
        with monkeypatch.context() as patch:
            kill = Kill(host, patch, steps)
            with suppress(Killed):
                drain.drain(host.world, [last_good.load(host.world, "0")], 2, end_clients)
        told = judge(host, verb=STATUS).check("0", "drain")
        marked = drains.read(host.world, "0") is not None
        assert (told.mends == UNDRAIN) == marked
        assert marked or host.door_is_open()
        assert mpsctl("undrain", "0") == 0
        assert host.door_is_open()
        if client in host.processes:
            host.end(client)
        if not kill.dead:
            return
    raise AssertionError("no drain came to its end")


def test_a_killed_undrain_says_what_opens_or_is_open(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.desired("0")
    host.start()
    for steps in range(FAR):
        drain.drain(host.world, [last_good.load(host.world, "0")], 2)
        with monkeypatch.context() as patch:
            kill = Kill(host, patch, steps)
            with suppress(Killed):
                drain.undrain(host.world, "0")
        if not host.door_is_open() and drains.read(host.world, "0") is None:
            told = judge(host, verb=STATUS).check("0", "front-door")
            assert (told.level, told.mends) == (CRITICAL, RELOAD)
            assert "systemctl reload" in told.remedy
            assert host.systemd.act("reload", ["mps-control@0.service"]) is None
            assert host.door_is_open()
        if not kill.dead:
            return
    raise AssertionError("no undrain came to its end")


def killed_while_it_drains(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, **was: object) -> int:
    """A run that was to restart instance a for another GPU is killed while it waits for the client; the client, which
    goes on."""
    fleet.converge(a=conf(fleet, "a", GPUs="0", **was))
    fleet.more = {"on_clients": "wait", "drain_timeout_s": 60}
    client = fleet.host.client()
    fleet.host.running("a").start_server(9001, clients=[client])
    this_run(fleet.host)
    with monkeypatch.context() as patch, suppress(Killed):

        def killed(_: float) -> None:
            raise Killed

        patch.setattr(drain, "give_up", lambda *_: None)
        patch.setattr(fleet.host.clock, "sleep", killed)
        fleet.converge(a=conf(fleet, "a", GPUs="1", **was))
    dead(fleet.host)
    return client


def let_in_again(fleet: Fleet, mpsctl: Shell, how: str, **desired: object) -> None:
    if how == "undrain":
        assert mpsctl("undrain", "a") == 0
    elif how == "reload":
        assert fleet.host.systemd.act("reload", ["mps-control@a.service"]) is None
    elif how == "health":
        health.health(fleet.host.world)
    elif how == "run":
        fleet.more = {"on_clients": "refuse"}
        fleet.converge(a=conf(fleet, "a", GPUs="1", **desired))


@pytest.mark.parametrize("how", ["undrain", "run", "reload", "nothing"])
@pytest.mark.parametrize("moved", [True, False])
def test_a_run_that_is_killed_while_it_drains_keeps_nobody_out(
    fleet: Fleet, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, how: str, moved: bool
) -> None:
    """Also where another pipe root is desired by then."""
    client = killed_while_it_drains(fleet, monkeypatch)
    desired = {"PipeDirectory": f"{fleet.host.places.root}/moved/a"} if moved else {}
    fleet.host.places.conf("a").write_text(conf(fleet, "a", GPUs="1", **desired))
    let_in_again(fleet, mpsctl, how, **desired)
    assert client in fleet.host.processes
    assert fleet.host.door_is_open("a")
    assert judge(fleet.host, verb=STATUS).check("a", "drain").level == OK


@pytest.mark.parametrize("how", ["undrain", "run", "reload", "health"])
@pytest.mark.parametrize("moved", [True, False])
def test_without_a_front_door_the_state_says_so_and_health_opens(
    fleet: Fleet, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, how: str, moved: bool
) -> None:
    """Nobody stands there who could notice the end of the run: the mode of the directory stays until then."""
    public = fleet.host.pipe_root / "a"
    client = killed_while_it_drains(fleet, monkeypatch, FrontDoor="no")
    desired = {"PipeDirectory": f"{fleet.host.places.root}/moved/a"} if moved else {}
    fleet.host.places.conf("a").write_text(conf(fleet, "a", GPUs="1", FrontDoor="no", **desired))
    told = judge(fleet.host, verb=STATUS).check("a", "front-door")
    assert (told.level, told.mends) == (CRITICAL, RELOAD)
    assert public.stat().st_mode & 0o777 == 0o710
    let_in_again(fleet, mpsctl, how, FrontDoor="no", **desired)
    assert client in fleet.host.processes
    assert fleet.host.door_is_open("a")
    assert public.stat().st_mode & 0o777 == 0o711


def left_closed_without_a_door(host: Host) -> Path:
    host.desired("0", FrontDoor="no")
    host.start()
    drain_of_a_run(host)
    return host.pipe_root / "0"


def test_health_says_that_it_opened_and_does_it_once(host: Host) -> None:
    public = left_closed_without_a_door(host)
    assert public.stat().st_mode & 0o777 == 0o710
    kinds = [[one.kind for one in health.health(host.world).actions.get("0", ())] for _ in range(2)]
    assert kinds == [[health.OPENED], []]
    assert public.stat().st_mode & 0o777 == 0o711
    assert not host.places.host_lock.exists()


def test_health_opens_nothing_while_the_run_is_at_work(host: Host) -> None:
    public = left_closed_without_a_door(host)
    descriptor = locks.take(host.places.host_lock, 0)
    health.health(host.world)
    assert public.stat().st_mode & 0o777 == 0o710
    os.close(descriptor)


@pytest.mark.parametrize("by", ["health", "run"])
def test_a_directory_is_opened_for_the_daemon_alone_that_served_there(host: Host, by: str) -> None:
    """The next one has no limits yet."""
    public = left_closed_without_a_door(host)
    host.kill(host.running().pid)
    if by == "health":
        health.health(host.world)
    else:
        with host_lock.taken(host.world):
            pass
    assert public.stat().st_mode & 0o777 == 0o710


def test_an_operators_drain_stays_without_a_door_too(host: Host) -> None:
    public = left_closed_without_a_door(host)
    drain.drain(host.world, [last_good.load(host.world, "0")], 1)
    health.health(host.world)
    assert public.stat().st_mode & 0o777 == 0o710


# -- what the door itself sees


def test_the_door_lets_in_again_as_soon_as_the_run_is_gone(door: Door) -> None:
    """By the lock of the host, which a systemctl that the run started holds as well."""
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(door.host.places.host_lock)], **PIPES) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"taken\n"
        door.say(Admission(WAITING, daemon=door.served, multi_user=True, for_run=True))
        late = door.visitor()
        assert not isinstance(door.settled(late), LetIn)
        run.kill()
        run.wait()
    assert door.settled(late) == LetIn(door.served)


HOLDER = (
    "import fcntl, os, sys, time\n"
    "os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)\n"
    "lock = open(sys.argv[1], 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\nprint('taken', flush=True)\ntime.sleep(600)\n"
)
PIPES: Any = {"stdout": subprocess.PIPE}


def drain_of_a_run(host: Host) -> None:
    from mpsctl.lifecycle import admit

    admit.close_for_end(host.world, "0", refuse=False, for_run=True)


def test_an_operators_drain_that_comes_meanwhile_stays(host: Host) -> None:
    host.desired("0")
    host.start()
    descriptor = locks.take(host.places.host_lock, 0)
    drain_of_a_run(host)
    assert not host.door_is_open()
    instances = [last_good.load(host.world, "0")]
    drain.drain(host.world, instances, 1)
    os.close(descriptor)
    assert not host.door_is_open()
    drain.undrain(host.world, "0")
    assert host.door_is_open()


def test_a_real_stop_that_comes_meanwhile_stays(host: Host) -> None:
    host.desired("0")
    host.start()
    descriptor = locks.take(host.places.host_lock, 0)
    drain_of_a_run(host)
    host.stop()
    os.close(descriptor)
    found = admission.read(host.places, "0")
    assert found is not None
    assert found.state == admission.CLOSED


@pytest.mark.parametrize("what", ["a folder", "a FIFO"])
def test_a_lock_that_nobody_can_have_holds_nothing(root: Path, what: str) -> None:
    path = root / "lock"
    assert not locks.is_taken(path)
    path.mkdir() if what == "a folder" else os.mkfifo(path)
    assert not locks.is_taken(path)


def test_the_next_run_closes_nothing_that_a_killed_one_had_closed(host: Host) -> None:
    host.desired("0")
    host.start()
    descriptor = locks.take(host.places.host_lock, 0)
    drain_of_a_run(host)
    os.close(descriptor)
    assert host.door_is_open()
    with host_lock.taken(host.world):
        assert host.door_is_open()
    assert host.door_is_open()
