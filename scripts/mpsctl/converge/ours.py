"""What on a host is this project's: its files, by their first line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Sequence

from mpsctl.adapters import files, hardware, systemd
from mpsctl.adapters.trusted import WeakPoint
from mpsctl.converge.request import File
from mpsctl.model import names
from mpsctl.model.errors import Unreadable
from mpsctl.model.places import FINGERPRINT

DAEMON_PLACE = "@NVIDIA_CUDA_MPS_CONTROL@"
"""Stands in the unit's template where the path of this host's control daemon belongs."""

LOG_FILTER_PLACE = "@LOG_FILTER@"
"""Stands in the unit's template where this host's systemd, if it can, is told what of the daemon's log it drops."""
LOG_FILTER_SINCE = 253
_LOG_FILTER = (
    "LogFilterPatterns=~^.[0-9: .-]+ Control +[0-9]+. (Accepting connection.*|NEW UI|UI closed|Cmd:get_.*"
    "|[0-9. ]+[MG]?|[A-Z]+|)$"
)
"""What our own questions, and NVIDIA's getters, leave there: each question and each line of its answer."""
_NO_LOG_FILTER = f"# (LogFilterPatterns= needs systemd {LOG_FILTER_SINCE}, this host has an older one.)"

UNIT, DOOR_SOCKET, DOOR_SERVICE = names.UNIT, names.DOOR_SOCKET, names.DOOR_SERVICE
TIMER, HEALTH = names.TIMER, names.HEALTH

USUAL_DAEMON = f"/usr/bin/{hardware.CONTROL_DAEMON}"
"""Shown where the daemon is yet to be installed."""


def is_ours(path: Path) -> bool:
    """Whether a file is this project's, by its first line, of a script by its second; what cannot be read is not."""
    try:
        text = files.read_text(path) or ""
        first, _, rest = text.partition("\n")
        return (rest if first.startswith("#!") else text).startswith(FINGERPRINT)
    except Unreadable:
        return False


def is_others(path: Path) -> bool:
    """Whether something stands there that is not this project's."""
    return path.exists() and not is_ours(path)


def with_binary(file: File) -> File:
    """The file with this host's daemon in it, which distributions keep in many places, and what its systemd can."""
    binary = hardware.binary(hardware.CONTROL_DAEMON) or USUAL_DAEMON
    content = file.content.replace(DAEMON_PLACE, str(binary))
    if LOG_FILTER_PLACE in content:
        version = systemd.version()
        can = version is not None and version >= LOG_FILTER_SINCE
        content = content.replace(LOG_FILTER_PLACE, _LOG_FILTER if can else _NO_LOG_FILTER)
    return replace(file, content=content)


def untrusted(weak: Sequence[WeakPoint]) -> str:
    """Why a host is left as it is, in one line."""
    remedies = "; ".join(dict.fromkeys(one.remedy for one in weak))
    return (
        f"found {'; '.join(map(str, weak))}; expected what nobody but root can change; nothing was changed: {remedies}"
    )
