#!/usr/bin/env python3
"""mpsctl bench on a real GPU: short and long sweeps, a torch model as one's own command, the unit's daemon against one
started by hand, and 20 sweeps killed at random moments that leave nothing.

See gpu_host.py for the host. Pages, plots and raw data go to build/gpu-bench.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from typing import Any

from gpu_host import PROJECT, Host, client, converge, expect, not_so, not_tried, on_a_host, soft

PAGES = PROJECT / "build/gpu-bench"
PLACE = "/opt/bench"
SHORT = (("launch", "1,4,16"), ("half", "1,4"), ("compute", "1,4"), ("memory", "1,4"))
LONG = (
    ("launch", "1,2,4,8,16,32,48"),
    ("half", "1,4,16,48"),
    ("compute", "1,4,16,48"),
    ("memory", "1,4,16,48"),
)
MODELS = (("small", "1,4,16"), ("large", "1,4"))
PYTHON = "/usr/local/bin/machine-python3"
BY_HAND = "/run/by-hand"
KILLS, SEED = 20, 580
GONE_S = 15
ROUNDS = int(os.environ.get("GPU_ROUNDS", "1"))
"""Of the loopback; the figures in docs/ are of 3."""


def through_the_unit(host: Host) -> None:
    """The unit's daemon, without a limit or a percentage that would take a share away."""
    converge(host, "null", "-e '{mps_active_thread_percentage: null}'", quiet=True)
    host.run("systemctl restart mps-control@0", quiet=True)  # what is no longer managed stays in force until then


def sweep(host: Host, name: str, options: str) -> dict[str, Any]:
    """One sweep; what its bench.json says. It is kept also when it is cut short."""
    begin = time.monotonic()
    try:
        said = host.run(f"mpsctl bench --instance 0 --output {PLACE}/{name} {options}", check=False, timeout_s=500)
    finally:
        if (host.root / PLACE.lstrip("/") / name).is_dir():
            shutil.copytree(host.root / PLACE.lstrip("/") / name, PAGES / name, dirs_exist_ok=True)
    print(f"   {name}: {time.monotonic() - begin:.0f} s", flush=True)
    try:
        report: dict[str, Any] = json.loads((PAGES / name / "bench.json").read_text())
    except OSError:
        soft(f"{name}: a report", False, said.splitlines()[-1:])
        return {}
    problems = [run["problem"] for run in report["runs"] if run["problem"]]
    soft(f"{name}: every run gave a figure", not problems and len(report["runs"]) == report["steps"], problems[:3])
    soft(f"{name}: the verdict", report["verdict"]["pays"] is not None, report["verdict"]["text"])
    return report


def _sweeps(host: Host, name: str, which: tuple[tuple[str, str], ...], rounds: int) -> None:
    through_the_unit(host)
    for work, processes in which:
        sweep(host, name + work, f"--work {work} --processes {processes} --seconds 1 --rounds {rounds}")


def short(host: Host) -> None:
    """Each kind of built-in work at a few numbers of processes."""
    _sweeps(host, "short-", SHORT, 1)


def long(host: Host) -> None:
    """Each kind up to the cap, three rounds: about ten minutes. GPU_SWEEPS names some of them: "launch half:1,4"."""
    chosen = os.environ.get("GPU_SWEEPS", "").split()
    named = [(work, processes) for work, _, processes in (one.partition(":") for one in chosen)]
    usual = dict(LONG)
    which = tuple((work, processes or usual[work]) for work, processes in named) or LONG
    _sweeps(host, "", which, int(os.environ.get("GPU_ROUNDS", "3")))


def _has_torch(host: Host) -> bool:
    look = "import torch; print(torch.__version__, torch.cuda.is_available())"
    said = host.run(f"{PYTHON} -c '{look}'", check=False)
    if "True" not in said:
        not_tried.append(f"torch: the machine's python3 has none that sees the GPU ({said.splitlines()[-1:]})")
    return "True" in said


def torch(host: Host) -> None:
    """A command of one's own: needs a Python with torch on the machine."""
    if not _has_torch(host):
        return
    through_the_unit(host)
    for model, processes in MODELS:
        command = f"{PYTHON} {PROJECT}/tests/gpu/torch_model.py {model}"
        sweep(host, f"torch-{model}", f"--count-lines --processes {processes} --seconds 2 --rounds 3 -- {command}")


def loopback(host: Host) -> None:
    """Two ranks of a torch job on the GPU, under MPS and time-sliced, and how they fail."""
    if not _has_torch(host):
        return
    through_the_unit(host)
    begin = time.monotonic()
    said = host.run(
        f"mkdir -p {PLACE}; mpsctl loopback --instance 0 --python {PYTHON} --timeout 20 --rounds {ROUNDS}"
        f" --output {PLACE}/loopback.json; echo exit $?",
        check=False,
        timeout_s=400,
    )
    kept = host.root / PLACE.lstrip("/") / "loopback.json"
    if kept.is_file():
        PAGES.mkdir(parents=True, exist_ok=True)
        shutil.copy2(kept, PAGES / "loopback.json")
    soft(f"loopback ({time.monotonic() - begin:.0f} s)", said.rstrip().endswith("exit 0"), said.splitlines()[-2:])


def by_hand(host: Host) -> None:
    """The unit's daemon against one started by hand, in turn within the same sweep."""
    through_the_unit(host)
    host.run(f"mkdir -p {BY_HAND}; CUDA_MPS_PIPE_DIRECTORY={BY_HAND} CUDA_MPS_LOG_DIRECTORY={BY_HAND}"
             " nvidia-cuda-mps-control -d;"
             f" for i in $(seq 100); do [ -e {BY_HAND}/control ] && break; sleep 0.1; done")  # fmt: skip
    try:
        for work, processes in (("launch", "16"), ("compute", "4")):
            options = f"--work {work} --processes {processes} --seconds 1 --rounds 3 --against {BY_HAND}"
            report = sweep(host, f"by-hand-{work}", options)
            parts = [one["part"] for one in report.get("against", [])]
            soft(f"{work}: the unit's daemon gives at least 0.98 of the other's", min(parts, default=0) >= 0.98, parts)
    finally:
        host.run(f"echo quit | CUDA_MPS_PIPE_DIRECTORY={BY_HAND} nvidia-cuda-mps-control", check=False)


def _left(host: Host) -> dict[str, Any]:
    """What a sweep could leave: processes of ours, daemons, who uses the GPU and how much of it, its modes."""
    said = host.run(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -E 'mpsctl bench|cuda_work|mps-control';"
        " done;"
        " echo --; nvidia-smi --query-gpu=compute_mode,persistence_mode --format=csv,noheader;"
        " nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; ls /run/mps-fleet",
        check=False,
        quiet=True,
    )
    processes, _, rest = said.partition("--\n")
    modes, used, *folders = rest.splitlines()
    mine = sorted(line.strip() for line in processes.splitlines() if line.strip())
    return {"processes": mine, "modes": modes, "used_mib": int(used), "folders": folders}


def kills(host: Host) -> None:
    """20 sweeps ended at random moments, half of them with a daemon of their own: nothing is left."""
    chance = random.Random(SEED)
    through_the_unit(host)
    client(host)  # its server stays
    bad = []
    for number in range(KILLS):
        if number == KILLS // 2:
            host.run("systemctl stop mps-control@0", quiet=True)
        how = chance.choice(("KILL", "KILL", "TERM", "INT"))
        delay_s, processes = chance.uniform(0.05, 4.0), chance.choice(("1,2", "8", "16"))
        before = _left(host)
        host.run(
            f"setsid mpsctl bench --gpu 0 --processes {processes} --seconds 1 --rounds 2 --output {PLACE}/killed"
            f" </dev/null >/run/killed.out 2>&1 & bench=$!; sleep {delay_s:.2f}; kill -{how} $bench; wait $bench",
            check=False,
            quiet=True,
        )
        begin = time.monotonic()
        after = _left(host)
        while not _same(before, after) and time.monotonic() - begin < GONE_S:
            time.sleep(0.1)
            after = _left(host)
        held = _same(before, after)
        gone_s = time.monotonic() - begin
        said = host.run("tail -1 /run/killed.out", quiet=True, check=False).strip()[:90]
        print(f"   {how:4} after {delay_s:.2f} s at {processes}: all gone within {gone_s:.1f} s; it last said: {said}")
        if not held:
            bad.append((number, before, after))
    host.run("systemctl start mps-control@0", quiet=True)
    soft(f"{KILLS} killed sweeps left nothing (seed {SEED})", not bad, bad)


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """As before, but for the folder of a killed sweep's daemon, which the next sweep removes."""
    same = all(before[name] == after[name] for name in ("processes", "modes"))
    return same and int(after["used_mib"]) <= int(before["used_mib"]) + 1


def trial(host: Host) -> None:
    for part in (short, by_hand, kills, torch):
        print(f"-- {part.__name__}", flush=True)
        part(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
