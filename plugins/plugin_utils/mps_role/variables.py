"""The role's variables of one host: which there are, and what is wrong with them.

All that is known about them stands in mpsctl.model.settings.
"""

from __future__ import annotations

import difflib
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from . import project  # noqa: F401 (it makes mpsctl importable)

from mpsctl.model import checked_values, fit, quantity  # isort: skip
from mpsctl.model import gpu as gpu_names  # isort: skip
from mpsctl.model import instance as instances  # isort: skip
from mpsctl.model.errors import BadValue  # isort: skip
from mpsctl.model.foreign import quoted, shown, written  # isort: skip
from mpsctl.model.setting import PREFIX, Former, Setting  # isort: skip
from mpsctl.model.settings import BY_VARIABLE, SETTINGS  # isort: skip
from mpsctl.model.shares import check_shares  # isort: skip

OVERRIDES: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS if setting.per_instance}
"""What an instance may have of its own, by its name in an entry of mps_instances."""

FORMER: Mapping[str, tuple[Setting, Former]] = {
    former.variable: (setting, former) for setting in SETTINGS for former in setting.formerly
}
"""The variables by their names in the release before, which are taken for one release."""

OF_THE_RUN = ("mps_serial", "mps_all_or_nothing")
"""What holds for a run as a whole: all its hosts must say the same."""

_OF_AN_ENTRY = ("name", "gpus", *OVERRIDES)


def defaults() -> dict[str, Any]:
    """The role's defaults."""
    return {name: setting.default for name, setting in BY_VARIABLE.items()}


def of_the_run(name: str, value: Any) -> Any:
    """A good value of a variable of ``OF_THE_RUN``, so that equal ones are equal: `-e` makes a text of yes and no."""
    return BY_VARIABLE[name].check(value) if BY_VARIABLE[name].type == "bool" else value


def unknown(names: Iterable[str]) -> list[str]:
    """A line for each name with the role's prefix that is no variable of the role."""
    found = []
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in BY_VARIABLE and name not in FORMER:
            near = difflib.get_close_matches(name, BY_VARIABLE, 1)
            remedy = f"did you mean {near[0]}?" if near else "see roles/mps/README.md, or rename a variable of yours"
            found.append(f"{name}: found an unknown variable, expected one of the role mps; {remedy}")
    return found


def former_name(former: str, present: str) -> str:
    """The warning of a variable that is given by its former name."""
    return f"{former}: found a former name, which the next release no longer takes; write {present}"


def rename_own(entries: Any) -> tuple[Any, list[str], list[str]]:
    """The value of mps_instances with the present names in its entries, its warnings, and what is wrong with it."""
    if not isinstance(entries, list):
        return entries, [], []
    renamed, warnings, found = [], [], []
    for entry in entries:
        if isinstance(entry, dict):
            entry = dict(entry)
            for setting, former in FORMER.values():
                old = former.variable[len(PREFIX) :]
                if setting.per_instance and old in entry:
                    place, value = _place(entry), entry.pop(old)
                    warnings.append(former_name(f"{place}.{old}", setting.name))
                    if entry.setdefault(setting.name, value) != value:
                        found.append(two_values(f"{place}.{setting.name}", entry[setting.name], old, value))
        renamed.append(entry)
    return renamed, warnings, found


def two_values(present: str, value: Any, former: str, other: Any) -> str:
    """The refusal of two values for one variable under its two names."""
    return (
        f"{present}: found {quoted(value)}, and {quoted(other)} by its former name, expected one value; remove {former}"
    )


def problems(values: Mapping[str, Any]) -> list[str]:
    """A line for everything that is wrong with a host's variables, beginning with the variable's name.

    ``values`` holds all variables of the role, ready: no templates in them.
    """
    found = []
    for name, value in values.items():
        setting = BY_VARIABLE[name]
        if value is None and setting.null_refused:
            found.append(_no_null(name, f"remove the line to get {setting.default!r}"))
        elif setting.key == "GPUs":
            found.extend(_instance_problems(value))
        elif value is not None and not setting.composed:
            found.extend(_refusal(name, setting.check, value))
    return found + _fit_problems(values) + _pipe_problems(values) + _together_problems(values)


def _entries(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of mps_instances; an empty one stands for all instances where there is one for each GPU."""
    entries = values.get(f"{PREFIX}instances")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else [{}]


def _of(values: Mapping[str, Any], entry: Mapping[str, Any], setting: Setting) -> Any:
    """The value that an instance has: its own, or the host's."""
    own = setting.per_instance and setting.name in entry
    return entry[setting.name] if own else values.get(setting.variable, setting.default)


def _together_problems(values: Mapping[str, Any]) -> list[str]:
    """What only makes sense together, for each instance. Values that are no good ones are said elsewhere."""
    common, found = _check_together(values, {}), []
    for entry in _entries(values):
        error = _check_together(values, entry)
        if error is None:
            continue
        setting = BY_VARIABLE[str(error.variable)]
        of_all = not entry or not setting.per_instance or (common is not None and str(common) == str(error))
        found.append(f"{setting.variable if of_all else f'{_place(entry)}.{setting.name}'}: {error}")
    return list(dict.fromkeys(found))


def _check_together(values: Mapping[str, Any], entry: Mapping[str, Any]) -> Optional[BadValue]:
    """Why an instance's values are no instance, or None; also where one of them is no good value itself."""
    fields: dict[str, Any] = {"name": "0", "gpus": (), "pipe_directory": "/"}
    for setting in SETTINGS:
        if setting.field is None or setting.composed:
            continue
        value = _of(values, entry, setting)
        try:
            fields[setting.field] = None if value is None else setting.check(value)
        except BadValue:
            return None
        if value is None and setting.null_refused:
            return None
    try:
        instances.check_together(instances.Instance(**fields))
    except BadValue as error:
        return error
    return None


def _no_null(name: str, remedy: str) -> str:
    return f"{name}: found null, expected a value; {remedy}"


def _refusal(name: str, check: Callable[[Any], object], value: Any) -> list[str]:
    try:
        check(value)
    except BadValue as error:
        return [f"{name}: {error}"]
    return []


def _place(entry: Mapping[str, Any]) -> str:
    """An entry of mps_instances, for people."""
    return f"{PREFIX}instances[{shown(written(entry.get('name')))}]"


def _check_gpus(gpus: Sequence[Any]) -> tuple[str, ...]:
    """The list of an entry's GPUs, each a name or an index.

    :raises BadValue: for anything else.
    """
    for gpu in gpus:
        if not isinstance(gpu, str):
            gpu_names.check_reference(written(gpu) if isinstance(gpu, int) else quoted(gpu))
    return checked_values.check_gpu_list(" ".join(map(str, gpus)))


def _instance_problems(value: Any) -> list[str]:
    name = f"{PREFIX}instances"
    if value is None:
        return []
    if not isinstance(value, list) or not value:
        return [f"{name}: found {quoted(value)}, expected a list of instances; write null for one instance per GPU"]
    found = [line for entry in value for line in _entry_problems(name, entry)]
    if found:
        return found
    try:
        instances.check_gpus(
            instances.Instance(
                name=entry["name"],
                gpus=_check_gpus(entry["gpus"]),
                pipe_directory="/",
            )
            for entry in value
        )
    except BadValue as error:
        return [f"{name}: {error}"]
    return []


def _entry_problems(name: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict) or "name" not in entry:
        return [f"{name}: found {quoted(entry)}, expected an instance; write for example {{name: train, gpus: ['0']}}"]
    place = _place(entry)
    found = _refusal(name, checked_values.check_name, entry["name"])
    for key in sorted(set(entry) - set(_OF_AN_ENTRY), key=written):
        near = difflib.get_close_matches(written(key), _OF_AN_ENTRY, 1)
        remedy = f"did you mean {near[0]}?" if near else "remove it"
        found.append(f"{place}: found {quoted(key)}, expected one of {', '.join(_OF_AN_ENTRY)}; {remedy}")
    gpus = entry.get("gpus")
    if isinstance(gpus, list):
        found.extend(_refusal(place, _check_gpus, gpus))
    else:
        found.append(f"{place}: found {quoted(gpus)} for gpus, expected a list of GPUs; write for example gpus: ['0']")
    for key, setting in OVERRIDES.items():
        if entry.get(key) is not None:
            found.extend(_refusal(f"{place}.{key}", setting.check, entry[key]))
        elif key in entry and setting.null_refused:
            found.append(_no_null(f"{place}.{key}", f"remove it to get the value of {setting.variable}"))
    return found


def _fit_problems(values: Mapping[str, Any]) -> list[str]:
    """Clients that fit on no GPU, whatever its model: what only the host's GPU tells is refused by its look."""
    found: list[str] = []
    for entry in _entries(values):
        clients, limit, shares = (
            _of(values, entry, BY_VARIABLE[PREFIX + key])
            for key in ("expected_clients", "device_memory_limit", "shares")
        )
        try:
            expected = None if clients is None else checked_values.check_expected_clients(clients)
            each = None if limit is None else quantity.parse(limit)
            wanted, share = fit.to_fit(expected, None if shares is None else check_shares(shares))
        except BadValue:
            continue  # said elsewhere
        place = _place(entry) if entry else f"{PREFIX}{'expected_clients' if share is None else 'shares'}"
        found.extend(_refusal(place, lambda three: fit.refuse_anywhere(*three), (each, wanted, share)))
    return found


def _pipe_problems(values: Mapping[str, Any]) -> list[str]:
    root, entries = values.get(f"{PREFIX}pipe_root"), values.get(f"{PREFIX}instances")
    if root is None:
        return []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    good = [str(name) for name in names if not _refusal("", checked_values.check_name, name)]
    longest = max(good, key=len, default="0")
    return _refusal(f"{PREFIX}pipe_root", lambda text: checked_values.check_pipe_root(text, longest), root)


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
