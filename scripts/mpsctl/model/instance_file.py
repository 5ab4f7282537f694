"""The file of an instance, ``/etc/mps/<instance>.conf``: how it is read and how it is written.

The file is in systemd's own INI manner. ``%i`` in a value stands for the instance's name. A key that
is absent is not managed: what it had set is taken back, what others set is left as found.
"""

from __future__ import annotations

import configparser
from typing import Mapping

from mpsctl.model import settings
from mpsctl.model.checked_values import check_name
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance, check_together
from mpsctl.model.setting import Setting
from mpsctl.model.settings import BY_FORMER_KEY, BY_KEY, SECTIONS, SETTINGS

_HEAD = """\
# Managed by mps-fleet: written by the role mps, changes by hand are lost.
# The desired state of one MPS instance; `mpsctl status` shows it beside what is in force.
# %i stands for the instance's name. A key that is absent is not managed.
"""


def parse_conf(text: str, name: str) -> Instance:
    """Read an instance's file. Keys by the names of earlier releases are read as well.

    :raises BadValue: naming the key, with the line where the parser tells it.
    """
    check_name(name)
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        interpolation=None,
        empty_lines_in_values=False,
        default_section="",  # none: the parser's own, [DEFAULT], would add its keys to all others unseen
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # configparser's own way
    try:
        parser.read_string(text, source=f"{name}.conf")
    except configparser.Error as error:
        line = " ".join(str(error).split())
        raise BadValue(line, "the sections and keys of an instance's file", "write it anew with the role") from None
    values: dict[str, str] = {}
    written_as: dict[str, str] = {}
    for section in parser.sections():
        if section not in SECTIONS:
            raise BadValue(f"[{section}]", f"one of {', '.join(SECTIONS)}", "correct the section's name", section)
        for written, value in parser.items(section):
            setting = BY_KEY.get(written) or BY_FORMER_KEY.get(written)
            if setting is None or setting.section != section:
                known = ", ".join(str(one.key) for one in settings.of_section(section))
                raise BadValue(f"{written} in [{section}]", f"one of {known}", _meant_key(written), written)
            key, value = str(setting.key), value.replace("%i", name)
            if values.setdefault(key, value) != value:
                raise BadValue(
                    f"{written}={value} and {written_as[key]}={values[key]}, two names of one key",
                    f"{key} alone",
                    "remove the other",
                    key,
                    setting.variable,
                )
            written_as[key] = written
    return from_values(values, name)


def _meant_key(key: str) -> str:
    """What to do about a key that its section does not know."""
    known = BY_KEY.get(key) or BY_FORMER_KEY.get(key)
    if known is not None:
        return f"move it to [{known.section}]"
    import difflib

    near = difflib.get_close_matches(key.lower(), [one.lower() for one in BY_KEY], 1)
    return next((f"did you mean {one}?" for one in BY_KEY if near == [one.lower()]), "remove it")


def from_values(values: Mapping[str, str], name: str) -> Instance:
    """An instance from the file's keys, by their present names.

    :raises BadValue: with ``key`` and ``variable`` set, if a value is refused or a needed key is missing.
    """
    check_name(name)
    fields: dict[str, object] = {}
    for key, setting in BY_KEY.items():
        if key in values:
            fields[str(setting.field)] = _checked(setting, values[key])
        elif setting.composed:  # no instance can do without its GPUs and its directory
            variable = setting.variable
            raise BadValue("no value", f"{key} in the instance's file", f"set {variable}", key, variable)
    instance = Instance(name=name, **fields)  # type: ignore[arg-type]  # each is of its check's type
    check_together(instance)
    return instance


def _checked(setting: Setting, value: str) -> object:
    try:
        return setting.check(value)
    except BadValue as error:
        raise error.named(str(setting.key), setting.variable) from None


def render(values: Mapping[str, object]) -> str:
    """The text of an instance's file.

    ``values`` holds a good value for each key of the file, as the role's variables have it; None where it is not
    managed, and absent from the file. Same values, same text.
    """
    return "\n".join([_HEAD, *(_section(section, values) for section in SECTIONS)])


def _section(section: str, values: Mapping[str, object]) -> str:
    lines = [f"[{section}]"]
    for setting in SETTINGS:
        if setting.section != section or setting.key is None or values[setting.key] is None:
            continue
        value = setting.check(values[setting.key]) if setting.type in ("bool", "dict") else values[setting.key]
        if (setting.default_unwritten and value == setting.default) or (setting.type == "dict" and not value):
            continue
        if setting.comment:
            lines.append(f"# {setting.comment}")
        text = {True: "yes", False: "no"}[bool(value)] if setting.type == "bool" else str(value)
        lines.append(f"{setting.key}={text}")
    return "\n".join(lines) + "\n"
