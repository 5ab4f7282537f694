"""Faults that cannot be planted on a host of the lab, and the page that lists them all."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fakes import Host
from mpsctl.lifecycle import health
from mpsctl.model.finding import CRITICAL

PROJECT = Path(__file__).resolve().parents[3]
PROGRAM = PROJECT / "scripts" / "mpsctl"

WALL_CLOCK = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "mktime", "CLOCK_REALTIME"},
    "datetime": {"datetime", "date"},
}
FILE_TIMES = {f"st_{kind}time{unit}" for kind in "acm" for unit in ("", "_ns")}


def reads_of_the_wall_clock(text: str) -> list[str]:
    """What of a module would follow the machine's clock when that is set. A date written for people (strftime) may."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in WALL_CLOCK:
            found += [f"{node.module}.{one.name}" for one in node.names if one.name in WALL_CLOCK[node.module]]
        elif isinstance(node, ast.Attribute) and node.attr in FILE_TIMES:
            found.append(node.attr)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in WALL_CLOCK.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Import) and any(one.name == "datetime" or one.asname for one in node.names):
            found += [one.name for one in node.names if one.name in WALL_CLOCK]
    return found


READERS = {
    "store/world.py": ["time.time"],  # hands it to those below
    "adapters/daemon_log.py": ["time.mktime"],  # when a server ended: its log has nothing else
    "adapters/rank.py": ["datetime"],  # a length of time, for torch
    "front_door/outlook.py": ["st_mtime_ns"],  # whether a file is another one
    "front_door/service.py": ["st_mtime_ns"],
    "adapters/subordinate_ids.py": ["st_mtime_ns"],
}
TOLD_THE_TIME = {
    *("store/world.py", "observe/host.py", "observe/units.py", "checks/server_checks.py", "causes/host.py"),
    *("cli/metrics.py", "metrics/keep.py"),
}
"""Who is handed the wall clock: a look, to say how long ago a server ended, how far the clock was set since, and when
it was."""


def test_waits_and_ages_count_from_boot() -> None:
    """Nothing that acts, waits or remembers goes by a clock that somebody may set."""
    texts = {str(path.relative_to(PROGRAM)): path.read_text() for path in PROGRAM.rglob("*.py")}
    assert len(texts) > 100
    assert {name: found for name, text in texts.items() if (found := reads_of_the_wall_clock(text))} == READERS
    assert {name for name, text in texts.items() if "wall_s" in text} == TOLD_THE_TIME


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()",
        "import time as t\nt.time()",
        "from time import time",
        "import time\ntime.clock_gettime(time.CLOCK_REALTIME)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime",
        "path.stat().st_mtime",
        "about.st_mtime_ns",
    ],
)
def test_a_read_of_the_wall_clock_is_found(text: str) -> None:
    assert reads_of_the_wall_clock(text)


def test_server_in_fault(host: Host) -> None:
    """Fault: an MPS server is in state FAULT after a client's illegal access

    Happens: clients of that server see error 700; `status` and the health timer name the server: new clients wait until
    the old ones have ended
    Heals: by itself, when they have ended; on Hopper with driver 580 the server was ACTIVE again within 0.3 s
    Tried: a daemon that reports the state
    """
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start().start_server(9001).state = "FAULT"
    assert health.health(host.world).report.check("0", "server-state").level == CRITICAL


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("document_faults", PROJECT / "scripts" / "document_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_of_faults_is_current() -> None:
    done = subprocess.run([sys.executable, PROJECT / "scripts/document_faults.py", "--check"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("text", ["Fault: a\nHeals: b", "Fault: a\nHeals: b\nHappens: c\nTried: d", "Happens: a"])
def test_a_test_that_does_not_say_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        _generator().parts_of(text)


def test_the_parts_of_a_docstring_may_run_over_lines() -> None:
    parts = _generator().parts_of("Fault: a\n\n    Happens: b\n    goes on: still b\n    Heals: c\n    Tried: d")
    assert parts == ("a", "b goes on: still b", "c", "d")
