"""A visitor that may come in is handed to the daemon. The daemon's end is never cut in the dangerous moment."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from typing import Iterator

import pytest

import door_world
from door_world import CREDENTIALS, CUDA, DESCRIPTOR, GREETING, LAST, Client, World, open_descriptors
from mpsctl.front_door import handshake
from mpsctl.front_door.judge import LetIn, Wait
from mpsctl.store.admission import ServedDaemon


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    for made in door_world.made(root):
        made.judge.let_in()
        yield made


def told_the_daemon(world: World) -> bool:
    return len(world.daemon.messages) == 2


def in_the_dangerous_moment(world: World) -> Client:
    """A client whose credentials the daemon has, and which it does not answer."""
    world.daemon.answers = False
    client = world.greeted().introduce()
    world.until(lambda: told_the_daemon(world))
    return client


def test_a_client_is_handed_over(world: World) -> None:
    client = world.greeted().introduce()
    world.until(lambda: len(client.heard) == 2)
    assert client.heard == [GREETING, DESCRIPTOR]
    assert len(client.descriptors) == 1
    assert world.hold.holders == 1
    client.say(LAST)
    world.until(lambda: client.ended)
    world.rounds()
    me = (os.getpid(), os.getuid(), os.getgid())
    assert world.daemon.connections == [[(CREDENTIALS, me), (CUDA, me), (LAST, me)]]
    assert world.judge.told == [("passed", 1)]
    assert world.hold.holders == 0


def test_the_descriptor_is_the_one_that_the_daemon_sent(world: World) -> None:
    client = world.greeted().introduce()
    world.until(lambda: client.descriptors)
    poll = select.poll()
    poll.register(client.descriptors[0], select.POLLERR)
    assert poll.poll(0)  # the write end of a pipe without a reader


def test_the_daemon_hears_a_client_of_another_user_under_its_own_name(world: World) -> None:
    process = world.visitor_process(uid=65534)
    world.until(lambda: DESCRIPTOR.hex().encode() + b" 1" in process.printed)
    process.go_on()
    world.until(lambda: world.told("passed", 1))
    world.rounds()
    assert [who for _, who in world.daemon.connections[0]] == [(process.pid, 65534, 65534)] * 3


def test_nothing_is_left_open(world: World) -> None:
    before = open_descriptors()
    for _ in range(3):
        client = world.greeted().introduce()
        world.until(lambda: client.descriptors)  # noqa: B023
        client.say(LAST).close()
        os.close(client.descriptors.pop())
        world.rounds()
    assert world.daemon.connection is None
    assert open_descriptors() == before


def test_clients_are_passed_on_one_after_the_other_in_the_order_in_which_they_came(world: World) -> None:
    world.judge.verdict = lambda visitor: Wait("the_test")
    clients = [world.visitor() for _ in range(5)]
    world.judge.let_in()
    world.judge.wake()
    for number, client in enumerate(clients, 1):
        world.until(lambda: client.descriptors)  # noqa: B023
        assert world.daemon.accepted == number
        assert not any(later.descriptors for later in clients[number:])
        client.say(LAST)
    world.until(lambda: len(world.judge.told) == 5)
    assert world.judge.told == [("passed", number) for number in range(1, 6)]


def test_a_client_that_keeps_its_last_message_does_not_keep_the_daemon(world: World) -> None:
    client = world.greeted().introduce()
    world.until(lambda: len(client.heard) == 2)
    world.passes(world.bounds.last_message_s)
    assert client.ended
    assert world.judge.told == [("passed", 1)]
    assert world.daemon.connection is None


@pytest.mark.parametrize("last", [b"\0" * 5, b"\0"])
def test_whatever_a_client_says_last_is_sent_on(world: World, last: bytes) -> None:
    client = world.greeted().introduce()
    world.until(lambda: len(client.heard) == 2)
    client.say(last)
    world.until(lambda: client.ended)
    world.rounds()
    assert world.daemon.connections[0][2][0] == last


def test_a_last_message_that_is_too_long_is_not(world: World) -> None:
    client = world.greeted().introduce()
    world.until(lambda: len(client.heard) == 2)
    client.say(b"\0" * 1000)
    world.until(lambda: client.ended)
    world.rounds()
    assert len(world.daemon.connections[0]) == 2


def test_others_are_greeted_while_the_daemon_is_silent(world: World) -> None:
    in_the_dangerous_moment(world)
    assert world.greeted().heard == [GREETING]


# --- the client ends


def test_one_that_ends_before_the_daemon_greeted_is_not_told_to_it(world: World) -> None:
    world.daemon.greets = False
    process = world.visitor_process()
    world.until(lambda: world.daemon.accepted)
    process.kill()
    world.until(lambda: world.told("gave_up", 1))
    world.until(lambda: world.daemon.connection is None)
    assert world.daemon.connections == [[]]
    assert world.hold.holders == 0


def test_the_next_one_does_not_wait_for_one_that_ended(world: World) -> None:
    world.daemon.greets = False
    process = world.visitor_process()
    world.until(lambda: world.daemon.accepted)
    client = world.greeted().introduce()
    world.rounds()
    world.daemon.greets = True
    world.daemon.accepts = False
    process.kill()
    world.until(lambda: world.told("gave_up", 1))
    world.daemon.accepts = True
    world.until(lambda: client.descriptors)


def greets_before_the_loop_hears_of_anything_else(world: World) -> None:
    passing = world.door._passing
    assert passing is not None
    assert world.daemon.connection is not None
    world.daemon.connection.send(GREETING)
    passing._greeted()


def test_one_that_closed_in_the_same_round_is_not_told_to_the_daemon(world: World) -> None:
    world.daemon.greets = False
    client = world.visitor()
    world.until(lambda: world.daemon.accepted)
    client.close()
    greets_before_the_loop_hears_of_anything_else(world)
    assert world.judge.told == [("gave_up", 1)]
    world.until(lambda: world.daemon.connection is None)
    assert world.daemon.connections == [[]]


@pytest.mark.parametrize("known_by", ["its pidfd", "the kernel, which takes no credentials of a process that is gone"])
def test_one_that_ended_in_the_same_round_is_not_told_to_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """Somebody else may have its connection open still."""
    world.daemon.greets = False
    process = world.visitor_process()
    world.until(lambda: world.daemon.accepted)
    visitor = world.judge.visitors[0]
    monkeypatch.setattr(handshake, "is_over", lambda connection: False)
    monkeypatch.setattr("mpsctl.adapters.procfs.started_at", lambda pid: visitor.started_at)
    if known_by == "its pidfd":
        process.process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, for which the kernel takes them
    else:
        monkeypatch.setattr(handshake, "has_ended", lambda pidfd: False)
        process.kill()
    greets_before_the_loop_hears_of_anything_else(world)
    assert world.judge.told == [("gave_up", 1)]
    world.until(lambda: world.daemon.connection is None)
    assert world.daemon.connections == [[]]


def test_a_later_process_with_the_same_pid_is_not_the_client(world: World) -> None:
    world.judge.verdict = lambda visitor: Wait("the_test")
    world.visitor()
    world.judge.visitors[0].started_at -= 1
    world.judge.let_in()
    world.judge.wake()
    world.until(lambda: world.told("gave_up", 1))
    assert world.daemon.accepted == 0


def test_the_daemons_end_stays_open_when_the_client_is_killed_in_the_dangerous_moment(world: World) -> None:
    world.daemon.answers = False
    process = world.visitor_process()
    world.until(lambda: told_the_daemon(world))
    process.kill()
    world.rounds()
    world.passes(world.bounds.answer_s - 0.1)
    assert world.daemon.connection is not None
    assert world.judge.told == []
    before = open_descriptors()
    world.daemon.answers = True
    world.until(lambda: world.daemon.connection is None)
    assert world.judge.told == [("gave_up", 1)]
    assert not world.daemon.cut_in_the_dangerous_moment
    assert open_descriptors() < before


def test_a_client_that_closes_in_the_dangerous_moment_costs_no_turns_of_the_loop(world: World) -> None:
    """epoll reports a connection that is over again and again."""
    in_the_dangerous_moment(world).close()
    world.rounds()
    assert world.door._poller._epoll.poll(0) == []


def test_a_client_that_stops_in_the_middle_does_not_stop_the_next(world: World) -> None:
    """It has the descriptor and is stopped before its last message."""
    process = world.visitor_process()
    world.until(lambda: DESCRIPTOR.hex().encode() in process.printed)
    process.stop_where_it_is()
    client = world.greeted().introduce()
    world.passes(world.bounds.last_message_s)
    world.until(lambda: client.descriptors)


def test_one_killed_after_it_has_the_descriptor_was_passed(world: World) -> None:
    process = world.visitor_process()
    world.until(lambda: DESCRIPTOR.hex().encode() in process.printed)
    process.kill()
    world.until(lambda: world.told("passed", 1))
    world.until(lambda: world.daemon.connection is None)


# --- the daemon closes, is slow, or says something else


@pytest.mark.parametrize("after", ["accept", "greeting"])
def test_a_daemon_that_closes_before_it_was_told_anything_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    world.daemon.closes_after = after
    client = world.greeted().introduce()
    world.until(lambda: world.daemon.accepted)
    world.rounds()
    assert world.daemon.accepted == 1
    assert world.judge.told == []
    assert not client.ended
    assert world.hold.holders == 0
    world.daemon.closes_after = None
    world.passes(world.bounds.look_s)
    world.until(lambda: client.descriptors)


def test_a_daemon_that_closes_without_a_descriptor_leaves_the_client_unanswered(world: World) -> None:
    """As one without a GPU does (535, 550, 555)."""
    world.daemon.answers = False
    world.daemon.closes_after = "credentials"
    client = world.greeted().introduce()
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("unanswered", 1)]
    assert world.hold.holders == 0


def test_a_daemon_that_does_not_answer_in_time_keeps_its_end_for_a_while(world: World) -> None:
    client = in_the_dangerous_moment(world)
    world.passes(world.bounds.answer_s - 0.1)
    assert world.judge.told == []
    world.passes(0.1)
    assert world.judge.told == [("unanswered", 1)]
    assert client.refused
    assert world.hold.holders == 0  # whoever closes the door may do it now
    world.passes(world.bounds.kept_open_s - 0.1)
    assert world.daemon.connection is not None
    world.passes(0.1)
    world.until(lambda: world.daemon.connection is None)


def test_an_answer_that_comes_too_late_is_closed_with_the_connection(world: World) -> None:
    in_the_dangerous_moment(world)
    world.passes(world.bounds.answer_s)
    before = open_descriptors()
    world.daemon.answers = True
    world.until(lambda: world.daemon.connection is None)
    assert not world.daemon.cut_in_the_dangerous_moment
    assert open_descriptors() == before - 2  # both ends of the connection
    assert world.judge.told == [("unanswered", 1)]


def test_a_kept_end_is_closed_when_the_daemon_closes_it(world: World) -> None:
    in_the_dangerous_moment(world)
    world.passes(world.bounds.answer_s)
    world.judge.verdict = lambda visitor: Wait("the_test")
    before = open_descriptors()
    world.daemon.close_connection()
    world.rounds()
    assert open_descriptors() == before - 2


@pytest.mark.parametrize(("answer", "descriptors"), [(b"OUTBNOPE\0", 1), (DESCRIPTOR, 0), (DESCRIPTOR, 2), (LAST, 0)])
def test_an_unknown_answer_is_not_handed_over(world: World, answer: bytes, descriptors: int) -> None:
    world.daemon.answer, world.daemon.descriptors_in_answer = answer, descriptors
    before = open_descriptors()
    client = world.greeted().introduce()
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("unanswered", 1)]
    assert world.daemon.connection is not None
    assert open_descriptors() == before + 3  # the client's end, and both of the connection to the daemon


def test_a_daemon_that_greets_otherwise_is_told_nothing(world: World) -> None:
    world.daemon.greeting = b"HELLO"
    client = world.greeted().introduce()
    world.until(lambda: world.judge.told)
    assert world.judge.told == [("not_understood", b"HELLO")]
    world.rounds()
    assert world.daemon.connections == [[]]
    assert not client.ended
    world.judge.says = b"HELLO"  # it was learned
    world.passes(world.bounds.look_s)
    world.until(lambda: client.descriptors)
    assert client.heard == [GREETING, DESCRIPTOR]


def test_a_daemon_that_greets_nobody_is_asked_again_and_the_client_waits(world: World) -> None:
    world.daemon.greets = False
    client = world.greeted().introduce()
    world.until(lambda: world.daemon.accepted)
    world.passes(world.bounds.daemon_greeting_s)
    assert world.judge.told == [("not_understood", b"")]
    assert world.hold.holders == 0
    assert not client.ended
    world.daemon.greets = True
    world.passes(world.bounds.look_s)
    world.until(lambda: client.descriptors)


def test_a_full_backlog_of_the_daemon_is_no_end(world: World) -> None:
    world.daemon.accepts = False
    filling = [Client(world.daemon.path)]  # a backlog of 0 holds one
    client = world.greeted().introduce()
    world.rounds()
    assert world.judge.told == []
    assert world.hold.holders == 0
    world.daemon.accepts = True
    for one in filling:
        one.close()
    world.until(lambda: world.daemon.accepted == 1 and world.daemon.connection is None)
    assert not client.descriptors
    world.passes(world.bounds.look_s)
    world.until(lambda: client.descriptors)


@pytest.mark.parametrize("how", ["nobody listens", "no socket", "a path that is too long"])
def test_without_a_daemon_the_client_waits(world: World, how: str) -> None:
    elsewhere = ServedDaemon(1, 1, "/nowhere" + "x" * (200 if how == "a path that is too long" else 0))
    if how == "nobody listens":
        world.daemon.listener.close()
    else:
        world.judge.verdict = lambda visitor: LetIn(elsewhere)
    client = Client(world.path).introduce()
    for _ in range(20):
        world.door.step()
        client.step()
    assert (client.heard, client.ended, world.judge.told) == ([GREETING], False, [])
    assert world.hold.holders == 0
    client.close()


def test_newcomers_do_not_make_the_door_try_a_daemon_that_is_not_there_more_often(world: World) -> None:
    world.judge.verdict = lambda visitor: LetIn(ServedDaemon(1, 1, "/nowhere"))
    for _ in range(10):
        world.greeted().introduce()
        world.rounds(5)
    assert world.hold.asked == 1
    world.passes(world.bounds.look_s)
    assert world.hold.asked == 2


# --- the admission


def test_nobody_is_passed_on_while_the_admission_is_written(world: World) -> None:
    world.hold.is_written = True
    client = world.greeted().introduce()
    world.rounds()
    world.passes(world.bounds.look_s)
    assert world.daemon.accepted == 0
    world.hold.is_written = False
    world.passes(world.bounds.look_s)
    world.until(lambda: client.descriptors)


def test_a_verdict_that_does_not_hold_any_more_lets_nobody_in(world: World) -> None:
    world.judge.holds = lambda visitor: False
    client = world.greeted().introduce()
    world.rounds()
    world.passes(world.bounds.look_s)
    assert world.daemon.accepted == 0
    assert not client.ended
    assert world.hold.holders == 0


def test_who_cannot_be_let_in_after_all_does_not_stop_the_next(world: World) -> None:
    world.judge.holds = lambda visitor: visitor.number != 1
    world.visitor()
    second = world.visitor()
    world.until(lambda: second.descriptors)


def test_a_verdict_that_ends_while_the_daemon_greets_is_seen_before_it_is_told(world: World) -> None:
    world.daemon.greets = False
    world.greeted().introduce()
    world.until(lambda: world.daemon.accepted)
    world.judge.holds = lambda visitor: False
    world.daemon.greets = True
    world.until(lambda: world.daemon.connection is None)
    assert world.daemon.connections == [[]]
    assert world.judge.told == []


def test_where_the_kernel_does_not_let_the_door_speak_for_a_client_it_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = handshake.say

    def may_not(*arguments: object, **more: object) -> None:
        if len(arguments) > 2:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        say(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(handshake, "say", may_not)
    client = world.greeted().introduce()
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("refused", 1, "credentials")]
    world.rounds()
    assert world.daemon.connections == [[]]


# --- this program fails


def test_an_error_of_ours_does_not_cut_the_daemon_in_the_dangerous_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = in_the_dangerous_moment(world)

    def fails() -> None:
        world.daemon.say_answer()  # while the door waits for it and nothing else
        raise RuntimeError("a mistake")

    monkeypatch.setattr(world.judge, "woken", fails)
    client.say(LAST)
    world.judge.wake()
    with pytest.raises(RuntimeError, match="a mistake"):
        world.door.serve()
    world.runs = False
    world.rounds()
    assert client.heard == [GREETING, DESCRIPTOR]
    assert [message for message, _ in world.daemon.connections[0]] == [CREDENTIALS, CUDA, LAST]
