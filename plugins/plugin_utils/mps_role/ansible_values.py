"""The role's variables of one host as plain values: templates done, Ansible's own types stripped, former names told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Container, Mapping, Optional

from . import variables  # first: it makes mpsctl importable

from mpsctl.model.foreign import shown, written  # isort: skip
from mpsctl.model.setting import PREFIX  # isort: skip
from mpsctl.model.settings import BY_VARIABLE  # isort: skip

_MOST_OF_FAILURE = 500


@dataclass
class Read:
    """The variables by their present names (defaults where a host has none), a line for each thing that is wrong with
    how they are given, and a line for each that is given by its former name."""

    values: dict[str, Any] = field(default_factory=lambda: variables.defaults())
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def of(
    host_vars: Mapping[str, Any],
    template: Callable[[Any], Any] = lambda value: value,
    given: Optional[Container[str]] = None,
) -> Read:
    """The role's variables of one host.

    ``given`` are the names that somebody set, where ``host_vars`` holds the role's defaults as well; None is all.
    """
    read = Read()
    for name in [*read.values, *variables.FORMER]:
        if name not in host_vars:
            continue
        try:
            value = _typed(name, plain(template(host_vars[name])))
        except Exception as error:  # templates of users may fail in any way; each becomes one line
            said = shown(" ".join(written(error).split()), _MOST_OF_FAILURE)
            read.problems.append(f"{name}: found a template that fails, expected a value; {said}")
            continue
        if name in variables.FORMER:
            present = variables.FORMER[name][0].variable
            read.warnings.append(variables.former_name(name, present))
            both = present in (host_vars if given is None else given) or read.values[present] != _default(present)
            if both and written(read.values[present]) != written(value):  # `-e` makes a text of a number
                read.problems.append(variables.two_values(present, read.values[present], name, value))
            else:
                read.values[present] = value
        else:
            read.values[name] = value
    instances = f"{PREFIX}instances"
    read.values[instances], warnings, problems = variables.rename_own(read.values[instances])
    read.warnings += warnings
    read.problems += problems
    return read


def _default(name: str) -> Any:
    return BY_VARIABLE[name].default


def _typed(name: str, value: Any) -> Any:
    """What `-e mps_package=true` means: everything given in that way is a text."""
    if name == f"{PREFIX}package" and isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.lower(), value)
    return value


def plain(value: Any) -> Any:
    """The value in Python's own types; Ansible hands out subclasses that template and tag on the way."""
    if isinstance(value, Mapping):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value[:] + "" if isinstance(value, str) else value
