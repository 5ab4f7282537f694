"""Loopback addresses for hosts: 127.77.<block>.<10 + number>, one block for each prefix of names."""

from __future__ import annotations

import socket
from typing import Callable, Iterable, Mapping

from mpslab.errors import LabError

MAX_HOSTS = 240
_PORTS = (22, 2277)


def address(block: int, number: int) -> str:
    """The address of a block's host ``number``, counted from 1."""
    return f"127.77.{block}.{10 + number}"


def block_of(address_text: str) -> int:
    """The block that an address lies in."""
    return int(address_text.split(".")[2])


def choose_block(prefix: str, taken: Mapping[str, int], numbers: Iterable[int], usable: Callable[[str], bool]) -> int:
    """The block of a prefix: the one it has, else the first that nobody on the machine listens in.

    :param taken: the blocks of this lab, by prefix.
    :raises LabError: if all are in use.
    """
    if prefix in taken:
        return taken[prefix]
    wanted = list(numbers)
    for block in range(256):
        if block not in taken.values() and all(usable(address(block, number)) for number in wanted):
            return block
    raise LabError("no free addresses in 127.77.0.0/16: other labs of this machine hold them; take one of them down")


def bindable(address_text: str, port: int) -> bool:
    """Whether a host's sshd could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address_text, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def choose_port() -> int:
    """22, as everywhere; another where the machine's own sshd listens on every address."""
    for port in _PORTS:
        if bindable("127.77.255.254", port):
            return port
    raise LabError(f"the ports {_PORTS} are taken on every address of this machine; free one of them")
