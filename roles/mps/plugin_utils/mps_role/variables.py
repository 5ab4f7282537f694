"""The role's variables of one host: which there are, and what is wrong with them.

Names and types stand in meta/argument_specs.yml; what a value may be is known to mpsctl.model.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import Any, Callable, Iterable, Mapping

import yaml

from . import project  # first: it makes mpsctl importable

from mpsctl.model import fit  # isort: skip
from mpsctl.model import instance as instances  # isort: skip
from mpsctl.model import quantity  # isort: skip
from mpsctl.model.errors import BadValue  # isort: skip

PREFIX = "mps_"

_WORDS = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "str": "a text",
}

_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "device_memory_limit": quantity.parse,
    "active_thread_percentage": instances.check_thread_percentage,
    "client_priority": instances.check_client_priority,
    "expected_clients": instances.check_expected_clients,
    "compute_mode": instances.check_compute_mode,
    "when_down": instances.check_when_down,
    "multi_user": instances.check_multi_user,
    "server_user": instances.check_server_user,
    "group": instances.check_group,
    "driver_timeout_s": instances.check_timeout_s,
    "stop_timeout_s": instances.check_timeout_s,
    "limit_bypass": instances.check_limit_bypass,
    "limit_bypass_grace_s": instances.check_timeout_s,
    "on_clients": instances.check_on_clients,
    "drain_timeout_s": instances.check_timeout_s,
    "distributed_jobs": instances.check_distributed_jobs,
    "unresponsive_daemon": instances.check_unresponsive_daemon,
}
"""By the variable's name without the prefix, which is the name of an instance's own value as well."""

_MANAGED = (
    "when_down",
    "multi_user",
    "pipe_root",
    "driver_timeout_s",
    "stop_timeout_s",
    "limit_bypass",
    "limit_bypass_grace_s",
    "on_clients",
    "drain_timeout_s",
    "distributed_jobs",
    "unresponsive_daemon",
    "package",
    "serial",
)
"""What has no meaning as null."""

OVERRIDES = (
    "device_memory_limit",
    "active_thread_percentage",
    "client_priority",
    "expected_clients",
    "compute_mode",
    "when_down",
    "multi_user",
    "server_user",
)
"""What an instance may have of its own."""


@functools.lru_cache(maxsize=1)
def spec() -> Mapping[str, Any]:
    """The options of the role's main entry point."""
    text = (project.ROLE / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    options: Mapping[str, Any] = yaml.load(text, Loader=_loader())["argument_specs"]["main"]["options"]
    return options


@functools.lru_cache(maxsize=1)
def defaults() -> Mapping[str, Any]:
    """The role's defaults."""
    text = (project.ROLE / "defaults" / "main.yml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.load(text, Loader=_loader())
    return found


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def unknown(names: Iterable[str]) -> list[str]:
    """A line for each name with the role's prefix that is no variable of the role."""
    found = []
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in spec():
            near = difflib.get_close_matches(name, spec(), 1)
            remedy = f"did you mean {near[0]}?" if near else "see roles/mps/README.md, or rename a variable of yours"
            found.append(f"{name}: found an unknown variable, expected one of the role mps; {remedy}")
    return found


def problems(values: Mapping[str, Any]) -> list[str]:
    """A line for everything that is wrong with a host's variables, beginning with the variable's name.

    ``values`` holds all variables of the role, ready: no templates in them.
    """
    found = []
    for name, value in values.items():
        key = name[len(PREFIX) :]
        if key == "instances":
            found.extend(_instance_problems(value))
        elif value is None:
            if key in _MANAGED:
                found.append(f"{name}: found null, expected a value; remove the line to get {defaults()[name]!r}")
        elif key in _CHECKS:
            found.extend(_refusal(name, _CHECKS[key], value))
        elif key == "package":
            found.extend(_package_problems(name, value))
        elif key == "serial":
            found.extend(_serial_problems(name, value))
    return found + _fit_problems(values) + _pipe_problems(values)


def _refusal(name: str, check: Callable[[Any], object], value: Any) -> list[str]:
    try:
        check(value)
    except BadValue as error:
        return [f"{name}: {error}"]
    return []


def _instance_problems(value: Any) -> list[str]:
    name = f"{PREFIX}instances"
    if value is None:
        return []
    if not isinstance(value, list) or not value:
        return [f"{name}: found {value!r}, expected a list of instances; write null for one instance per GPU"]
    found = [line for entry in value for line in _entry_problems(name, entry)]
    if found:
        return found
    try:
        instances.check_gpus(
            instances.Instance(
                name=entry["name"],
                gpus=instances.check_gpu_list(" ".join(str(gpu) for gpu in entry["gpus"])),
                pipe_directory="/",
            )
            for entry in value
        )
    except BadValue as error:
        return [f"{name}: {error}"]
    return []


def _entry_problems(name: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict) or "name" not in entry:
        return [f"{name}: found {entry!r}, expected an instance; write for example {{name: train, gpus: ['0']}}"]
    place = f"{name}[{entry['name']}]"
    options = spec()[name]["options"]
    found = _refusal(name, instances.check_name, entry["name"])
    for key in sorted(set(entry) - set(options)):
        near = difflib.get_close_matches(str(key), options, 1)
        remedy = f"did you mean {near[0]}?" if near else "remove it"
        found.append(f"{place}: found {key!r}, expected one of {', '.join(options)}; {remedy}")
    gpus = entry.get("gpus")
    if isinstance(gpus, list):
        found.extend(_refusal(place, lambda listed: instances.check_gpu_list(" ".join(map(str, listed))), gpus))
    else:
        found.append(f"{place}: found {gpus!r} for gpus, expected a list of GPUs; write for example gpus: ['0']")
    for key in OVERRIDES:
        if entry.get(key) is not None:
            found.extend(_refusal(f"{place}.{key}", _CHECKS[key], entry[key]))
    return found


def _fit_problems(values: Mapping[str, Any]) -> list[str]:
    """Clients that fit on no GPU, whatever its model: what only the host's GPU tells is refused by its look."""
    entries = values.get(f"{PREFIX}instances")
    owners: list[tuple[str, Mapping[str, Any]]] = [(f"{PREFIX}expected_clients", {})]
    if isinstance(entries, list):
        owners = [(f"{PREFIX}instances[{entry.get('name')}]", entry) for entry in entries if isinstance(entry, dict)]
    found = []
    for place, entry in owners:
        clients, limit = (
            entry[key] if key in entry else values.get(PREFIX + key)
            for key in ("expected_clients", "device_memory_limit")
        )
        try:
            wanted = None if clients is None else instances.check_expected_clients(clients)
            share = None if limit is None else quantity.parse(limit)
        except BadValue:
            continue  # said elsewhere
        found.extend(_refusal(place, lambda pair: fit.refuse_anywhere(*pair), (share, wanted)))
    return found


def _pipe_problems(values: Mapping[str, Any]) -> list[str]:
    root, entries = values.get(f"{PREFIX}pipe_root"), values.get(f"{PREFIX}instances")
    if root is None:
        return []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    good = [str(name) for name in names if not _refusal("", instances.check_name, name)]
    longest = max(good, key=len, default="0")
    return _refusal(f"{PREFIX}pipe_root", lambda text: instances.check_pipe_root(text, longest), root)


def _package_problems(name: str, value: Any) -> list[str]:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._:=-]*", value)):
        return []
    return [f"{name}: found {value!r}, expected true, false or a package's name; write false to install nothing"]


def _serial_problems(name: str, value: Any) -> list[str]:
    for size in value if isinstance(value, list) and value else [value]:
        whole = isinstance(size, int) and not isinstance(size, bool) and size > 0
        text = isinstance(size, str) and re.fullmatch(r"[1-9][0-9]{0,4}|(?:100|[1-9][0-9]?)%", size)
        if not whole and not text:
            expected = "a number of hosts, a percentage up to 100% or a list of these"
            return [f'{name}: found {size!r}, expected {expected}; write for example 5 or "20%"']
    return []


def together(lines_by_host: Mapping[str, Iterable[str]], shown: int = 4) -> list[str]:
    """One line for each problem, behind the hosts that have it."""
    hosts_by_line: dict[str, list[str]] = {}
    for host, lines in lines_by_host.items():
        for line in lines:
            hosts_by_line.setdefault(line, []).append(host)
    found = []
    for line, hosts in hosts_by_line.items():
        more = f" and {len(hosts) - shown} more" if len(hosts) > shown else ""
        found.append(f"{', '.join(hosts[:shown])}{more}: {line}")
    return found
