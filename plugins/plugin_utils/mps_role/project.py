"""The project around the role: its brain (mpsctl.model), which is asked and not repeated, and its builder.

The places are the same in a clone and in a collection (ansible_collections/NAMESPACE/NAME).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
ROLE = PROJECT / "roles" / "mps"
SCRIPTS = PROJECT / "scripts"
PROGRAM = PROJECT / "build" / "mpsctl"

if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))


def build_program() -> str:
    """Build mpsctl into ``PROGRAM``, unless it is there as it must be; the build's id.

    :raises RuntimeError: with one line that says what is missing.
    """
    spec = importlib.util.spec_from_file_location("build_mpsctl", SCRIPTS / "build_mpsctl.py")
    if spec is None or spec.loader is None:
        raise RuntimeError(f"found no {SCRIPTS}/build_mpsctl.py, expected the whole project; use a whole checkout")
    builder = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(builder)
        return str(builder.build(PROGRAM))
    except SystemExit as error:  # the builder is a command of its own and ends with its message
        raise RuntimeError(str(error)) from error
    except OSError as error:
        raise RuntimeError(f"mpsctl cannot be built: {error}") from error
