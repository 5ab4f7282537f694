"""The one setting of the machine that hosts run into: inotify instances, of which root has 128 for all of them.

A booted host takes 8 of them; user namespaces do not help, since the kernel charges the outer root as well.
Raised while a lab is up, put back when the last one goes; kept under /run, which lasts as long as the setting.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpslab import cgroups
from mpslab.errors import LabError
from mpslab.progress import say

_NAME = "fs.inotify.max_user_instances"
_SETTING = Path("/proc/sys/fs/inotify/max_user_instances")
_RECORD = Path("/run/mps-lab-limits.json")
_PER_HOST, _FOR_OTHERS = 16, 1024


def needed(host_count: int) -> int:
    """With room for the rest of the machine and for another lab."""
    return _FOR_OTHERS + _PER_HOST * host_count


def make_room(host_count: int) -> None:
    """Raise the setting if it is too low for that many hosts.

    :raises LabError: if it may not be raised.
    """
    found, wanted = int(_SETTING.read_text()), needed(host_count)
    if found >= wanted:
        return
    before = json.loads(_RECORD.read_text())["before"] if _RECORD.exists() else found
    _RECORD.write_text(json.dumps({"name": _NAME, "before": before, "set": wanted}) + "\n")
    try:
        _SETTING.write_text(f"{wanted}\n")
    except OSError as error:
        _RECORD.unlink()
        if found >= _PER_HOST * host_count:
            # enough for these hosts, if not for another lab beside them
            return
        raise LabError(
            f"found {_NAME} = {found}, {host_count} hosts need {wanted}, and it cannot be set here ({error.strerror}); "
            f"set it outside with `sysctl -w {_NAME}={wanted}`"
        ) from None
    say(f"raised the machine's {_NAME} from {found} to {wanted} while a lab is up")


def put_back() -> None:
    """Put the setting back, unless somebody else has changed it since. For the last lab to go."""
    if not _RECORD.exists() or cgroups.any_lab():
        return
    record = json.loads(_RECORD.read_text())
    if int(_SETTING.read_text()) == record["set"]:
        _SETTING.write_text(f"{record['before']}\n")
    _RECORD.unlink()
