"""The specification by which container engines hand an instance to a container (Container Device Interface, CDI).

Rules of the specification, read in its text and tried with podman 4.3 and 5.4 and docker 26: a kind is a vendor and a
class, a file has at least one device, and one name that is not legal voids the whole file. Names may begin with a digit
from version 0.5.0 on, the newest that podman 4.3 takes. Engines read files that end in .yaml or .json; YAML has
comments, so the first line tells whose the file is.
"""

from __future__ import annotations

import json
from typing import Optional, Sequence

from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.model.instance import Instance
from mpsctl.model.pattern import Pattern
from mpsctl.model.places import FINGERPRINT

KIND = "mps-fleet/instance"
VERSION = "0.5.0"
_NAME = Pattern(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_MOUNT = ("bind", "nosuid", "nodev", "noexec")

_HEAD = f"""\
{FINGERPRINT}: written by mpsctl, changes by hand are lost.
#
# The NVIDIA MPS instances of this host, for docker (25 or newer), podman and whoever else reads CDI. The GPU is handed
# over by NVIDIA's own specification beside this one: --device nvidia.com/gpu=UUID --device {KIND}=INSTANCE
"""


def device(name: str) -> Optional[str]:
    """What an engine calls an instance; None where CDI takes no such name: it has to end with a letter or digit."""
    return f"{KIND}={name}" if _NAME.fullmatch(name) else None


def specification(instances: Sequence[Instance]) -> Optional[str]:
    """The file's text, None where no instance has a device: without any the file would be no specification."""
    devices = [_device(one) for one in instances if device(one.name) is not None]
    if not devices:
        return None
    return f"{_HEAD}cdiVersion: {json.dumps(VERSION)}\nkind: {KIND}\ndevices:\n{''.join(devices)}"


def _device(instance: Instance) -> str:
    """A device: where clients find the instance, at the same place, and the variable that says so.

    The host's CUDA_VISIBLE_DEVICES is not among its variables: in the container only the instance's GPUs exist.
    """
    public = instance.pipe_directory
    options = ", ".join(("ro", *_MOUNT) if read_only(instance) else _MOUNT)
    return f"""\
  - name: {json.dumps(instance.name)}
    containerEdits:
      env:
        - {json.dumps(f"{PIPE_DIRECTORY}={public}")}
      mounts:
        - hostPath: {json.dumps(public)}
          containerPath: {json.dumps(public)}
          options: [{options}]
"""


def read_only(instance: Instance) -> bool:
    """Whether a container is to have the public directory read-only, which a connect does not mind (driver 580, H200).

    Without the front door it is the daemon's own, with files that clients open to write: read-only was not tried there
    with drivers before 580.
    """
    return instance.front_door
