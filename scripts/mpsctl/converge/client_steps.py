"""Steps for what clients of the instances are given: the file of variables of each instance."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Mapping, Optional

from mpsctl.converge import ours
from mpsctl.converge.file_steps import WriteFile, differs
from mpsctl.converge.request import File
from mpsctl.converge.situation import Situation
from mpsctl.observe import client_environment
from mpsctl.store import configuration


def environment_files(found: Situation, moving: Mapping[str, Optional[Path]]) -> Iterator[WriteFile]:
    """The files of variables that say something else than they should.

    ``moving`` are the instances whose daemon needs a restart, with the public directory where clients find it until
    then, None where that stays. Such a one has clients of the daemon that runs: its start writes the file anew.
    """
    for instance in found.desired.instances:
        facts = found.facts(instance.name)
        devices = [device.uuid for device in configuration.resolve(instance, found.gpus)]
        public = instance.pipe_directory
        if instance.name in moving:
            devices = list(facts.serves) or devices
            public = str(moving[instance.name] or public)
        text = client_environment.file(instance.name, client_environment.variables(public, devices))
        file = File(found.world.places.client_environment(instance.name), text)
        if differs(file):
            yield WriteFile(file, instance.name, live=True, blocked=why_foreign(file.path))


def why_foreign(path: Path) -> Optional[str]:
    """The line for a file of somebody else's where one of ours belongs; None where there is none."""
    if not path.exists() or ours.is_ours(path):
        return None
    return f"found {path}, which is not ours, expected none or one of ours; move it away"
