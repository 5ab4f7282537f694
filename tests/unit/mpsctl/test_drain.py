"""drain and undrain: no new client, a bounded wait for the others, and a mark that nothing but undrain takes away."""

from __future__ import annotations

import json
import os
from typing import Callable, Optional

import pytest

from fakes import FakeDaemon, Host
from judging import amiss, judge
from mpsctl.adapters import procfs
from mpsctl.checks.judgement import STATUS
from mpsctl.checks.report import Report
from mpsctl.lifecycle import apply, drain, health, terminate
from mpsctl.lifecycle.drain import Drained
from mpsctl.model.checked_values import DRAIN_TIMEOUT_S
from mpsctl.model.finding import RELOAD, UNDRAIN, WARNING, Check
from mpsctl.model.places import Places
from mpsctl.store import admission, configuration, drains
from mpsctl.store.admission import OPEN, Admission
from shell import Shell

SERVER = 9001
UNIT = "mps-control@0.service"
TIMEOUT_S = 30


@pytest.fixture
def daemon(host: Host) -> FakeDaemon:
    host.desired(DeviceMemoryLimit="4G", ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    made = host.start()
    made.start_server(SERVER)
    return made


def join(host: Host, daemon: FakeDaemon) -> int:
    pid = host.client()
    daemon.connect(SERVER, pid)
    return pid


def drained(host: Host, end_clients: bool = False, of_this_run: bool = False) -> Drained:
    instance = configuration.load(host.world, "0")
    (found,) = drain.drain(host.world, [instance], TIMEOUT_S, end_clients, of_this_run)
    return found


def look(host: Host) -> Report:
    return judge(host, "0", verb=STATUS)


def told(host: Host) -> Check:
    return look(host).check("0", "drain")


def test_an_instance_without_clients_is_drained_at_once_and_its_daemon_stays(host: Host, daemon: FakeDaemon) -> None:
    found = drained(host)
    assert found.empty
    assert not host.door_is_open()
    assert host.running() is daemon
    assert daemon.servers
    assert "quit" not in " ".join(daemon.commands)


def test_nobody_is_taken_for_gone_at_one_look(host: Host, daemon: FakeDaemon) -> None:
    """One that was just accepted is in no list yet."""
    host.clock.when(0.05, lambda: daemon.connect(SERVER, host.client()))
    assert [client.command for _, client in drained(host).left] == ["python3 serve.py"]


def test_the_door_is_closed_before_anybody_is_looked_for(host: Host, daemon: FakeDaemon) -> None:
    door: list[bool] = []
    daemon.before_command = lambda command: door.append(host.door_is_open())
    drained(host)
    assert door
    assert not any(door)


def test_clients_that_leave_are_waited_for_with_progress(host: Host, daemon: FakeDaemon) -> None:
    pids = [join(host, daemon) for _ in range(2)]
    for number, pid in enumerate(pids):
        host.clock.when(5 * (number + 1), lambda pid=pid: host.end(pid))  # type: ignore[misc]
    found = drained(host)
    assert found.empty
    assert [line.split(":")[0] for line in found.progress] == ["2 clients left", "1 client left", "no client is left"]
    assert f"client {pids[0]} " in found.progress[0]
    assert (daemon.terminated, host.signals) == ([], [])


def test_clients_that_stay_are_named_and_left_alone_within_the_bound(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    begun_s = host.clock.now_s
    found = drained(host)
    assert host.clock.now_s - begun_s <= TIMEOUT_S + 1
    assert [(server, client.pid) for server, client in found.left] == [(SERVER, pid)]
    assert not found.empty
    assert (daemon.terminated, host.signals) == ([], [])
    assert not host.door_is_open()


def test_with_terminate_those_that_are_left_are_ended_after_the_wait(host: Host, daemon: FakeDaemon) -> None:
    leaves, stays = join(host, daemon), join(host, daemon)
    host.clock.when(5, lambda: host.end(leaves))
    found = drained(host, end_clients=True)
    assert found.empty
    assert daemon.terminated == [stays]
    assert [(one.pid, one.gone) for one in found.ended] == [(stays, True)]
    assert "ended by the daemon" in found.progress[-1]


@pytest.mark.parametrize("taken_off", [True, False])
def test_one_that_cannot_be_ended_is_reported_and_not_waited_for(
    host: Host, daemon: FakeDaemon, taken_off: bool
) -> None:
    """Once the daemon took it off the GPU it is in nobody's way, even if its process stays in the kernel."""
    pid = join(host, daemon)
    host.processes[pid].state = "D"
    daemon.answer_to_terminate = None if taken_off else "1"
    begun_s = host.clock.now_s
    found = drained(host, end_clients=True)
    assert host.clock.now_s - begun_s <= TIMEOUT_S + terminate.BOUND_S + 2
    assert found.empty == taken_off
    assert found.ended[0].problem
    assert pid in host.processes


def test_a_daemon_that_does_not_answer_is_no_drained_one(host: Host, daemon: FakeDaemon) -> None:
    join(host, daemon)
    daemon.not_served = True
    found = drained(host, end_clients=True)
    assert not found.empty
    assert "did not answer" in str(found.unknown)
    assert not host.door_is_open()
    assert host.signals == []


def test_a_daemon_that_is_busy_for_a_while_is_asked_again(host: Host, daemon: FakeDaemon) -> None:
    daemon.not_served = True
    host.clock.when(10, lambda: setattr(daemon, "not_served", False))
    assert drained(host).empty


def test_a_daemon_that_ends_meanwhile_has_no_clients(host: Host, daemon: FakeDaemon) -> None:
    join(host, daemon)
    host.clock.when(3, lambda: host.kill(daemon.pid))
    assert drained(host).empty


def test_an_instance_that_does_not_run_is_drained(host: Host) -> None:
    host.desired()
    assert drained(host).empty
    host.start()
    assert not host.door_is_open()


def test_several_instances_have_one_bound(host: Host) -> None:
    for name in ("0", "1"):
        host.desired(name)
        host.start(name).start_server(SERVER, clients=[host.client()])
    begun_s = host.clock.now_s
    instances = [configuration.load(host.world, name) for name in ("0", "1")]
    found = drain.drain(host.world, instances, TIMEOUT_S)
    assert [len(one.left) for one in found] == [1, 1]
    assert host.clock.now_s - begun_s <= TIMEOUT_S + 2


@pytest.mark.usefixtures("daemon", "this_run")
def test_a_run_that_gives_up_leaves_everything_as_it_was(host: Host) -> None:
    before = host.snapshot()
    drain.give_up(host.world, drained(host, of_this_run=True))
    assert host.door_is_open()
    assert host.snapshot().keys() == before.keys()


@pytest.mark.usefixtures("daemon", "this_run")
def test_a_run_that_gives_up_ends_no_drain_of_an_operator(host: Host) -> None:
    drained(host)
    drain.give_up(host.world, drained(host, of_this_run=True))
    assert not host.door_is_open()


# -- the mark


def crash(host: Host) -> None:
    host.kill(host.running().pid)
    host.start()


def reload(host: Host) -> None:
    host.systemd.act("reload", [UNIT])


def stop_and_start(host: Host) -> None:
    host.stop()
    host.start()


def restart(host: Host) -> None:
    host.restart()


def look_after(host: Host) -> None:
    health.health(host.world)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("what", [crash, reload, stop_and_start, restart, look_after])
def test_nothing_but_undrain_lets_clients_in_again(host: Host, what: Callable[[Host], None]) -> None:
    drained(host)
    what(host)
    assert not host.door_is_open()
    assert drains.read(host.world, "0") is not None
    drain.undrain(host.world, "0")
    assert host.door_is_open()
    what(host)
    assert host.door_is_open()


def test_a_drain_that_begins_while_the_door_is_opened_wins(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = admission.write

    def interrupted(places: Places, instance: str, told: Admission, bound_s: float) -> bool:
        drains.mark(host.world, "0")
        return write(places, instance, told, bound_s)

    monkeypatch.setattr(admission, "write", interrupted)
    apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()


def test_undrain_puts_limits_in_force_before_it_lets_anybody_in(host: Host, daemon: FakeDaemon) -> None:
    drained(host)
    daemon.limits["0"] = 0
    changes = drain.undrain(host.world, "0")
    assert daemon.limits["0"] == 4 << 30
    assert any("memory limit" in change for change in changes)


def test_undrain_of_one_that_does_not_run_lets_clients_in_at_its_start(host: Host) -> None:
    host.desired()
    drained(host)
    assert drain.undrain(host.world, "0") == []
    host.start()
    assert host.door_is_open()


@pytest.mark.usefixtures("daemon")
def test_undrain_of_one_that_is_not_drained_changes_nothing(host: Host) -> None:
    assert drain.undrain(host.world, "0") == []
    assert host.door_is_open()


@pytest.mark.usefixtures("daemon")
def test_status_says_since_when_and_names_no_other_fault(host: Host) -> None:
    since = drained(host).since
    assert amiss(look(host)) == {"drain": WARNING}
    assert told(host).mends == UNDRAIN
    assert f"drained since {since}" in told(host).found


def test_a_drained_instance_still_gets_new_limits(host: Host, daemon: FakeDaemon) -> None:
    drained(host)
    host.desired(DeviceMemoryLimit="6G", ComputeMode="exclusive_process")
    assert RELOAD in look(host).mends("0")
    reload(host)
    assert daemon.limits["0"] == 6 << 30
    assert not host.door_is_open()


@pytest.mark.usefixtures("daemon")
def test_a_drained_instance_whose_door_was_opened_by_hand_is_closed_again(host: Host) -> None:
    drained(host)
    host.tell_door(OPEN)
    assert RELOAD in look(host).mends("0")
    reload(host)
    assert not host.door_is_open()


@pytest.mark.usefixtures("daemon")
def test_a_drain_is_no_alarm_and_no_secret(host: Host) -> None:
    drained(host)
    found = health.health(host.world).report
    assert (found.word("0"), found.exit_code) == (WARNING, 0)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"until": 7}'])
def test_a_mark_that_cannot_be_read_keeps_the_door_closed(host: Host, text: str) -> None:
    drained(host)
    (host.places.runtime("0") / "drained.json").write_text(text)
    reload(host)
    assert not host.door_is_open()
    assert "drained since an unknown time" in told(host).found


# -- who drained, and why


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    ("environment", "by"), [({"SUDO_USER": "alice"}, "alice"), ({}, "user-0"), ({"SUDO_USER": ""}, "user-0")]
)
def test_the_mark_says_who_and_why(
    mpsctl: Shell, host: Host, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], by: str
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(procfs, "user", lambda uid: f"user-{uid}")
    assert mpsctl("drain", "0", "--reason", "the driver's upgrade") == 0
    mark = drains.read(host.world, "0")
    assert mark is not None
    assert (mark.by, mark.why) == (by, "the driver's upgrade")
    assert f"by {by} (the driver's upgrade)" in told(host).found


@pytest.mark.usefixtures("daemon")
def test_who_is_unknown_to_this_host_is_told_by_number(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(procfs, "user", lambda uid: None)
    assert drains.mark(host.world, "0").by == str(os.geteuid())


@pytest.mark.usefixtures("daemon")
def test_the_first_who_drains_stays_the_one_that_is_named(mpsctl: Shell, host: Host) -> None:
    mpsctl("drain", "0", "--reason", "first")
    mpsctl("drain", "0", "--reason", "second")
    mark = drains.read(host.world, "0")
    assert mark is not None
    assert mark.why == "first"


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[2J", "x" * 201])
def test_a_reason_that_is_no_line_is_refused_and_nothing_is_closed(mpsctl: Shell, host: Host, reason: str) -> None:
    assert mpsctl("drain", "0", "--reason", reason) == 2
    assert "found --reason " in mpsctl.err
    assert host.door_is_open()


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("of_a_run", [True, False])
def test_a_mark_of_an_earlier_release_is_read(host: Host, of_a_run: bool) -> None:
    """0.1.0 and 0.2.0 wrote neither who nor why."""
    host.process("mpsctl", "mpsctl reconcile", {}, pid=os.getpid())
    run = {"run_pid": os.getpid(), "run_started_at": host.processes[os.getpid()].started_at}
    fields = {"since": "2026-11-28 09:00:00 CET", **(run if of_a_run else {"run_pid": None, "run_started_at": None})}
    (host.places.runtime("0") / "drained.json").write_text(json.dumps(fields))
    mark = drains.read(host.world, "0")
    assert mark is not None
    assert (mark.since, mark.by, mark.why) == ("2026-11-28 09:00:00 CET", "", "")
    assert "drained since 2026-11-28 09:00:00 CET: no new client" in told(host).found


# -- the mark of a run


@pytest.fixture
def this_run(host: Host) -> None:
    host.process("mpsctl", "mpsctl reconcile", {}, pid=os.getpid())


@pytest.mark.usefixtures("daemon", "this_run")
def test_the_mark_of_a_run_holds_while_it_lives_and_is_void_after(host: Host) -> None:
    drained(host, of_this_run=True)
    reload(host)
    assert not host.door_is_open()
    assert told(host).facts["run_pid"] == os.getpid()
    host.kill(os.getpid())
    assert RELOAD in look(host).mends("0")
    reload(host)
    assert host.door_is_open()


@pytest.mark.usefixtures("daemon", "this_run")
@pytest.mark.parametrize("operator_first", [True, False])
def test_a_run_takes_no_mark_of_an_operator_away(host: Host, operator_first: bool) -> None:
    for of_this_run in (not operator_first, operator_first):
        drained(host, of_this_run=of_this_run)
    drains.forget_of_this_run(host.world, "0")
    assert drains.read(host.world, "0") is not None


@pytest.mark.usefixtures("daemon", "this_run")
def test_a_run_takes_its_own_mark_away(host: Host) -> None:
    drained(host, of_this_run=True)
    drains.forget_of_this_run(host.world, "0")
    assert drains.read(host.world, "0") is None


@pytest.mark.usefixtures("daemon", "this_run")
@pytest.mark.parametrize("what", [KeyboardInterrupt(), OSError(32, "Broken pipe")])
@pytest.mark.parametrize("of_this_run", [True, False])
def test_a_run_that_is_interrupted_closes_nothing_for_good_and_an_operator_does(
    host: Host, monkeypatch: pytest.MonkeyPatch, what: BaseException, of_this_run: bool
) -> None:
    def interrupted(_: float) -> None:
        raise what

    monkeypatch.setattr(host.clock, "sleep", interrupted)
    with pytest.raises(type(what)):
        drained(host, of_this_run=of_this_run)
    assert host.door_is_open() == of_this_run
    assert (drains.read(host.world, "0") is None) == of_this_run


# -- the verbs


def verb(host: Host, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from mpsctl.cli import main
    from mpsctl.store import world

    monkeypatch.setattr(world, "World", lambda **_: host.world)
    return main.main(words)


def test_the_verbs_for_people(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(procfs, "user", lambda uid: f"user-{uid}")
    pid = join(host, daemon)
    assert verb(host, monkeypatch, "drain", "0", "--timeout", "5") == 1
    assert "after 5 s 1 client left: client" in capsys.readouterr().err
    assert verb(host, monkeypatch, "drain", "0", "--timeout", "5", "--terminate") == 0
    assert daemon.terminated == [pid]
    assert "0: drained since " in capsys.readouterr().out
    assert verb(host, monkeypatch, "undrain", "0") == 0
    assert capsys.readouterr().out.endswith("0: no longer drained\n")


@pytest.mark.parametrize(("answers", "code"), [(True, 1), (False, 3)])
def test_who_is_left_is_told_as_json(
    host: Host,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: bool,
    code: int,
) -> None:
    pid = join(host, daemon)
    daemon.not_served = not answers
    assert verb(host, monkeypatch, "drain", "0", "--timeout", "5", "--json") == code
    found = json.loads(capsys.readouterr().out)["instances"]["0"]
    assert found["drained"] is False
    assert [(one["pid"], one["server"], one["command"]) for one in found["left"]] == (
        [(pid, SERVER, "python3 serve.py")] if answers else []
    )
    assert bool(found["unknown"]) != answers


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("timeout", ["0", "-1", "1.5", "1m", "3601"])
def test_a_bad_bound_is_refused_and_nothing_is_closed(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], timeout: Optional[str]
) -> None:
    assert verb(host, monkeypatch, "drain", "0", f"--timeout={timeout}") == 2
    assert "found --timeout" in capsys.readouterr().err
    assert host.door_is_open()


def test_the_verb_waits_as_long_as_a_run_where_nothing_else_is_said(
    host: Host, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    join(host, daemon)
    assert verb(host, monkeypatch, "drain", "0") == 1
    assert f"after {DRAIN_TIMEOUT_S} s 1 client left" in capsys.readouterr().err


@pytest.mark.usefixtures("daemon")
def test_without_a_name_all_instances_are_drained_and_opened_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host.desired("1")
    host.start("1")
    assert verb(host, monkeypatch, "drain", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["instances"]) == ["0", "1"]
    assert [host.door_is_open(name) for name in ("0", "1")] == [False, False]
    assert verb(host, monkeypatch, "undrain", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_drained"] == ["1"]
    assert verb(host, monkeypatch, "undrain", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_drained"] == ["0"]
    assert [host.door_is_open(name) for name in ("0", "1")] == [True, True]


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("word", ["drain", "undrain"])
def test_an_unknown_instance_is_refused_before_anything_is_done(
    host: Host, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    assert verb(host, monkeypatch, word, "0", "7") == 2
    assert host.door_is_open()
    assert drains.read(host.world, "0") is None


@pytest.mark.usefixtures("daemon")
def test_apply_says_that_an_instance_is_drained(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drained(host)
    assert verb(host, monkeypatch, "apply", "0") == 0
    assert "clients may connect" not in capsys.readouterr().out
