"""What is desired of a host, as the role sends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, TypeVar

from mpsctl.model.checked_values import DRAIN_TIMEOUT_S, REFUSE, check_on_clients, check_timeout_s
from mpsctl.model.errors import BadValue

FORMAT = 2
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
    remove: bool = False
    """everything of ours is to go instead"""

    @classmethod
    def from_json(cls, data: Any) -> Request:
        """:raises BadValue: if the request is not of this format, or says nothing that can be done with clients."""
        try:
            if data["format"] != FORMAT:
                raise ValueError
            listed = tuple(
                File(Path(entry["path"]), str(entry["content"]), int(str(entry.get("mode", "0644")), 8))
                for entry in data["files"]
            )
            instances = tuple((str(entry["name"]), str(entry["conf"])) for entry in data.get("instances") or ())
            template = data.get("instance_per_gpu")
            units = tuple(str(name) for name in data.get("units") or ())
            per_gpu = None if template is None else str(template)
            atomic, remove = data.get("atomic") is True, data.get("remove") is True
            policy = _checked(data, "on_clients", check_on_clients, REFUSE)
            timeout_s = _checked(data, "drain_timeout_s", check_timeout_s, DRAIN_TIMEOUT_S)
            return cls(listed, instances, per_gpu, atomic, units, policy, timeout_s, remove)
        except (KeyError, TypeError, ValueError):
            raise BadValue(
                f"a request that is not of format {FORMAT}",
                "a JSON object with format, files and instances",
                "use a role and a program of the same release",
            ) from None


def _checked(data: Mapping[str, Any], key: str, check: Callable[[object], T], default: T) -> T:
    try:
        return check(data[key]) if key in data else default
    except BadValue as error:
        raise error.named(key, f"mps_{key}") from None
