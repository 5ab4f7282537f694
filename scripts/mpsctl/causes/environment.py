"""What is wrong with the variables that a client, a container or a daemon is given."""

from __future__ import annotations

import os
import re
from typing import Mapping, Optional, Sequence

from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.checks import words
from mpsctl.model import client_variable, fit, mps_variables
from mpsctl.model.checked_values import DAEMON_DIRECTORY_MAX_BYTES
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY
from mpsctl.model.foreign import shown


def lint(environment: Mapping[str, str], devices: Optional[Sequence[str]], of_daemon: bool = False) -> list[Diagnosis]:
    """The variables by themselves. ``devices`` are the daemon's by UUID, None where they are not known."""
    found = [
        diagnose(odd.cause, CERTAIN, odd.line, remedy=odd.remedy or None) for odd in mps_variables.oddities(environment)
    ]
    if client_variable.VARIABLE in environment:
        found += _limit(environment, devices, of_daemon)
    if PIPE_DIRECTORY in environment:
        found += directory(environment[PIPE_DIRECTORY])
    found += _connections(environment)
    return found


def directory(path: str) -> list[Diagnosis]:
    """A pipe directory by its path alone."""
    evidence = f"{PIPE_DIRECTORY}={shown(path)}"
    if len(os.fsencode(path)) > DAEMON_DIRECTORY_MAX_BYTES:
        return [diagnose("pipe-directory-too-long", CERTAIN, f"{evidence}: {len(os.fsencode(path))} bytes")]
    clean = path.rstrip("/")
    if clean == DEFAULT_PIPE_DIRECTORY:
        return [
            diagnose("default-pipe-directory", LIKELY, evidence),
            diagnose("pipe-directory-under-tmp", LIKELY, evidence),
        ]
    if clean.startswith("/dev/shm/"):
        return [diagnose("pipe-directory-in-shm", LIKELY, evidence)]
    if clean.startswith(("/tmp/", "/var/tmp/")):
        return [diagnose("pipe-directory-under-tmp", LIKELY, evidence)]
    if clean == "/root" or clean.startswith("/root/"):
        return [diagnose("pipe-directory-closed", LIKELY, f"{evidence}: /root is closed to other users")]
    return []


def _limit(environment: Mapping[str, str], devices: Optional[Sequence[str]], of_daemon: bool) -> list[Diagnosis]:
    text = environment[client_variable.VARIABLE]
    if of_daemon:
        return [diagnose("daemon-environment-limit", CERTAIN, f"{client_variable.VARIABLE}={shown(text)}")]
    if devices is None:
        # Without the daemon's devices only what does not parse is known to be wrong.
        numbers = [int(number) for number in re.findall(r"(?:^|,)(\d{1,2})=", text)]
        uuids = re.findall(r"(?:^|,)((?:GPU|MIG)-[^=,]+)=", text)
        devices = [*uuids, *("" for _ in range(max(numbers, default=-1) + 1))]
    why = client_variable.limit_bypass(environment, devices)
    return [diagnose("limit-bypassed", CERTAIN, words.bypass(why))] if why else []


def _connections(environment: Mapping[str, str]) -> list[Diagnosis]:
    text = fit.max_connections_of(environment)
    if not fit.lowers_cap(text):
        return []
    return [diagnose("max-connections-raised", POSSIBLE, f"{fit.MAX_CONNECTIONS}={shown(text or '')}")]
