"""What the front door of an instance is to be told: the one place where that is made, and compared with what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence

from mpsctl.adapters import hardware, procfs
from mpsctl.model.checked_values import REFUSE
from mpsctl.model.instance import Instance
from mpsctl.store import configuration, jobs
from mpsctl.store.admission import OPEN, Admission, ServedDaemon

COMPARED = ("wait_s", "gid", "multi_user", "room", "judged_devices")
"""The fields that stand for what is desired; the others say how the instance is at the moment."""


def desired_admission(
    instance: Instance,
    state: str,
    why: str = "",
    daemon: Optional[ServedDaemon] = None,
    devices: Sequence[str] = (),
) -> Admission:
    """What is to be said in a state; ``devices`` are the daemon's by UUID. Whoever is let in is judged by them.

    Whether one server serves all users is what the daemon was started with: another desired one waits for a restart.

    :raises BadValue: if the host does not have the group that may connect.
    """
    judged = tuple(devices) if state == OPEN and instance.limit_bypass == REFUSE else ()
    return Admission(
        state,
        why,
        daemon,
        instance.client_wait_s,
        configuration.gid_of(instance),
        multi_user=_serves_several(instance, daemon),
        room=configuration.room_as_it_can_be(instance),
        judged_devices=judged,
    )


def _serves_several(instance: Instance, daemon: Optional[ServedDaemon]) -> bool:
    title = procfs.title(daemon.pid) if daemon is not None and daemon.lives else ""
    return hardware.serves_several_users(title) if title else instance.multi_user


def differences(told: Admission, desired: Admission) -> list[str]:
    """The names of the fields in which the front door was told something else than is desired.

    While nobody new comes in, nobody's variables are judged. Shares of jobs are told, and desired by no file.
    """
    told = replace(told, room=jobs.without_jobs(told.room))
    fields = [name for name in COMPARED if name != "judged_devices" or told.state == OPEN]
    return [name for name in fields if getattr(told, name) != getattr(desired, name)]
