#!/usr/bin/env python3
"""Everything that needs silicon, on one GPU, in under ten minutes: `make gpu-test`, as root on a GPU machine.

A host boots from build/gpu-bundle.tar.xz with the GPU passed through (see gpu_host.py); compute mode, persistence and
clocks are left as found. Each part can be named: `gpu_test.py verify bench`; those that take minutes by themselves
must be: `gpu_test.py sweeps models door-storm`. What was printed is kept in build/gpu-report.txt, with the machine, the
driver and the versions. A part that breaks off is named, the next begins.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Callable, TextIO

import bench_trial
import consent_trial
import ends_trial
import front_door_trial
import limits_trial
import metrics_trial
import places_trial
import plan_trial
import users_trial
import verify_trial
from gpu_host import PROJECT, Host, converge, expect, not_so, not_tried, on_a_host, soft

REPORT = PROJECT / "build/gpu-report.txt"


def verify(host: Host) -> None:
    converge(host, "4G", quiet=True)
    verify_trial.run_parts(host)


def consent(host: Host) -> None:
    converge(host, "4G", quiet=True)
    consent_trial.policies(host)
    consent_trial.reboot(host)
    consent_trial.removal(host)


def molecule(host: Host) -> None:
    """The scenario `gpu`, as on GPU hosts of one's own; a host that is its own controller cannot reboot in it."""
    converge(host, "4G", quiet=True)
    said = host.run(
        "cd /opt/project && MPS_GPU_INVENTORY=/opt/inventory.yml NO_COLOR=1 PYTHONPATH=/opt/ansible"
        " PATH=/opt/ansible/bin:$PATH molecule -c .config/molecule/config.yml test --destroy=never --scenario-name gpu"
        " 2>&1; echo exit $?"
    )
    soft("the scenario gpu passes", "3 passed" in said and said.rstrip().endswith("exit 0"), said.splitlines()[-4:])


PARTS: dict[str, Callable[[Host], None]] = {
    "verify": verify,
    "users": users_trial.parts,
    "molecule": molecule,
    "consent": consent,
    "limits": limits_trial.trial,
    "plan": plan_trial.trial,
    "bench": bench_trial.short,
    "by-hand": bench_trial.by_hand,
    "kills": bench_trial.kills,
    "loopback": bench_trial.loopback,
    "metrics": metrics_trial.part,
}
LONG: dict[str, Callable[[Host], None]] = {
    **front_door_trial.PARTS,
    "ends": ends_trial.part,
    "places": places_trial.part,
    "sweeps": bench_trial.long,
    "models": bench_trial.torch,
}
"""Only when they are named: each takes minutes of its own."""
ALL = {**PARTS, **LONG}


class _Both:
    """Standard output that is kept in a file too."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream, self._file = stream, path.open("w", encoding="utf-8")

    def write(self, text: str) -> int:
        self._file.write(text)
        self._file.flush()
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


def trial(host: Host) -> None:
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PARTS)
    for name in chosen:
        print(f"== {name}", flush=True)
        begin = time.monotonic()
        try:
            ALL[name](host)
        except (Exception, SystemExit) as error:  # the next part is worth trying all the same
            soft(f"{name} came to its end", False, f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            soft(f"{name} came to its end", False, "stopped by a signal, and with it what would have followed")
            break
        print(f"== {name}: {time.monotonic() - begin:.0f} s", flush=True)
    host.run("mpsctl version", check=False)
    print(f"parts: {', '.join(chosen)}; not tried: {', '.join(name for name in ALL if name not in chosen) or 'none'}")
    for why in dict.fromkeys(not_tried):
        print(f"not tried: {why}")
    print("not to be tried on a borrowed GPU: exclusive mode, persistence, MIG (the lab's simulated NVML stands in)")
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if not name.startswith("-") and name not in ALL]
    if unknown:
        sys.exit(f"gpu_test.py: found {', '.join(unknown)}, expected some of {', '.join(ALL)}")
    sys.stdout = _Both(sys.stdout, REPORT)
    sys.exit(on_a_host(trial))
