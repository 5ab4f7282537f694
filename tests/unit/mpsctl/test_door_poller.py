"""An event reaches only the one for whom it happened."""

from __future__ import annotations

import os
import socket

import pytest

from mpsctl.front_door.poller import Poller, Watch


@pytest.fixture
def poller() -> Poller:
    return Poller()


def test_a_number_that_is_used_again_within_a_round_does_not_hit_its_next_owner(poller: Poller) -> None:
    """Both are readable in one round. The first to be seen to closes the other, whose number goes to a third."""
    first, its_end = socket.socketpair()
    second, second_end = socket.socketpair()
    pairs = {first: its_end, second: second_end}
    watches: dict[socket.socket, Watch] = {}
    seen: list[str] = []
    third: list[int] = []
    read, write = os.pipe()

    def act(mine: socket.socket, other: socket.socket) -> None:
        seen.append("one of the first two")
        number = other.fileno()
        poller.forget(watches[other])
        other.close()
        third.append(os.dup2(read, number))
        poller.watch(number, lambda: seen.append("the third"))
        mine.recv(1)

    watches[first] = poller.watch(first.fileno(), lambda: act(first, second))
    watches[second] = poller.watch(second.fileno(), lambda: act(second, first))
    for end in pairs.values():
        end.send(b"!")
    poller.round(0)
    poller.round(0)
    assert seen == ["one of the first two"]
    os.write(write, b"!")
    poller.round(0)
    assert seen == ["one of the first two", "the third"]
    for descriptor in (*third, read, write):
        os.close(descriptor)
    for one in (first, second, its_end, second_end):
        one.close()
    poller.close()


def test_to_forget_twice_forgets_once(poller: Poller) -> None:
    read, write = os.pipe()
    watch = poller.watch(read, lambda: None)
    poller.forget(watch)
    again: list[str] = []
    poller.watch(read, lambda: again.append("heard"))
    poller.forget(watch)
    os.write(write, b"!")
    poller.round(0)
    assert again == ["heard"]
    os.close(read)
    os.close(write)
    poller.close()
