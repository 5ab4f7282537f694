"""Errors that a person meets: one line that says what was found, what was expected and what to do."""

from __future__ import annotations

from typing import Optional

from mpsctl.model import messages


class MpsctlError(Exception):
    """The base of every error that ends a verb; its text is the one line that is shown."""

    exit_code = 4

    def __str__(self) -> str:
        return messages.said(type(self).__name__, super().__str__())


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

    def __reduce__(self) -> tuple[type[BadValue], tuple[Optional[str], ...]]:
        """A refusal goes from one process to another whole."""
        return type(self), (self.found, self.expected, self.remedy, self.key, self.variable)

    def named(self, key: str, variable: Optional[str]) -> BadValue:
        """The same refusal, with the names under which the value was given."""
        return BadValue(self.found, self.expected, self.remedy, key, variable)


class NotReady(MpsctlError):
    """Something outside that is not there (yet): the driver, a GPU, the control daemon."""

    exit_code = 3


class NotInForce(MpsctlError):
    """What was asked of the control daemon, NVML or systemd does not read back as asked."""

    exit_code = 4
