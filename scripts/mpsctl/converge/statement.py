"""What a step does, as data. Sentences are made of it on the controller alone: plugin_utils/mps_role/summary."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional

from mpsctl.model.instance import Instance
from mpsctl.model.setting import Setting
from mpsctl.model.settings import BY_FORMER_KEY, SETTINGS

PROGRAM_INSTALLED, PROGRAM_REMOVED = "program-installed", "program-removed"
FILE_WRITTEN, FILE_REMOVED, REMAINS_REMOVED = "file-written", "file-removed", "remains-removed"
INSTANCE_WRITTEN, INSTANCE_REMOVED, SETTING = "instance-written", "instance-removed", "setting"
ENABLED, STARTED, RESTARTED, RELOADED, STOPPED = "enabled", "started", "restarted", "reloaded", "stopped"
SYSTEMD_RELOADED = "systemd-reloaded"
DRAINED = "drained"
COMPUTE_MODE = "compute-mode"
DOOR_OPENED, DOOR_REMOVED = "front-door-opened", "front-door-removed"
POLICY_LOADED, POLICY_REMOVED = "selinux-module-loaded", "selinux-module-removed"
UNDRAINED, REBOOTED, PACKAGE_INSTALLED = "undrained", "rebooted", "package-installed"
"""What is no step of a plan: the controller alone says it."""

WHATS = (
    *(PACKAGE_INSTALLED, PROGRAM_INSTALLED, PROGRAM_REMOVED, FILE_WRITTEN, FILE_REMOVED, REMAINS_REMOVED),
    *(INSTANCE_WRITTEN, INSTANCE_REMOVED, SETTING, ENABLED, STARTED, RESTARTED, RELOADED, STOPPED, SYSTEMD_RELOADED),
    *(DRAINED, UNDRAINED, REBOOTED, COMPUTE_MODE, DOOR_OPENED, DOOR_REMOVED, POLICY_LOADED, POLICY_REMOVED),
)
"""Every word that ``Statement.what`` may be."""


@dataclass(frozen=True)
class Statement:
    """``what`` is done, a word of ``WHATS``, to an instance, a GPU (by its index), or what has a ``name``: a unit, a
    file, or a setting (its variable without the role's prefix). ``before`` and ``after`` are values as a file has them,
    or modes; None is no value. ``count`` is how many clients are concerned."""

    what: str
    instance: Optional[str] = None
    gpu: Optional[int] = None
    name: Optional[str] = None
    before: Optional[str] = None
    after: Optional[str] = None
    count: Optional[int] = None

    def as_json(self) -> dict[str, Any]:
        """What is said; what is not, is left out."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        of_values = self.what in (SETTING, COMPUTE_MODE)
        return {key: value for key, value in found.items() if value is not None or (of_values and key in _VALUES)}


_VALUES = ("before", "after")


def of_unit(what: str, unit: str, instance: Optional[str]) -> Statement:
    """What is done to a unit: an instance's by its name alone."""
    return Statement(what, instance=instance) if instance is not None else Statement(what, name=unit)


def changes(name: str, former: Instance, text: str, desired: Instance, desired_text: str) -> tuple[Statement, ...]:
    """The settings in which two desired states of an instance differ, by the texts of their files."""
    before, after = _values(text), _values(desired_text)
    return tuple(
        Statement(SETTING, name, name=setting.name, before=_told(setting, before), after=_told(setting, after))
        for setting in SETTINGS
        if setting.field is not None and getattr(former, setting.field) != getattr(desired, setting.field)
    )


def _values(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            key = key.strip()
            found[str(BY_FORMER_KEY[key].key) if key in BY_FORMER_KEY else key] = value.strip()
    return found


def _told(setting: Setting, values: Mapping[str, str]) -> Optional[str]:
    """A setting's value; a default that stands in no file is one too."""
    found = values.get(str(setting.key))
    if found is not None or setting.default is None or not setting.null_refused:
        return found
    return {True: "yes", False: "no"}[bool(setting.default)] if setting.type == "bool" else str(setting.default)
