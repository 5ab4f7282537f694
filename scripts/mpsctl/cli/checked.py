"""Options whose values are checked like the settings of the same kind."""

from __future__ import annotations

from typing import Callable, TypeVar

from mpsctl.model.errors import BadValue

T = TypeVar("T")


def option(name: str, check: Callable[[object], T], value: object) -> T:
    """The value of an option as the function gives it back.

    :raises BadValue: if it is refused; the text names the option.
    """
    try:
        return check(value)
    except BadValue as error:
        raise BadValue(f"{name} {error.found}", error.expected, error.remedy) from None
