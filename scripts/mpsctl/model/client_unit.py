"""Units of systemd whose processes are clients of an instance: their names, and what is desired of each."""

from __future__ import annotations

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted
from mpsctl.model.pattern import Pattern

_UNIT = Pattern(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]{0,239}\.(?:service|scope|slice)")


def check_unit(value: object) -> str:
    """The whole name of a unit that can have processes.

    :raises BadValue: otherwise.
    """
    if not isinstance(value, str) or not _UNIT.fullmatch(value):
        raise BadValue(quoted(value), "the whole name of a unit", "write for example api.service")
    return value
