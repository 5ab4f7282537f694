"""Locks of our own: flock on a file of root's. The kernel drops one with the last process that has it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Callable

from mpsctl.adapters import files, trusted
from mpsctl.model.errors import NotAFile

_PAUSE_S = 0.02
"""Between two looks: most turns take a few milliseconds, and who looks seldom is overtaken."""


class Taken(Exception):
    """Somebody else has the lock, and kept it until the deadline."""


def take(
    path: Path,
    end_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep_s: Callable[[float], None] = time.sleep,
) -> int:
    """Take the lock, making the file; the open file, which is the lock: to close it gives it back.

    The file may be removed by who has the lock: a lock on a file that is no longer the one of that name is none.

    :raises Taken: if it is not free by ``end_s`` on the clock ``now_s``.
    :raises NotAFile: if something else has the lock's name.
    :raises Untrusted: if others can change it, or its folder.
    """
    while True:
        files.make_directory(path.parent)
        trusted.require(path)
        try:
            descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # the directory was removed between the two
        try:
            _wait(descriptor, fcntl.LOCK_EX, end_s, now_s, sleep_s)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)


def wait_until_free(
    path: Path,
    end_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep_s: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until nobody has the lock, without taking it or making its file.

    :raises Taken: if it is not free by ``end_s`` on the clock ``now_s``.
    :raises NotAFile: if something else has the lock's name.
    """
    while True:
        try:
            descriptor = files.open_file(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            _wait(descriptor, fcntl.LOCK_SH, end_s, now_s, sleep_s)
            if _is_still(path, descriptor):
                return
        finally:
            os.close(descriptor)


def is_taken(path: Path) -> bool:
    """Whether somebody has the lock; who may not look is told that somebody has."""
    try:
        wait_until_free(path, time.monotonic())
    except (Taken, PermissionError):
        return True
    except NotAFile:  # nobody can have it
        return False
    return False


def _wait(
    descriptor: int, kind: int, end_s: float, now_s: Callable[[], float], sleep_s: Callable[[float], None]
) -> None:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if now_s() + _PAUSE_S >= end_s:
                raise Taken from None
        sleep_s(_PAUSE_S)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
