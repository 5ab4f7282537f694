"""What mpsctl relies on, against NVIDIA's own control daemons 535, 550 and 555. No GPU is needed."""

from __future__ import annotations

import random
import re
import signal
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDaemon
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import log_fifo, pipe, procfs, without_door
from mpsctl.adapters.control_daemon import NotServed, Server, Unreachable
from mpsctl.lifecycle import apply, drain, stop, terminate
from mpsctl.model import quantity
from mpsctl.model.checked_values import DAEMON_DIRECTORY_MAX_BYTES
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.observe.facts import ClientFacts
from mpsctl.store import configuration
from mpsctl.store.desired_values import Desired, values
from real_daemon import RealDaemonHost, Running, Starter, held_session
from simulated import eventually

LIMIT = "default_device_pinned_mem_limit 0"

NO_LIMIT: tuple[list[str], ...] = ([], ["0G"], ["0M"])
"""What the getter says where none was set, or 0 bytes."""
MISREAD = ["20", "20GB", "1.5G", "-1G", "0", "101%", "8192MB", "8589934592"]
"""Refused by the issue's list; the daemon takes every one of them without a word."""
MISREAD += ["2g", "2GB", "512MB", "1024K", "4294967296", "abc", "0G"]


def limit_of(daemon: Running) -> list[str]:
    return daemon.front_end().ask([f"get_{LIMIT}"])[0]


# -- limits


@given(limits_mib=st.lists(st.integers(1, 1023), min_size=8, max_size=8))
@settings(max_examples=10)
def test_below_one_gib_every_limit_reads_back_to_the_mib(daemon: Running, limits_mib: list[int]) -> None:
    for mib in limits_mib:
        (step,) = values(Desired((mib,), None, None), None)
        _, shown = daemon.front_end().ask([step.setter, step.getter])
        assert step.in_force(shown), (mib, shown)
        assert shown == [f"{mib}M"]


@given(mib=st.integers(1024, quantity.MAX_MIB))
@settings(max_examples=20)
def test_from_one_gib_on_the_getter_rounds_down_as_expected(daemon: Running, mib: int) -> None:
    (step,) = values(Desired((mib,), None, None), None)
    said, shown = daemon.front_end().ask([step.setter, step.getter])
    assert said == []
    assert shown == [step.reads] == [f"{mib // 1024}G"]


@given(tenths=st.integers(1, 1000))
@settings(max_examples=20)
def test_every_thread_percentage_with_one_decimal_reads_back(daemon: Running, tenths: int) -> None:
    (step,) = values(Desired((), tenths / 10, None), None)
    said, shown = daemon.front_end().ask([step.setter, step.getter])
    assert said == shown == [step.reads]


@pytest.mark.parametrize("priority", [1, 0])
def test_the_client_priority_reads_back(daemon: Running, priority: int) -> None:
    (step,) = values(Desired((), None, priority), None)
    assert step.in_force(daemon.front_end().ask([step.setter, step.getter])[1])


@pytest.mark.parametrize("text", MISREAD)
def test_what_the_daemon_would_misread_is_refused_before_it_gets_there(host: RealDaemonHost, text: str) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.bring_up()
    host.desired(DeviceMemoryLimit=text)
    with pytest.raises(BadValue):
        apply.apply(host.world, "0", daemon.pid)
    assert limit_of(daemon) == ["900M"]


@pytest.mark.parametrize("text", [*MISREAD, "20%", "1M", "900M", "1023M", "1024M", "1536M", "2G", "16384G"])
def test_the_fake_of_the_unit_tests_reads_limits_as_the_daemon_does(daemon: Running, text: str) -> None:
    commands = [f"set_{LIMIT} 700M", f"set_{LIMIT} {text}", f"get_{LIMIT}"]
    assert daemon.front_end().ask(commands) == FakeDaemon().ask(commands)


@pytest.mark.parametrize("text", ["0", "101", "-5", "abc", "", "12.5", "0.5", "50%", "100"])
def test_the_fake_of_the_unit_tests_reads_percentages_as_the_daemon_does(daemon: Running, text: str) -> None:
    scope = "default_active_thread_percentage"
    commands = [f"set_{scope} 33.3", f"set_{scope} {text}".rstrip(), f"get_{scope}"]
    assert daemon.front_end().ask(commands) == FakeDaemon().ask(commands)


@pytest.mark.parametrize("text", ["0", "1", "2", "-1", "low"])
def test_the_fake_of_the_unit_tests_reads_priorities_as_the_daemon_does(daemon: Running, text: str) -> None:
    scope = "default_client_priority"
    commands = [f"set_{scope} 0", f"set_{scope} {text}", f"get_{scope}"]
    assert daemon.front_end().ask(commands) == FakeDaemon().ask(commands)


# -- apply


def test_apply_puts_everything_in_force_and_a_second_one_finds_nothing_to_do(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="1536M", ActiveThreadPercentage=33.3, ClientPriority=1)
    daemon = host.bring_up()
    assert host.door_is_open()
    assert daemon.front_end().ask(
        [f"get_{LIMIT}", "get_default_active_thread_percentage", "get_default_client_priority"]
    ) == [["1G"], ["33.3"], ["1"]]
    assert apply.apply(host.world, "0", daemon.pid) == []


def test_a_changed_limit_goes_in_force_on_the_running_daemon(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.bring_up()
    host.desired(DeviceMemoryLimit="800M")
    assert apply.apply(host.world, "0", daemon.pid) == ["memory limit of device 0 (default): 900M -> 800 MiB"]
    assert limit_of(daemon) == ["800M"]


def test_a_restart_forgets_everything_and_apply_brings_it_back(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M", ActiveThreadPercentage=50, ClientPriority=1)
    host.bring_up().end()
    second = host.begin()
    second.wait_until_it_answers()
    asked = [f"get_{LIMIT}", "get_default_active_thread_percentage", "get_default_client_priority"]
    assert second.front_end().ask(asked) == [[], ["100.0"], ["0"]]
    assert not host.door_is_open()
    apply.apply(host.world, "0", second.pid)
    assert second.front_end().ask(asked) == [["900M"], ["50.0"], ["1"]]
    assert host.door_is_open()


ASKED = [f"get_{LIMIT}", "get_default_active_thread_percentage", "get_default_client_priority"]
VALUES: dict[str, Any] = {"DeviceMemoryLimit": "8G", "ActiveThreadPercentage": 50, "ClientPriority": 1}


@pytest.mark.parametrize("kept", [{}, {"ActiveThreadPercentage": 50, "ClientPriority": 1}], ids=["all three", "limit"])
def test_what_is_no_longer_managed_is_taken_back_live_and_is_so_after_a_restart(
    host: RealDaemonHost, kept: dict[str, Any]
) -> None:
    """As a daemon is that was told nothing: it has no limit, by the getter too, or one of 0, which is none."""
    host.desired(**VALUES)
    daemon = host.bring_up()
    assert daemon.front_end().ask(ASKED) == [["8G"], ["50.0"], ["1"]]
    host.desired(**kept)
    others = [["50.0"], ["1"]] if kept else [["100.0"], ["0"]]
    changes = apply.apply(host.world, "0", daemon.pid)
    assert len(changes) == (1 if kept else 3), changes
    limit, *rest = daemon.front_end().ask(ASKED)
    assert rest == others
    assert limit in NO_LIMIT
    assert apply.apply(host.world, "0", daemon.pid) == []
    daemon.end()
    again = host.bring_up()
    limit, *rest = again.front_end().ask(ASKED)
    assert rest == others
    assert limit in NO_LIMIT


def test_two_daemons_side_by_side_have_their_own_limits(host: RealDaemonHost) -> None:
    host.desired("0", DeviceMemoryLimit="900M")
    host.desired("1", DeviceMemoryLimit="800M")
    daemons = [host.bring_up("0"), host.bring_up("1")]
    assert [limit_of(daemon) for daemon in daemons] == [["900M"], ["800M"]]
    assert pipe.daemons_on(host.pipe_root / "0", host.own()) == [daemons[0].pid]
    assert pipe.daemons_on(host.pipe_root / "1", host.own("1")) == [daemons[1].pid]


def test_a_daemon_that_died_is_told_from_one_that_is_slow(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.begin()
    daemon.end()
    with pytest.raises(NotReady, match="has ended"):
        apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()


def test_stop_ends_the_daemon_and_closes_the_door(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M", StopTimeoutSec=5)
    daemon = host.bring_up()
    assert stop.stop(host.world, "0", daemon.pid)
    assert not host.door_is_open()
    assert not procfs.alive(daemon.pid)
    assert daemon.process.wait() == 0


# -- a drain


def drained(host: RealDaemonHost, timeout_s: int) -> drain.Drained:
    (found,) = drain.drain(host.world, [configuration.load(host.world, "0")], timeout_s)
    return found


def test_a_drained_daemon_stays_up_and_closed_over_a_new_start_until_undrain(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M")
    first = host.bring_up()
    assert drained(host, 5).empty
    assert not host.door_is_open()
    assert limit_of(first) == ["900M"]
    first.end()
    second = host.bring_up()
    assert not host.door_is_open()
    assert limit_of(second) == ["900M"]
    drain.undrain(host.world, "0")
    assert host.door_is_open()


def test_a_stopped_daemon_is_drained_within_the_bound_and_never_taken_for_empty(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.bring_up()
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        found = drained(host, 1)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert not found.empty
    assert found.unknown is not None
    assert not host.door_is_open()


def test_a_client_that_the_daemon_does_not_know_gets_no_signal(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.bring_up()
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        try:
            client = ClientFacts(child.pid, 0, "root", "sleep", None, [], [], procfs.started_at(child.pid))
            (ended,) = terminate.end(host.world, daemon.front_end(), [(daemon.pid, client)])
            assert (ended.taken_off, ended.left) == (False, True)
            assert child.poll() is None
        finally:
            child.kill()


# -- the daemon's own directory


def test_setters_of_root_go_to_the_socket_for_them_from_550_on(host: RealDaemonHost, version: int) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.bring_up()
    (host.own() / "control_privileged").unlink()
    (said,) = daemon.front_end().ask([f"set_{LIMIT} 700M"])
    if version < 550:
        assert limit_of(daemon) == ["700M"]
    else:
        assert "Insufficient privileges" in said[0]
        assert limit_of(daemon) == ["900M"]


def test_a_daemon_that_is_closed_to_others_goes_on_and_ends_as_before(host: RealDaemonHost) -> None:
    host.desired(DeviceMemoryLimit="900M", StopTimeoutSec=5)
    daemon = host.bring_up()
    assert pipe.is_closed(host.own())
    assert limit_of(daemon) == ["900M"]
    assert stop.stop(host.world, "0", daemon.pid)
    assert daemon.process.wait() == 0


def test_no_daemon_starts_on_the_public_directory(host: RealDaemonHost, start: Starter) -> None:
    """A directory has the name of its lock: it ends, and the front door's socket and name stay."""
    public = host.desired(DeviceMemoryLimit="900M")
    host.stand_door()
    by_hand = start.unanswered(public)
    assert by_hand.process.wait(timeout=30) != 0
    assert pipe.leads_to_door(public)


# -- without a front door


def test_without_a_front_door_everyone_comes_to_the_daemon_s_socket_and_to_nothing_else(
    host: RealDaemonHost, version: int
) -> None:
    public = host.desired(DeviceMemoryLimit="900M", StopTimeoutSec=5, FrontDoor="no")
    daemon = host.begin()
    assert daemon.pipe_directory == public
    daemon.wait_until_it_answers()
    assert stat.S_IMODE(public.stat().st_mode) == 0o700  # its log is everyone's to write
    apply.apply(host.world, "0", daemon.pid)
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in public.iterdir()}
    expected = {
        "control": "srw-rw-rw-",
        "control_privileged": "srw-------",
        "control_lock": "-rw-------",
        "log": "prw-------",
        "nvidia-cuda-mps-control.pid": "-rw-------",
    }
    if version < 550:
        del expected["nvidia-cuda-mps-control.pid"]
    assert modes == expected
    assert stat.S_IMODE(public.stat().st_mode) == 0o711
    assert without_door.is_guarded(public)
    assert host.door_is_open()
    assert limit_of(daemon) == ["900M"]
    assert log_fifo.is_closed(public, public=True)


def test_without_a_front_door_root_sets_limits_and_the_next_start_finds_its_place_empty(host: RealDaemonHost) -> None:
    public = host.desired(DeviceMemoryLimit="900M", StopTimeoutSec=5, FrontDoor="no")
    first = host.bring_up()
    host.desired(DeviceMemoryLimit="800M", StopTimeoutSec=5, FrontDoor="no")
    apply.apply(host.world, "0", first.pid)
    assert limit_of(first) == ["800M"]
    first.end()
    second = host.bring_up()
    assert limit_of(second) == ["800M"]
    assert stop.stop(host.world, "0", second.pid)
    assert second.process.wait() == 0
    stop.release(host.world, "0")
    assert stat.S_IMODE(public.stat().st_mode) == 0o700
    assert list(public.iterdir()) == []


def test_without_a_front_door_a_drain_closes_the_directory_and_its_end_opens_it(host: RealDaemonHost) -> None:
    public = host.desired(DeviceMemoryLimit="900M", FrontDoor="no")
    daemon = host.bring_up()
    assert drained(host, 5).empty
    assert not stat.S_IMODE(public.stat().st_mode) & 0o007
    assert limit_of(daemon) == ["900M"]
    drain.undrain(host.world, "0")
    assert stat.S_IMODE(public.stat().st_mode) == 0o711


def test_the_getter_behind_every_command_always_answers(daemon: Running) -> None:
    commands = ["get_server_list", "foo", "get_client_list 1", "GET_SERVER_LIST", "set_active_thread_percentage 1 50"]
    answers = daemon.front_end().ask(commands)
    assert answers[0] == []
    assert answers[1] == ['Unknown command "foo"']
    assert answers[2] == ["Server 1 not found"]
    assert answers[4] == ["Server 1 not found"]


def test_only_the_oldest_daemon_does_not_tell_the_state_of_a_server(daemon: Running, version: int) -> None:
    command = control.status_of(1)
    found = control.servers_of([1], {command: daemon.front_end().ask([command])[0]})
    assert found == ([Server(1, None)] if version < 550 else [])
    assert control.clients(daemon.front_end(), 1) == []


def test_a_look_asks_no_more_than_it_wants_to_know(daemon: Running) -> None:
    """The daemon logs each command: those of a look alone, and nothing to separate them."""
    front_end = daemon.front_end()
    limit, percentage, listed = (
        "get_default_device_pinned_mem_limit 0",
        "get_default_active_thread_percentage",
        control.SERVER_LIST,
    )
    setter = "set_default_active_thread_percentage 41"
    front_end.ask(["set_default_device_pinned_mem_limit 0 900M", setter])
    assert front_end.ask([limit, percentage, listed]) == [["900M"], ["41.0"], []]

    def asked() -> list[str]:
        """What came behind the setter and its own getter: other tests ask this daemon too."""
        said = [line.partition("Cmd:")[2] for line in daemon.log.read_text().splitlines() if "Cmd:" in line]
        last = max((number for number, command in enumerate(said) if command == setter), default=len(said))
        return said[last + 2 :]

    eventually(lambda: asked() == [limit, listed, percentage], "the log has what was asked and no more")
    front_end.ask(["set_default_device_pinned_mem_limit 0 0G"])
    assert front_end.ask([limit, listed, percentage]) == [[], [], ["41.0"]]


# -- one session at a time


def test_who_holds_the_session_is_named(start: Starter) -> None:
    daemon = start(start.root / "pipe")
    with held_session(daemon) as holder:
        problem = next(filter(None, (problem_of(daemon) for _ in range(20))))  # some get through on 535
        assert re.search(rf"is held by .*pid {holder} \(user", problem)


def problem_of(daemon: Running) -> Optional[str]:
    try:
        daemon.front_end().ask(["get_default_client_priority"], deadline_s=0.5)
    except NotServed as error:
        return str(error)
    return None


def test_beside_a_held_session_an_answer_is_right_or_none(start: Starter) -> None:
    daemon = start(start.root / "pipe")
    daemon.front_end().ask([f"set_{LIMIT} 900M"])
    with held_session(daemon):
        for _ in range(10):
            assert answer_or_none(daemon, [f"get_{LIMIT}"]) in (None, [["900M"]])
    assert daemon.front_end().ask([f"get_{LIMIT}"]) == [["900M"]]


def answer_or_none(daemon: Running, commands: list[str]) -> Optional[list[list[str]]]:
    try:
        return daemon.front_end().ask(commands, deadline_s=0.2)
    except NotServed:
        return None


def test_a_daemon_stopped_by_a_signal_meets_the_deadline(start: Starter) -> None:
    daemon = start(start.root / "pipe")
    daemon.process.send_signal(signal.SIGSTOP)
    with pytest.raises(NotServed, match=r"did not answer within 0\.5 s .*the daemon may be stopped"):
        daemon.front_end().ask(["get_default_client_priority"], deadline_s=0.5)
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.front_end().ask(["get_default_client_priority"]) == [["0"]]


def test_twenty_calls_at_once_get_the_right_answers_in_turn(start: Starter) -> None:
    daemon = start(start.root / "pipe")
    lock = start.root / "session.lock"

    def call(ordinal: int) -> list[tuple[int, list[str]]]:
        found = []
        for round_ in range(3):
            mib = 100 + 20 * round_ + ordinal
            scope = f"default_device_pinned_mem_limit {ordinal}"
            _, shown = daemon.front_end(lock).ask([f"set_{scope} {mib}M", f"get_{scope}"], deadline_s=120)
            found.append((mib, shown))
        return found

    with ThreadPoolExecutor(20) as pool:
        for answers in pool.map(call, range(20)):
            assert all(shown == [f"{mib}M"] for mib, shown in answers), answers


def test_callers_that_do_not_wait_their_turn_get_a_right_answer_or_none(start: Starter) -> None:
    """Other users than root ask without the lock."""
    daemon = start(start.root / "pipe")
    daemon.front_end().ask([f"set_{LIMIT} 900M", "set_default_client_priority 1"])
    asked = [f"get_{LIMIT}", "get_default_client_priority", "get_default_active_thread_percentage"]

    def call(_: int) -> Optional[list[list[str]]]:
        try:
            return daemon.front_end().ask(asked, deadline_s=5)
        except NotServed:
            return None

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(call, range(40)))
    assert {str(answer) for answer in answers} <= {"None", str([["900M"], ["1"], ["100.0"]])}


# -- paths


def padded(root: Path, length: int) -> Path:
    return root / ("d" * (length - len(str(root)) - 1))


def test_the_longest_directory_that_a_daemon_can_serve(start: Starter) -> None:
    """The longest of ours is shorter: that of an instance with the longest name (tests/unit/mpsctl)."""
    longest = padded(start.root, DAEMON_DIRECTORY_MAX_BYTES)
    pipe.make(longest)
    assert start(longest).front_end().ask(["get_default_client_priority"]) == [["0"]]
    too_long = padded(start.root, DAEMON_DIRECTORY_MAX_BYTES + 1)
    pipe.make(too_long)
    assert start.unanswered(too_long).process.wait(timeout=30) == 1


def test_a_directory_that_nobody_serves_is_unreachable(start: Starter) -> None:
    with pytest.raises(Unreachable, match="no control daemon listens on"):
        control.FrontEnd(start.root / "nobody", binary=start.binary).ask(["get_server_list"])


# -- the answers


def test_sessions_of_many_commands_are_split_as_they_were_asked(daemon: Running) -> None:
    """The getter behind every command prints the same as the percentage's own commands."""
    expected = {
        f"get_{LIMIT}": ["900M"],
        "get_default_active_thread_percentage": ["25.0"],
        "get_server_list": [],
        "get_client_list 1": ["Server 1 not found"],
        "foo": ['Unknown command "foo"'],
        "get_active_thread_percentage 1": ["Server 1 not found"],
        "set_default_active_thread_percentage 0": ["25.0"],
        "get_default_client_priority": ["0"],
    }
    daemon.front_end().ask(
        [f"set_{LIMIT} 900M", "set_default_active_thread_percentage 25", "set_default_client_priority 0"]
    )
    chosen = random.Random(2).choices(sorted(expected), k=60)
    for command, answer in zip(chosen, daemon.front_end().ask(chosen)):
        assert answer == expected[command], command


def test_the_daemon_says_its_pid_in_every_line_of_its_log(daemon: Running) -> None:
    daemon.front_end().ask(["get_server_list"])
    lines = [line for line in daemon.log.read_text().splitlines() if " Control " in line]
    assert lines
    assert all(re.search(rf"Control +{daemon.pid}\]", line) for line in lines)
