"""The environment variables of MPS, and what is wrong with one that only looks like it.

An unknown name is passed over by CUDA without a word, and quotes that survive a YAML file, ``docker -e`` or an
EnvironmentFile are part of the value (field reports; NVIDIA's own examples have both).
"""

from __future__ import annotations

from typing import Mapping

from mpsctl.model import foreign
from mpsctl.model.finding import Reason

PREFIX = "CUDA_MPS_"
THREADS, PRIORITY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_CLIENT_PRIORITY"
KNOWN = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    THREADS,
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    PRIORITY,
    "CUDA_MPS_SM_PARTITION",
    "CUDA_MPS_PROTOCOL_VERSION",
)
"""Of NVIDIA's documentation, up to MPS v3 (driver r615)."""

_MOST_ODD = 8


def oddities(environment: Mapping[str, str]) -> list[Reason]:
    """What is odd about the MPS variables of an environment."""
    found: list[Reason] = []
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        if len(found) >= _MOST_ODD:
            found.append(Reason("misspelt-variable", "and more variables of this kind", "see the whole environment"))
            break
        if name not in KNOWN:
            import difflib

            near = difflib.get_close_matches(name[:100], KNOWN, 1, 0.0)[0]
            line = f"{foreign.shown(name)}={foreign.shown(value)} is no variable of MPS; {near} is the nearest one"
            found.append(Reason("misspelt-variable", line, f"did you mean {near}?"))
        if "'" in value or '"' in value:
            found.append(
                Reason("quotes-in-value", f"{foreign.shown(name)}={foreign.shown(value)} has quotes inside the value")
            )
    return found
