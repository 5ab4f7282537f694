"""What is desired of a host, as the role sends it."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, TypeVar

from mpsctl.model.checked_values import DRAIN_TIMEOUT_S, REFUSE, check_on_clients, check_timeout_s
from mpsctl.model.client_unit import ClientUnit, check_clients
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted

FORMAT = 2
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9@_.-]{0,199}\.[a-z]+")
T = TypeVar("T")


@dataclass(frozen=True)
class File:
    """A file that is desired on the host."""

    path: Path
    content: str
    mode: int = 0o644


@dataclass(frozen=True)
class Request:
    """What is desired of a host: files that belong to no instance, and the instances' files.

    With ``instance_per_gpu`` there is one instance for each GPU, named by its index, and the text is the
    file of each (``%i`` stands for the name). ``atomic`` lets only changed limits through, and puts the host
    back to what it had where they do not come into force.
    """

    files: tuple[File, ...]
    instances: tuple[tuple[str, str], ...]
    instance_per_gpu: Optional[str] = None
    atomic: bool = False
    units: tuple[str, ...] = ()
    """units beside the instances' own that are to be enabled and active, such as timers"""
    on_clients: str = REFUSE
    """what becomes of a step that would end clients: REFUSE, WAIT for ``drain_timeout_s``, or TERMINATE after it"""
    drain_timeout_s: int = DRAIN_TIMEOUT_S
    selinux_module: Optional[bytes] = None
    """the SELinux module that is to be loaded where the host has SELinux; None: none, and one of ours goes"""
    cdi: bool = False
    """whether container engines are told of the instances (CDI); where they are not, a file of ours goes"""
    remove: bool = False
    """everything of ours is to go instead"""
    clients: tuple[ClientUnit, ...] = ()
    """units that are wired to an instance; drop-ins of ours of other units go"""

    @classmethod
    def from_json(cls, data: Any) -> Request:
        """:raises BadValue: if the request is not of this format, or says nothing that can be done with clients."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or isinstance(data["format"], (bool, float)):
            raise _not_understood("format", None if not isinstance(data, dict) else data.get("format"), str(FORMAT))
        files = tuple(_file(entry) for entry in _entries(data, "files", required=True))
        instances = tuple(
            (_text(entry, "name", "instances"), _text(entry, "conf", "instances"))
            for entry in _entries(data, "instances")
        )
        template = data.get("instance_per_gpu")
        return cls(
            files,
            instances,
            None if template is None else _text(data, "instance_per_gpu"),
            _flag(data, "atomic"),
            _units(data),
            _checked(data, "on_clients", check_on_clients, REFUSE),
            _checked(data, "drain_timeout_s", check_timeout_s, DRAIN_TIMEOUT_S),
            _module(data),
            _flag(data, "cdi"),
            _flag(data, "remove"),
            _checked(data, "clients", check_clients, ()),
        )


def parse(text: str) -> Any:
    """A request's JSON.

    :raises BadValue: if it is none, has a key twice or a number that is none, or is nested without end.
    """
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else quoted(str(error))
        raise BadValue(f"no JSON ({said})", "a request on standard input", "see docs/reconcile.md") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} twice")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} for a number")


def _not_understood(key: str, value: object, expected: str) -> BadValue:
    """The refusal of a request that no role of this release sends."""
    return BadValue(
        f"a request that is not of format {FORMAT} ({key} is {quoted(value)})",
        expected,
        "use a role and a program of the same release",
        key,
    )


def _entries(data: Mapping[str, Any], key: str, required: bool = False) -> list[Mapping[str, Any]]:
    found = data.get(key)
    if found is None and not required:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise _not_understood(key, found, "a list of objects")
    return found


def _text(entry: Mapping[str, Any], key: str, of: str = "") -> str:
    """A text that a file can hold: JSON knows halves of characters, and a file's name has no NUL."""
    value = entry.get(key)
    place = f"{of}.{key}" if of else key
    if not isinstance(value, str):
        raise _not_understood(place, value, "a text")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _not_understood(place, value, "a text of whole characters") from None
    if "\0" in value:
        raise _not_understood(place, value, "a text without NUL")
    return value


def _file(entry: Mapping[str, Any]) -> File:
    path, mode = _text(entry, "path", "files"), entry.get("mode", "0644")
    if not path.startswith("/") or ".." in path.split("/"):
        raise _not_understood("files.path", path, "an absolute path without '..'")
    if not isinstance(mode, str) or not re.fullmatch(r"0?[0-7][0-7]{2}", mode):
        raise _not_understood("files.mode", mode, "a mode like 0644")
    return File(Path(path), _text(entry, "content", "files"), int(mode, 8))


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise _not_understood(key, value, "true or false")
    return value


def _module(data: Mapping[str, Any]) -> Optional[bytes]:
    if data.get("selinux_module") is None:
        return None
    text = _text(data, "selinux_module")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _not_understood("selinux_module", text, "base64") from None


def _units(data: Mapping[str, Any]) -> tuple[str, ...]:
    found = data.get("units")
    if found is not None and not isinstance(found, list):
        raise _not_understood("units", found, "a list of names")
    for name in found or ():
        if not isinstance(name, str) or not _UNIT.fullmatch(name):
            raise _not_understood("units", name, "the name of a unit")
    return tuple(found or ())


def _checked(data: Mapping[str, Any], key: str, check: Callable[[object], T], default: T) -> T:
    try:
        return check(data[key]) if key in data else default
    except BadValue as error:
        raise error.named(key, f"mps_{key}") from None
