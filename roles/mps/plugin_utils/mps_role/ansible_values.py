"""The role's variables of one host as plain values: templates done, Ansible's own types stripped."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from . import variables


def of(
    host_vars: Mapping[str, Any], template: Callable[[Any], Any] = lambda value: value
) -> tuple[dict[str, Any], list[str]]:
    """The variables (defaults where a host has none), and a line for each that could not be read."""
    values, problems = dict(variables.defaults()), []
    for name in variables.spec():
        if name not in host_vars:
            continue
        try:
            values[name] = _typed(name, plain(template(host_vars[name])))
        except Exception as error:  # templates of users may fail in any way; each becomes one line
            problems.append(f"{name}: found a template that fails, expected a value; {' '.join(str(error).split())}")
    return values, problems


def _typed(name: str, value: Any) -> Any:
    """What `-e mps_package=true` means: everything given in that way is a text."""
    if name == f"{variables.PREFIX}package" and isinstance(value, str):
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
