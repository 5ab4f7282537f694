"""A crowd of clients of several units and users before a door that holds their number; it runs on the host.

Each unit is a transient service that begins its clients a few at a time; some are killed while they wait. Meanwhile the
daemon is asked again and again for its clients, at its own socket, and each is counted by its unit and user. Daemon
and door's service are killed at random moments. Prints what was seen as JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CLIENT = "/usr/lib/mps-lab/simulated_client.py"
DAEMON = "/usr/bin/nvidia-cuda-mps-control"
PUBLIC, OWN = "/run/nvidia-mps/0", "/run/mps-fleet/0/pipe"
LONGEST_S = 400.0

LAUNCHER = """
import json, os, random, signal, subprocess, sys, time
path, count, at_once, kills, seed, client = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
dice = random.Random(seed)
running, met, begun = [], [], 0
while begun < count or running:
    while begun < count and len(running) < at_once:
        words = [client, "--hold", str(round(dice.uniform(0.1, 0.6), 3)), "--timeout", "120"]
        one = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        running.append((one, time.monotonic() + dice.uniform(0.05, 0.4) if dice.random() < kills / 100 else None))
        begun += 1
    for item in list(running):
        one, dies_s = item
        if dies_s is not None and time.monotonic() >= dies_s:
            one.kill()
        if one.poll() is not None:
            running.remove(item)
            said = one.stdout.read()
            found = json.loads(said) if said else {}
            killed = one.returncode == -signal.SIGKILL
            met.append([found.get("outcome", "killed" if killed else "?"), found.get("waited_s", 0), one.returncode])
    time.sleep(0.02)
with open(path, "w") as file:
    json.dump(met, file)
"""


def ask(*commands: str) -> list[str]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": OWN}
    said = "".join(f"{command}\n" for command in commands)
    try:
        done = subprocess.run([DAEMON], input=said, env=environment, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return []
    return [word for word in done.stdout.split() if word.isdigit()]


def unit_of(pid: str) -> str:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            for part in line.split("/"):
                if part.startswith("crowd-") and part.endswith(".service"):
                    return part
    return "?"


def listed() -> list[str]:
    return sorted({pid for server in ask("get_server_list") for pid in ask(f"get_client_list {server}")})


class Seen:
    """The most clients that were listed at once, by what they count in."""

    def __init__(self) -> None:
        self.most: collections.Counter[str] = collections.Counter()
        self.looks = 0

    def look(self) -> None:
        pids = listed()
        if not pids:
            return
        self.looks += 1
        counted = collections.Counter({"clients": len(pids)})
        for pid in pids:
            counted[unit_of(pid)] += 1
            with suppress(OSError):
                counted[f"user:{os.stat(f'/proc/{pid}').st_uid}"] += 1
        for what, number in counted.items():
            self.most[what] = max(self.most[what], number)


def main_pid(unit: str) -> int:
    command = ["systemctl", "show", "--value", "-p", "MainPID", unit]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def begin(unit: str, uid: int, options: argparse.Namespace, dice: random.Random) -> Path:
    """A unit's clients; where it writes what they met."""
    folder = Path("/run/crowd")
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o1777)
    path = folder / f"{unit}.json"
    path.unlink(missing_ok=True)
    words = ["systemd-run", "-q", "--collect", f"--unit={unit}", "-E", f"CUDA_MPS_PIPE_DIRECTORY={PUBLIC}"]
    words += ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    numbers = [options.clients, options.at_once, options.killed_percent, dice.randrange(1 << 30)]
    subprocess.run([*words, sys.executable, "-c", LAUNCHER, str(path), *map(str, numbers), CLIENT], check=True)
    return path


def kill(kind: str) -> bool:
    unit = {"daemon": "mps-control@0.service", "service": "mps-front-door@0.service"}[kind]
    with suppress(FileNotFoundError):
        os.unlink("/run/mps-fleet/0/starts.json")
    pid = main_pid(unit)
    with suppress(ProcessLookupError):
        if pid > 1:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unit", action="append", default=[], metavar="crowd-a.service:1234")
    parser.add_argument("--clients", type=int, required=True, help="of each unit")
    parser.add_argument("--at-once", type=int, default=4, help="of each unit, waiting or at work")
    parser.add_argument("--killed-percent", type=int, default=10)
    parser.add_argument("--daemon", type=int, default=0, help="kills of the control daemon")
    parser.add_argument("--service", type=int, default=0, help="kills of the door's service")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    seen, killed = Seen(), collections.Counter[str]()
    paths = {}
    for one in options.unit:
        unit, _, uid = one.partition(":")
        paths[unit] = begin(unit, int(uid), options, dice)
    kills = ["daemon"] * options.daemon + ["service"] * options.service
    dice.shuffle(kills)
    end_s, next_s = time.monotonic() + LONGEST_S, time.monotonic() + 1.5
    while not all(path.exists() and path.stat().st_size for path in paths.values()):
        assert time.monotonic() < end_s, {path.name: path.exists() for path in paths.values()}
        seen.look()
        if kills and time.monotonic() >= next_s:
            kind = kills.pop()
            killed[kind] += kill(kind)
            next_s = time.monotonic() + dice.uniform(0.5, 1.5)
        time.sleep(0.01)
    time.sleep(0.2)
    met = {unit: json.loads(path.read_text()) for unit, path in paths.items()}
    outcomes = {unit: collections.Counter(outcome for outcome, _, _ in every) for unit, every in met.items()}
    waited = [waited_s for every in met.values() for outcome, waited_s, _ in every if outcome == "client"]
    print(
        json.dumps(
            {
                "met": outcomes,
                "most": seen.most,
                "looks": seen.looks,
                "killed": killed,
                "longest_wait_s": max(waited, default=0),
                "left": listed(),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
