"""Who connects to the front door is greeted, counted and heard; whoever is no CUDA client is greeted and closed."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Iterator

import pytest

import door_world
from door_world import CREDENTIALS, CUDA, GREETING, Ancillary, Client, World, credentials, open_descriptors
from mpsctl.adapters.subordinate_ids import SubordinateIds
from mpsctl.front_door import handshake, reception
from mpsctl.front_door.bounds import Bounds, connections_that_fit
from mpsctl.front_door.judge import Visitor


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    yield from door_world.made(root)


@pytest.fixture
def small(root: Path) -> Iterator[World]:
    """Eight connections in all, five of a user."""
    yield from door_world.made(root, Bounds(connections=8, connections_of_a_user=5))


def test_who_says_nothing_yet_is_greeted(world: World) -> None:
    assert world.greeted().heard == [GREETING]
    assert world.daemon.accepted == 0


def test_few_are_accepted_at_a_time_and_the_rest_waits_in_the_backlog(world: World) -> None:
    clients = [world.client() for _ in range(40)]
    greeted = []
    for _ in range(3):
        world.step()
        greeted.append(sum(one.heard == [GREETING] for one in clients))
    assert greeted == [16, 32, 40]


def test_each_is_greeted_before_anything_else_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[list[bytes]] = []
    peer = handshake.peer

    def looked(connection: socket.socket) -> handshake.Credentials:
        client.step()
        heard.append(list(client.heard))
        return peer(connection)

    monkeypatch.setattr(handshake, "peer", looked)
    client = world.client()
    world.step()
    assert heard == [[GREETING]]


def test_a_visitor_is_who_the_kernel_says(world: World) -> None:
    process = world.visitor_process(uid=65534)
    visitor = world.judge.visitors[0]
    assert (visitor.pid, visitor.uid, visitor.gid) == (process.pid, 65534, 65534)
    assert visitor.messages == (CREDENTIALS, CUDA)
    assert visitor.started_at > 0
    assert visitor.since_s == world.now_s


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"OUTBCRED"], "not_a_client"),
        ([b"OUTBHELL\0"], "not_a_client"),
        ([CUDA], "not_a_client"),
        ([CREDENTIALS, b"\0\0\0\0"], "not_a_client"),
        ([CREDENTIALS, b"\1\0\0\0"], "not_a_client"),
        ([CREDENTIALS, b"\3\0\0\0"], "debugged"),
        ([CREDENTIALS, b"\4\0\0\0"], "not_a_client"),
        ([CREDENTIALS, b"\5\0\0\0"], "not_a_client"),
        ([CREDENTIALS, b"\2\0\0"], "not_a_client"),
        ([CREDENTIALS, CUDA + b"\0"], "not_a_client"),
        ([CREDENTIALS, CREDENTIALS], "not_a_client"),
        ([b""], "not_a_client"),
        ([b"OUTBCRED\0" * 1000], "truncated"),
    ],
)
def test_whoever_says_something_else_is_turned_away(world: World, messages: list[bytes], reason: str) -> None:
    client = world.greeted().say(*messages)
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("turned_away", os.getuid(), reason, 1)]
    assert world.judge.visitors == []
    assert world.daemon.accepted == 0


@pytest.mark.parametrize("foreign", [(1, 0), (os.getpid(), 65534), (1, 65534)])
@pytest.mark.parametrize("at", [0, 1])
def test_foreign_credentials_are_refused(world: World, foreign: tuple[int, int], at: int) -> None:
    client = world.greeted()
    for number, message in enumerate((CREDENTIALS, CUDA)):
        if number < at:
            client.say(message)
        elif number == at:
            client.say(message, ancillary=[credentials(*foreign, os.getgid())])
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("turned_away", os.getuid(), "credentials", 1)]


def test_the_kernel_names_who_sends_no_credentials(world: World) -> None:
    world.greeted().say(CREDENTIALS, CUDA, ancillary=[])
    world.until(lambda: world.judge.visitors)
    assert world.judge.visitors[0].pid == os.getpid()


@pytest.mark.parametrize("count", [1, 100])
def test_descriptors_of_a_client_are_never_received(world: World, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As on a kernel before Linux 6.16, which lets a client send some."""
    monkeypatch.setattr(handshake, "expect_credentials", _let_descriptors_through)
    _let_descriptors_through(world.listener)
    client = world.greeted()
    before = open_descriptors()
    pipes = [os.pipe() for _ in range(count)]
    rights = b"".join(struct.pack("=ii", *pipe) for pipe in pipes)
    own = credentials(os.getpid(), os.getuid(), os.getgid())
    client.say(CREDENTIALS, ancillary=[own, (socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for descriptor in (one for pipe in pipes for one in pipe):
        os.close(descriptor)
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("turned_away", os.getuid(), "truncated", 1)]
    assert open_descriptors() == before - 1  # the door's end of the connection


def test_where_the_kernel_can_it_takes_no_descriptors_from_a_client(world: World) -> None:
    """The last one of a file that is dropped can block whoever drops it."""
    client = world.greeted()
    own = credentials(os.getpid(), os.getuid(), os.getgid())
    sent: Ancillary = [own, (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", 0))]
    try:
        client.connection.getsockopt(socket.SOL_SOCKET, handshake._SO_PASSRIGHTS)
    except OSError:
        client.say(CREDENTIALS, ancillary=sent)
        world.until(lambda: client.ended)
        assert client.refused
    else:  # Linux 6.16
        with pytest.raises(PermissionError):
            client.say(CREDENTIALS, ancillary=sent)


def _let_descriptors_through(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, handshake._SO_PASSRIGHTS, 1)


def test_fifty_who_say_nothing_hold_up_nobody(world: World) -> None:
    world.judge.let_in()
    silent = [world.greeted() for _ in range(50)]
    client = world.greeted().introduce()
    world.until(lambda: len(client.heard) == 2)
    assert not any(one.ended for one in silent)


@pytest.mark.parametrize("said", [[], [CREDENTIALS]])
def test_who_does_not_say_enough_in_time_is_turned_away(world: World, said: list[bytes]) -> None:
    silent = world.greeted().say(*said)
    world.rounds()
    world.passes(world.bounds.silent_s - 0.1)
    later = world.greeted()
    assert not silent.ended
    world.passes(0.1)
    assert silent.refused
    assert not later.ended
    assert world.judge.told == [("turned_away", os.getuid(), "silent", 1)]


@pytest.mark.parametrize("said", [[], [CREDENTIALS]])
def test_who_closes_before_it_said_all_is_forgotten(world: World, said: list[bytes]) -> None:
    before = open_descriptors()
    world.greeted().say(*said).close()
    world.rounds()
    assert open_descriptors() == before
    world.passes(world.bounds.silent_s + 1)
    assert world.judge.told == []


def test_who_closed_before_it_was_accepted_is_forgotten(world: World) -> None:
    before = open_descriptors()
    world.client().close()
    world.rounds()
    assert open_descriptors() == before
    assert world.judge.told == []
    assert world.greeted().heard == [GREETING]


def test_a_user_has_no_more_than_his_share_and_leaves_room_for_others(small: World) -> None:
    """Those of user 65534 who say nothing count as well."""
    theirs = small.process(uid=65534, connections=30, silent=True)
    small.until(lambda: theirs.printed)
    small.rounds()
    assert sum(one[0] == "turned_away" for one in small.judge.told) == 3
    mine = small.visitor()
    assert mine.heard == [GREETING]
    assert not mine.ended


def test_a_flood_is_told_together(small: World) -> None:
    theirs = small.process(uid=65534, connections=100, silent=True)
    small.until(lambda: theirs.printed)
    small.rounds()
    assert small.judge.told == [("turned_away", 65534, "too_many_of_user", 1)] * 3
    small.judge.told.clear()
    small.passes(small.bounds.told_each_s)
    assert ("turned_away", 65534, "too_many_of_user", 92) in small.judge.told


def test_what_was_not_told_yet_is_told_at_the_end(small: World) -> None:
    clients = [small.client() for _ in range(10)]
    small.until(lambda: all(one.heard for one in clients))
    small.stop.request(15)
    small.until(lambda: not small.runs)
    assert small.judge.told == [("turned_away", os.getuid(), "too_many_of_user", 1)] * 3 + [
        ("turned_away", os.getuid(), "too_many_of_user", 2)
    ]


def test_who_is_one_too_many_is_greeted_and_closed_and_a_place_is_free_again_when_one_goes(small: World) -> None:
    clients = [small.greeted() for _ in range(5)]
    surplus = small.client()
    small.until(lambda: surplus.ended)
    assert surplus.refused
    clients[0].close()
    small.rounds()
    next_one = small.greeted()
    small.rounds()
    assert not next_one.ended


def test_there_is_an_end_to_all_users_connections(small: World) -> None:
    first = small.process(uid=65534, connections=4, silent=True)
    small.until(lambda: first.printed)
    mine = [small.greeted() for _ in range(4)]
    small.rounds()
    surplus = small.client()
    small.until(lambda: surplus.ended)
    assert surplus.refused
    assert not any(one.ended for one in mine)
    assert small.judge.told == [("turned_away", os.getuid(), "too_many", 1)]


def _comes(small: World, process: door_world.Process, said: bytes = b"") -> None:
    small.until(lambda: process.printed and said in process.printed)
    small.rounds()


@pytest.mark.parametrize("silent", [True, False])
def test_users_who_have_all_places_make_room_for_each_other_user(small: World, silent: bool) -> None:
    """Eight places of three users; then five more users come, one after the other, and then a sixth."""
    for uid, connections in ((65001, 3), (65002, 3), (65003, 2)):
        for _ in range(1 if silent else connections):
            _comes(small, small.process(uid, connections if silent else 1, silent))
    assert small.judge.told == []
    for uid in range(65004, 65009):
        newcomer = small.visitor_process(uid)
        assert b"done" not in newcomer.printed
        assert len(small.judge.told) == uid - 65003, "each takes one place"
    assert {one[0] for one in small.judge.told} == {"turned_away" if silent else "refused"}
    last = small.process(65009)
    small.until(lambda: small.told("turned_away", 65009, "too_many", 1))
    assert not any(small.told("turned_away", uid, "made_room", 1) for uid in range(65004, 65010))
    last.kill()


def test_no_connection_of_a_process_that_came_in_before_makes_room(small: World) -> None:
    for _ in range(4):
        small.visitor_process(65001)
        small.visitor_process(65002)
    first, second, third, *others = sorted(one.number for one in small.judge.visitors if one.uid == 65001)
    small.judge.known.update({first, third, *others})
    small.visitor_process(65003)
    assert small.judge.told == [("refused", second, "made_room")]
    small.judge.known.update(one.number for one in small.judge.visitors)
    small.process(65004)
    small.until(lambda: small.told("turned_away", 65004, "too_many", 1))


def test_who_is_just_passed_on_makes_no_room(small: World) -> None:
    """Nobody is judged meanwhile."""
    small.daemon.greets = False
    small.judge.let_in()
    passed_on = small.visitor_process(65001)
    small.until(lambda: small.daemon.accepted)
    for uid in (*[65001] * 4, *[65002] * 3, *range(65003, 65008)):
        _comes(small, small.process(uid), b"introduced")
    (number,) = [one.number for one in small.judge.visitors if one.pid == passed_on.pid]
    made_room = [one[1] for one in small.judge.told if one[-1] == "made_room"]
    assert len(made_room) == 5
    assert number not in made_room


def test_the_subordinate_ids_of_a_person_are_one_holder(
    small: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = root / "subuid"
    table.write_text("root:60000:1000\nsomebody:65000:4\n")
    monkeypatch.setattr(reception, "SubordinateIds", lambda: SubordinateIds(table))
    small.reopen()
    for uid in (65000, 65001, 65002, 65003, 65000):
        small.visitor_process(uid)
    small.process(65003)
    small.until(lambda: small.told("turned_away", 65003, "too_many_of_user", 1))
    for uid in (60000, 60001, 65004):  # root's are of different people
        small.visitor_process(uid)
    assert len(small.judge.told) == 1


def test_no_more_connections_than_this_process_may_have_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(264, hard), hard))
    try:
        assert connections_that_fit(768) == 100
        assert connections_that_fit(5) == 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_descriptor_clients_wait_in_the_backlog(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(20):
            world.door.step()
        client.step()
        assert (client.heard, client.ended) == ([], False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    world.rounds()
    assert client.heard == []  # it is not tried again before its time: the listener is readable all along
    world.passes(world.bounds.accept_pause_s)
    assert client.heard == [GREETING]


def test_a_client_that_ended_before_it_was_heard_is_no_visitor(world: World) -> None:
    process = world.process(silent=True)
    world.until(lambda: process.printed)
    process.go_on()
    while b"introduced" not in process.printed:  # and the door does not listen meanwhile
        process.step()
    process.kill()
    world.rounds()
    assert world.judge.visitors == []
    assert world.judge.told == []


@pytest.mark.parametrize("kernel_names_the_process", [True, False])
def test_a_visitor_is_known_by_its_process(
    world: World, monkeypatch: pytest.MonkeyPatch, kernel_names_the_process: bool
) -> None:
    """By the connection (Linux 6.5), or by its pid."""
    if not kernel_names_the_process:
        monkeypatch.setattr(handshake, "_SO_PEERPIDFD", 9999)
    process = world.visitor_process(uid=65534)
    visitor = world.judge.visitors[0]
    assert visitor.pidfd is not None
    assert not handshake.has_ended(visitor.pidfd)
    process.kill()
    world.until(lambda: world.told("gave_up", visitor.number))


def test_a_host_without_pidfds_hears_by_the_connection_that_a_client_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_SO_PEERPIDFD", 9999)

    def missing(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    process = world.visitor_process()
    visitor: Visitor = world.judge.visitors[0]
    assert visitor.pidfd is None
    process.kill()
    world.until(lambda: world.told("gave_up", visitor.number))


def test_what_a_client_sent_before_the_greeting_does_not_take_the_greeting_from_it(small: World) -> None:
    """The kernel gives ECONNRESET in place of what was said, where a connection is closed that has unread messages."""
    for _ in range(5):
        small.greeted()
    surplus: Client = small.client().introduce()
    small.until(lambda: surplus.ended)
    assert surplus.refused
