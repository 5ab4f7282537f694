"""epoll, by object: an event reaches only the one for whom it happened.

A descriptor's number is given to the next file as soon as it is closed. In a round of several events the first may
close a connection and accept another, which gets its number; the event that is still to come was the former's.
"""

from __future__ import annotations

import select
from typing import Callable

READABLE = select.EPOLLIN | select.EPOLLRDHUP
_MOST_AT_ONCE = 64


class Watch:
    """What is to be done when a descriptor is readable, or its other end is gone."""

    def __init__(self, descriptor: int, act: Callable[[], None]) -> None:
        self.descriptor = descriptor
        self.act = act
        self.kept = True


class Poller:
    """Whoever closes a descriptor forgets its watch first."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}

    def watch(self, descriptor: int, act: Callable[[], None]) -> Watch:
        watch = Watch(descriptor, act)
        self._epoll.register(descriptor, READABLE)
        self._watches[descriptor] = watch
        return watch

    def forget(self, watch: Watch) -> None:
        if watch.kept:
            watch.kept = False
            del self._watches[watch.descriptor]
            self._epoll.unregister(watch.descriptor)

    def round(self, wait_s: float) -> None:
        """Wait until something happens, at most ``wait_s`` seconds (without end if negative), and see to it."""
        events = self._epoll.poll(wait_s, _MOST_AT_ONCE)
        # For whom they happened is settled before the first is seen to.
        for watch in [self._watches[descriptor] for descriptor, _ in events]:
            if watch.kept:
                watch.act()

    def close(self) -> None:
        self._epoll.close()
