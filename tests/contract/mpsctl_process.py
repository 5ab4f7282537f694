#!/usr/bin/env python3
"""mpsctl as a process of its own, on a host of which only the control daemon and the processes are real.

Usage: mpsctl_process.py ROOT BINARY MAIN_PID VERB [ARGUMENT…], with the module path of
pytest; systemd and NVML are those of the unit tests.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mpsctl.adapters import hardware, procfs
from mpsctl.cli import main
from mpsctl.store import world
from mpsctl.store.world import World
from real_daemon import RealDaemonHost, Starter, own_processes


def run(root: Path, binary: Path, main_pid: int, arguments: list[str]) -> int:
    with ExitStack() as stack:
        host = RealDaemonHost(Starter(binary, root, stack))
        unit = host.systemd.unit("mps-control@0.service")
        unit.main_pid, unit.active_state, unit.sub_state, unit.enabled = main_pid, "active", "running", True
        host.show_door()
        every = procfs.pids
        procfs.pids = lambda: own_processes(every())
        hardware.binary = lambda name: binary if name == hardware.CONTROL_DAEMON else Path("/usr/sbin") / name

        def made(**given: object) -> World:
            return replace(host.world, **given)  # type: ignore[arg-type]  # fields of World, by their names

        world.World = made  # type: ignore[assignment,misc]  # stands in for the class in this process alone
        return main.main(arguments)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
