"""The other MPS: Apple's Metal Performance Shaders, which is PyTorch's device `mps`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Optional

from mpsctl.adapters import hardware
from mpsctl.causes.diagnosis import CERTAIN, Diagnosis, diagnose

NAME = "metal-performance-shaders"

_QUESTION = """\
import json, torch
backend = getattr(torch.backends, "mps", None)
built, available = (bool(backend and ask()) for ask in (lambda: backend.is_built(), lambda: backend.is_available()))
print(json.dumps({"torch": torch.__version__, "built": built, "available": available,
                  "cuda": torch.version.cuda, "cuda_available": torch.cuda.is_available()}))
"""
_TIMEOUT_S = 20


def on_a_mac() -> bool:
    return sys.platform == "darwin"


def present(python: str = "python3") -> str:
    """What of PyTorch's two devices is here, in one line. Asked of ``python`` in a process of its own."""
    found = _ask(python)
    if found is None:
        return f"here: no torch that `{python}` can import"
    words = {True: "yes", False: "no"}
    return (
        f"here: torch {found.get('torch')}, torch.backends.mps built {words[bool(found.get('built'))]} and available"
        f" {words[bool(found.get('available'))]}; built for CUDA {found.get('cuda') or 'no'}, device cuda available"
        f" {words[bool(found.get('cuda_available'))]}"
    )


def _ask(python: str) -> Optional[dict[str, object]]:
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found if isinstance(found, dict) else None


def explain(*evidence: str) -> Diagnosis:
    """The two sentences, with what is present here."""
    driver = hardware.driver_version()
    nvidia = f"NVIDIA's driver {driver} is loaded" if driver else "no NVIDIA driver is loaded"
    return diagnose(NAME, CERTAIN, *evidence, present(), nvidia)
