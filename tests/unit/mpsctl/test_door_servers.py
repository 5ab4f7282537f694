"""A visitor's server is ready before the daemon hears of it; users take turns where one server serves one at a time."""

from __future__ import annotations

import fcntl
from typing import Iterator, Sequence

import pytest

from door import ALICE, BOB, UNIT, Door
from fakes import Host
from mpsctl.front_door.judge import LetIn, Visitor, Wait
from mpsctl.front_door.users import Queue
from mpsctl.store import admission


@pytest.fixture
def single(door: Door) -> Door:
    """The same instance in single-user mode."""
    door.open(multi_user=False)
    return door


@pytest.fixture
def oldest(host: Host) -> Iterator[Door]:
    """A daemon of driver 535, which does not know get_server_status."""
    made = Door(host, 535)
    yield made
    made.close()


def starts(door: Door) -> list[str]:
    return [command for command in door.daemon.commands if command.startswith("start_server")]


def slow(door: Door, in_s: float = 1.0, state: str = "INITIALIZING") -> None:
    """Servers take a while to start."""

    def start(uid: int) -> None:
        pid = door.start_server(uid, state)
        door.host.clock.when(in_s, lambda: setattr(door.daemon.servers[pid], "state", "ACTIVE"))

    door.daemon.on_start_server = start


def hand_over(door: Door) -> None:
    """The daemon ends idle servers of others when it is asked for one."""

    def start(uid: int) -> None:
        for pid in list(door.daemon.servers):
            door.end_server(pid)
        door.start_server(uid)

    door.daemon.on_start_server = start


# -- ready, or not


def test_a_server_that_is_up_serves_at_once_and_none_is_started(door: Door) -> None:
    door.start_server(0)
    door.come_in(door.visitor())
    assert starts(door) == []


def test_nobody_is_let_in_while_the_server_starts(door: Door) -> None:
    slow(door)
    visitor = door.visitor()
    began_s = door.host.clock.now_s
    assert door.word(visitor, within_s=0.8) == "server-starting"
    assert door.settled(visitor) == LetIn(door.served)
    assert door.host.clock.now_s - began_s >= 1
    assert starts(door) == ["start_server -uid 0"]


def test_a_start_that_was_meant_for_one_daemon_never_reaches_the_next(door: Door) -> None:
    """Its limits are not in force yet, and a server takes them when it starts."""
    former = door.daemon
    answer = former.ask

    def answers_and_ends(commands: Sequence[str], deadline_s: float = 10) -> list[list[str]]:
        said = answer(commands, deadline_s)
        door.host.kill(former.pid)
        door.launch()
        return said

    former.ask = answers_and_ends  # type: ignore[method-assign]
    assert isinstance(door.settled(door.visitor(), within_s=1), Wait)
    assert door.daemon is not former
    assert starts(door) == []
    door.open()
    door.come_in(door.visitor())
    assert starts(door) == ["start_server -uid 0"]


def test_no_daemon_begins_while_one_is_asked_to_start_a_server(door: Door) -> None:
    """A start closes the instance first, which waits for the question."""
    tried = []

    def closes(command: str) -> None:
        if command.startswith("start_server"):
            inside = admission.path(door.host.places, "0").with_suffix(".lock")
            with open(inside) as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tried.append(command)

    door.daemon.before_command = closes
    door.come_in(door.visitor())
    assert tried == ["start_server -uid 0"]


def test_while_the_admission_is_written_no_server_is_started(door: Door) -> None:
    visitor = door.visitor()
    with open(admission.path(door.host.places, "0").with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert door.word(visitor, within_s=1) == "server-starting"
        assert starts(door) == []
    assert door.settled(visitor) == LetIn(door.served)


def test_users_of_one_server_start_it_once_and_do_not_look_in_turns(door: Door) -> None:
    slow(door, in_s=5)
    visitors = [door.visitor(uid) for uid in (ALICE, BOB, 3000)]
    for _ in range(60):
        door.host.clock.pass_by(0.05)
        assert all(isinstance(door.judge.judge(one), Wait) for one in visitors)
        door.worker.work()
    assert starts(door) == ["start_server -uid 0"]
    assert door.daemon.commands.count("get_server_list") <= 25


def test_one_look_tells_for_a_second_for_everyone(door: Door) -> None:
    door.come_in(door.visitor())
    sessions = len(door.daemon.commands)
    for _ in range(100):
        visitor = door.visitor()
        assert isinstance(door.judge.judge(visitor), LetIn)
        door.passes(visitor)
    assert len(door.daemon.commands) == sessions
    door.host.clock.pass_by(1.5)
    visitor = door.visitor()
    assert isinstance(door.judge.judge(visitor), Wait)
    door.worker.work()
    assert isinstance(door.judge.judge(visitor), LetIn)
    assert len(door.daemon.commands) == sessions + 3  # the list, and two questions about its server


def test_a_look_that_took_long_tells_as_well(door: Door) -> None:
    """A client that stops in the middle of its start holds the daemon for a second, before each session of a look."""
    door.start_server(0)
    door.daemon.before_command = lambda command: door.host.clock.pass_by(1.2)
    assert door.settled(door.visitor()) == LetIn(door.served)


def test_a_daemon_is_left_alone_while_nobody_comes(door: Door) -> None:
    door.come_in(door.visitor())
    sent = len(door.daemon.commands)
    door.host.clock.pass_by(100)
    door.worker.work()
    assert len(door.daemon.commands) == sent


def test_a_server_that_dies_between_the_verdict_and_the_last_look_is_no_server(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    (server,) = door.daemon.servers
    door.end_server(server)
    assert not door.judge.still(visitor, door.served)
    assert isinstance(door.judge.judge(visitor), Wait)
    door.come_in(visitor)
    assert len(starts(door)) == 2


def test_another_process_with_the_servers_pid_is_no_server(door: Door) -> None:
    visitor = door.visitor()
    assert door.settled(visitor) == LetIn(door.served)
    (server,) = door.daemon.servers
    door.host.processes[server].started_at += 1
    assert not door.judge.still(visitor, door.served)


def test_a_server_in_fault_lets_nobody_in_until_it_has_gone(door: Door) -> None:
    door.come_in(door.visitor())
    (server,) = door.daemon.servers
    door.daemon.servers[server].state = "FAULT"
    door.host.clock.pass_by(2)
    visitor = door.visitor()
    assert door.word(visitor, within_s=8) == "server-fault"
    assert len(starts(door)) == 1
    door.end_server(server)
    door.come_in(visitor)
    assert len(starts(door)) == 2


def test_a_server_that_does_not_start_is_tried_again_after_a_pause(door: Door) -> None:
    door.daemon.on_start_server = lambda uid: None
    visitor = door.visitor()
    assert door.word(visitor, within_s=32) == "server-not-ready"
    tries = len(starts(door))
    assert 20 <= tries <= 31, "the daemon may have refused the first ones without a word"
    assert door.word(visitor, within_s=3) == "server-not-ready"
    assert len(starts(door)) == tries
    hand_over(door)
    assert door.settled(visitor) == LetIn(door.served)


def test_a_server_that_stays_unready_is_told_after_its_bound(door: Door) -> None:
    slow(door, in_s=1000)
    assert door.word(door.visitor(), within_s=32) == "server-not-ready"
    assert len(starts(door)) == 1


def test_looks_at_a_starting_server_are_few(door: Door) -> None:
    slow(door, in_s=10)
    door.settled(door.visitor(), within_s=12)
    assert door.daemon.commands.count("get_server_list") <= 50


def test_a_daemon_that_cannot_be_reached_is_waited_for(door: Door) -> None:
    door.daemon.unreachable = True
    visitor = door.visitor()
    assert door.word(visitor, within_s=3) == "daemon-down"
    door.daemon.unreachable = False
    door.come_in(visitor)


# -- a daemon that does not tell its servers' state


def test_the_log_tells_that_a_server_is_ready_where_the_daemon_does_not(oldest: Door) -> None:
    door, visitor = oldest, oldest.visitor()
    assert door.word(visitor, within_s=2) == "server-starting"
    (server,) = door.daemon.servers
    door.daemon.write("Control", door.daemon.pid, f"NEW SERVER {server}: Ready")
    door.come_in(visitor)
    reads = door.host.systemd.journal_reads
    door.host.clock.pass_by(5)
    door.come_in(door.visitor())
    assert door.host.systemd.journal_reads == reads, "it is remembered"


def test_a_server_that_has_exited_is_not_ready_though_it_is_still_listed(oldest: Door) -> None:
    server = oldest.start_server(0)
    oldest.daemon.write("Control", oldest.daemon.pid, f"NEW SERVER {server}: Ready")
    oldest.daemon.write("Control", oldest.daemon.pid, f"Server {server} exited with status 1")
    assert oldest.word(oldest.visitor(), within_s=2) == "server-starting"


def test_the_ready_line_of_another_server_is_not_this_ones(oldest: Door) -> None:
    oldest.daemon.write("Control", oldest.daemon.pid, "NEW SERVER 77: Ready")
    assert oldest.word(oldest.visitor(), within_s=2) == "server-starting"


def test_a_server_that_served_a_client_is_ready_whatever_became_of_its_line(oldest: Door) -> None:
    server = oldest.start_server(0)
    oldest.daemon.connect(server, 4711)
    oldest.come_in(oldest.visitor())


def test_without_any_log_a_server_that_lives_is_taken_for_ready(oldest: Door) -> None:
    oldest.host.systemd.journals.clear()
    oldest.come_in(oldest.visitor())
    assert oldest.host.systemd.unit(UNIT).main_pid == oldest.daemon.pid


# -- one user at a time


def test_each_user_gets_a_server_of_his_own(single: Door) -> None:
    single.come_in(single.visitor(ALICE))
    assert starts(single) == [f"start_server -uid {ALICE}"]


def test_another_user_waits_while_the_server_has_clients(single: Door) -> None:
    alice = single.come_in(single.visitor(ALICE))
    (server,) = single.daemon.servers
    single.daemon.connect(server, alice.pid)
    bob = single.visitor(BOB)
    assert single.word(bob, within_s=20) == "another-user"
    assert len(starts(single)) == 1
    single.daemon.leave(server, alice.pid)
    hand_over(single)
    single.come_in(bob)
    assert starts(single)[-1] == f"start_server -uid {BOB}"


def test_newcomers_of_the_user_who_is_served_do_not_overtake_who_waits(single: Door) -> None:
    alice = single.come_in(single.visitor(ALICE))
    (server,) = single.daemon.servers
    single.daemon.connect(server, alice.pid)
    bob = single.visitor(BOB)
    single.ask(bob)
    late = single.visitor(ALICE)
    assert single.word(late, within_s=3) == "another-user"
    single.judge.gave_up(bob, 3)
    assert single.settled(late) == LetIn(single.served)


def test_who_came_before_the_other_user_still_comes_in(single: Door) -> None:
    single.come_in(single.visitor(ALICE))
    early = single.visitor(ALICE)
    single.host.clock.pass_by(2)
    assert isinstance(single.judge.judge(early), Wait)
    single.ask(single.visitor(BOB))
    single.come_in(early)


def test_a_process_that_was_just_let_in_keeps_its_server_before_it_is_listed(single: Door) -> None:
    single.come_in(single.visitor(ALICE))
    began_s = single.host.clock.now_s
    bob = single.visitor(BOB)
    assert single.word(bob, within_s=4.5) == "another-user"
    assert len(starts(single)) == 1
    hand_over(single)
    assert single.settled(bob) == LetIn(single.served)
    assert single.host.clock.now_s - began_s >= 5


def test_one_that_ended_right_after_it_was_let_in_keeps_nobody_waiting(single: Door) -> None:
    alice = single.come_in(single.visitor(ALICE))
    single.host.kill(alice.pid)
    hand_over(single)
    assert single.settled(single.visitor(BOB), within_s=1) == LetIn(single.served)


def test_a_later_connection_of_a_known_client_passes_before_another_user(single: Door) -> None:
    alice = single.come_in(single.visitor(ALICE))
    single.ask(single.visitor(BOB))
    assert single.judge.judge(single.visitor(ALICE, pid=alice.pid)) == LetIn(single.served)


def test_the_daemon_may_refuse_while_the_idle_server_of_another_lives(single: Door) -> None:
    alice = single.come_in(single.visitor(ALICE))
    single.host.kill(alice.pid)
    (server,) = single.daemon.servers

    def refuse_while_it_lives(uid: int) -> None:
        if server not in single.daemon.servers:
            single.start_server(uid)

    single.daemon.on_start_server = refuse_while_it_lives
    bob = single.visitor(BOB)
    assert single.word(bob, within_s=3) == "server-starting"
    single.end_server(server)
    assert single.settled(bob) == LetIn(single.served)


def test_many_users_come_in_in_the_order_in_which_they_came(single: Door) -> None:
    order = [ALICE, ALICE, BOB, ALICE, 3000, BOB]
    visitors = [single.visitor(uid) for uid in order]
    hand_over(single)
    done: list[Visitor] = []
    for _ in range(1000):
        single.host.clock.pass_by(0.05)
        single.worker.work()
        for visitor in [one for one in visitors if one not in done]:
            if isinstance(single.judge.judge(visitor), LetIn):
                single.passes(visitor)
                done.append(visitor)
                single.host.kill(visitor.pid)
                break
    assert [one.uid for one in done] == order


def test_a_queue_tells_who_is_behind_another_user() -> None:
    queue = Queue()
    for number, uid in enumerate([ALICE, BOB, ALICE]):
        queue.enter(number, uid)
    assert [queue.behind_another(number, uid) for number, uid in enumerate([ALICE, BOB, ALICE])] == [False, True, True]
    queue.leave(0, ALICE)
    assert [queue.behind_another(1, BOB), queue.behind_another(2, ALICE)] == [False, True]
    queue.leave(1, BOB)
    queue.leave(1, BOB)
    assert not queue.behind_another(2, ALICE)
