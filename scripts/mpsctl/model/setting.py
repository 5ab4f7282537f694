"""What a row of the table of settings says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

PREFIX = "mps_"


@dataclass(frozen=True)
class Former:
    """The names of a setting in an earlier release.

    The role takes the variable for one release, with a warning. The key is always read: files on hosts have it.
    """

    variable: str
    key: Optional[str] = None


@dataclass(frozen=True)
class Setting:
    """One row. ``type`` is Ansible's, ``check`` gives back the value typed or raises BadValue.

    ``null_refused`` is whether null has no meaning; elsewhere it is "not managed" unless ``meaning`` says more.
    ``per_instance`` is whether an entry of mps_instances may have a value of its own, under ``name``.

    ``key``, ``section`` and ``field`` (of ``Instance``) are None where nothing stands in the instance's file.
    ``comment`` is the line above the key there. ``composed`` is whether the key's text is put together from the
    variable and the instance: ``check`` is the key's then. ``default_unwritten`` is whether the default stands in no
    file.
    """

    variable: str
    type: str
    default: object
    meaning: str
    check: Callable[[Any], object]
    null_refused: bool = False
    per_instance: bool = False
    key: Optional[str] = None
    section: Optional[str] = None
    field: Optional[str] = None
    comment: Optional[str] = None
    composed: bool = False
    default_unwritten: bool = False
    formerly: tuple[Former, ...] = ()

    @property
    def name(self) -> str:
        """The variable without the role's prefix: what it is called in an entry of mps_instances."""
        return self.variable[len(PREFIX) :]
