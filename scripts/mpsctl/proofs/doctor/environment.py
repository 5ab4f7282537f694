"""What is wrong with the variables that a client, a container or a daemon is given."""

from __future__ import annotations

import difflib
import re
from typing import Mapping, Optional, Sequence

from mpsctl.proofs.doctor.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.values import client_variable, fit
from mpsctl.values.daemon_environment import PIPE_DIRECTORY
from mpsctl.values.instance import DAEMON_DIRECTORY_MAX_BYTES

KNOWN = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_SM_PARTITION",
    "CUDA_MPS_PROTOCOL_VERSION",
)
"""The variables of MPS in NVIDIA's documentation of driver 615."""

DEFAULT_DIRECTORY = "/tmp/nvidia-mps"


def lint(environment: Mapping[str, str], devices: Optional[Sequence[str]], of_daemon: bool = False) -> list[Diagnosis]:
    """The variables by themselves. ``devices`` are the daemon's by UUID, None where they are not known."""
    found = []
    for name, value in environment.items():
        if not name.startswith("CUDA_MPS_"):
            continue
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            meant = f"did you mean {near[0]}?" if near else None
            found.append(diagnose("misspelt-variable", CERTAIN, f"{name}={value}", remedy=meant))
        if re.search("[\"']", value):
            found.append(diagnose("quotes-in-value", CERTAIN, f"{name}={value}"))
    if client_variable.VARIABLE in environment:
        found += _limit(environment, devices, of_daemon)
    if PIPE_DIRECTORY in environment:
        found += directory(environment[PIPE_DIRECTORY])
    found += _connections(environment)
    return found


def directory(path: str) -> list[Diagnosis]:
    """A pipe directory by its path alone."""
    evidence = f"{PIPE_DIRECTORY}={path}"
    if len(path.encode()) > DAEMON_DIRECTORY_MAX_BYTES:
        return [diagnose("pipe-directory-too-long", CERTAIN, f"{evidence}: {len(path.encode())} bytes")]
    clean = path.rstrip("/")
    if clean == DEFAULT_DIRECTORY:
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
        return [diagnose("daemon-environment-limit", CERTAIN, f"{client_variable.VARIABLE}={text}")]
    if devices is None:
        # Without the daemon's devices only what does not parse is known to be wrong.
        numbers = [int(number) for number in re.findall(r"(?:^|,)(\d{1,2})=", text)]
        uuids = re.findall(r"(?:^|,)((?:GPU|MIG)-[^=,]+)=", text)
        devices = [*uuids, *("" for _ in range(max(numbers, default=-1) + 1))]
    why = client_variable.escape(environment, devices)
    return [diagnose("limit-shaken-off", CERTAIN, why)] if why else []


def _connections(environment: Mapping[str, str]) -> list[Diagnosis]:
    text = fit.max_connections_of(environment)
    if text is None or (text.isascii() and text.isdigit() and int(text) <= fit.DEFAULT_MAX_CONNECTIONS):
        return []
    return [diagnose("max-connections-raised", POSSIBLE, f"{fit.MAX_CONNECTIONS}={text}")]
