"""Errors that a person meets: one line that says what was found, what was expected and what to do."""

from __future__ import annotations

import errno
from typing import Mapping, Optional

from mpsctl.model import messages

FAULT = 70
"""The exit code of a fault of this program."""
INTERRUPTED = 130
"""After Ctrl-C, as shells have it: 128 and the number of SIGINT."""
NOBODY_READS = 141
"""As a program ends that SIGPIPE ends: what it found is not told by 0."""


class MpsctlError(Exception):
    """The base of every error that ends a verb; its text is the one line that is shown."""

    exit_code = 4

    def __str__(self) -> str:
        return messages.said(type(self).__name__, super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        """An error goes from one process to another whole, whatever its class is made of."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[MpsctlError], arguments: tuple[object, ...], fields: Mapping[str, object]) -> MpsctlError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error


class BadValue(MpsctlError):
    """A value that is refused before anything is changed.

    ``key`` is the name in the instance's file (``DeviceMemoryLimit``), ``variable`` the role's
    variable that sets it (``mps_device_memory_limit``); either may be unknown at the place that raises.
    """

    exit_code = 2

    def __init__(
        self, found: str, expected: str, remedy: str, key: Optional[str] = None, variable: Optional[str] = None
    ) -> None:
        self.found, self.expected, self.remedy = (
            messages.said(variable or key or "value", part) for part in (found, expected, remedy)
        )
        self.key, self.variable = key, variable
        super().__init__(f"found {found}, expected {expected}; {remedy}")

    def named(self, key: str, variable: Optional[str]) -> BadValue:
        """The same refusal, with the names under which the value was given."""
        return BadValue(self.found, self.expected, self.remedy, key, variable)


class DoesNotFit(BadValue):
    """What a GPU of this host cannot hold, or its driver, whatever others can: this host refuses it alone."""


class Unreadable(BadValue):
    """A file that is there and cannot be read for what it should be; ``path`` names it."""

    def __init__(self, path: str, why: str, expected: str = "a file that can be read", remedy: str = "see why") -> None:
        self.path = path
        super().__init__(f"{path}, which {why}", expected, remedy)


class NotAFile(Unreadable):
    """Something else is where a file, or what is ``expected``, belongs; ``what`` is ``a folder``, ``a FIFO`` …"""

    def __init__(self, path: str, what: str, expected: str = "a file") -> None:
        self.what = what
        super().__init__(path, f"is {what}", expected, "move it away")


class TooLarge(Unreadable):
    """A file is larger than the ``most_bytes`` that are read of its kind."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        super().__init__(path, f"is larger than {most_bytes} bytes", "a smaller file", "move it away")


class Untrusted(Unreadable):
    """On the way to a path lies something that others than root can change: ``place``, which ``why`` says of whom."""

    exit_code = 3

    def __init__(self, path: str, place: str, why: str, remedy: str) -> None:
        self.place, self.why = place, why
        way = "" if place == path else f", on the way to {path}"
        super().__init__(
            place,
            f"{why}{way}",
            "what nobody but root can change",
            remedy,
        )


class NotReady(MpsctlError):
    """Something outside that is not there (yet): the driver, a GPU, the control daemon."""

    exit_code = 3


class NotInForce(MpsctlError):
    """What was asked of the control daemon, NVML or systemd does not read back as asked."""

    exit_code = 4


class NoRight(Unreadable):
    """A file may not be read by the user who asks."""

    exit_code = NotReady.exit_code

    def __init__(self, path: str) -> None:
        super().__init__(path, "this user may not read", "a user who may", "run it as root")


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""What a disk says that takes no more."""


def one_line(error: Exception, unnamed: str = "a file") -> str:
    """An error as the one line that is shown; ``unnamed`` is what the system did not name in its own."""
    if isinstance(error, MpsctlError) or not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    name = error.filename or unnamed
    return f"{name} could not be written ({error.strerror})" if error.errno in NO_ROOM else f"{name}: {error.strerror}"
