"""A storm of clients on one host, while daemon and door are killed; it runs on the host and prints counts as JSON.

Clients begin one after the other in some loops, come in, and go. Killed, by SIGKILL, are the instance's control daemon
and its door's service, at random moments. With --direct there is no door: the same clients come to a control daemon
that is started by hand, and again after each kill.
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
import threading
import time
from contextlib import suppress
from pathlib import Path

CLIENT = "/usr/lib/mps-lab/simulated_client.py"
DAEMON = "/usr/bin/nvidia-cuda-mps-control"
LONGEST_S = 60.0


class Clients:
    """Loops of clients, and what they met: ``counts`` by outcome and the stage before it."""

    def __init__(self, directory: str, loops: int, dice: random.Random) -> None:
        self._directory = directory
        self._users = [[], ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]]
        self._multi_user = False
        self._ended = threading.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self._threads = [
            threading.Thread(target=self._loop, args=(random.Random(dice.random()),)) for _ in range(loops)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _loop(self, dice: random.Random) -> None:
        while not self._ended.is_set():
            options = ["--hold", str(dice.choice((0, 0, 0.02))), "--timeout", str(LONGEST_S)]
            options += ["--times", str(dice.choice((2, 3)))]
            done = subprocess.run(
                [CLIENT, *options],
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self._directory},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            found = json.loads(done.stdout)
            outcome = found["outcome"] if found["outcome"] == "client" else f"{found['outcome']} after {found['stage']}"
            self.counts[outcome] += 1

    def came_in(self) -> int:
        return self.counts["client"]

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def main_pid(unit: str) -> int:
    command = ["systemctl", "show", "--value", "-p", "MainPID", unit]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def killed(pid: int) -> bool:
    if pid <= 0:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def storm(options: argparse.Namespace) -> dict[str, object]:
    """Behind a door. Between two kills of the daemon somebody comes in."""
    dice = random.Random(options.seed)
    clients = Clients(f"/run/nvidia-mps/{options.instance}", options.clients, dice)
    units = {
        "daemon": f"mps-control@{options.instance}.service",
        "service": f"mps-front-door@{options.instance}.service",
    }
    kills = ["daemon"] * options.daemon + ["service"] * options.service
    dice.shuffle(kills)
    done: collections.Counter[str] = collections.Counter()
    clients.start()
    try:
        for kind in kills:
            before, end_s = clients.came_in(), time.monotonic() + LONGEST_S
            while clients.came_in() == before and time.monotonic() < end_s:
                time.sleep(0.01)
            time.sleep(dice.uniform(0, 0.2))
            # a daemon that had lived on would start again without the pause of a crash loop
            with suppress(FileNotFoundError):
                os.unlink(f"/run/mps-fleet/{options.instance}/starts.json")
            while not killed(main_pid(units[kind])) and time.monotonic() < end_s:
                time.sleep(0.01)
            done[kind] += 1
    finally:
        clients.end()
    return {"killed": done, "met": clients.counts}


def direct(options: argparse.Namespace) -> dict[str, object]:
    """Without a door: the daemon that is started by hand is up again a moment after each kill."""
    dice = random.Random(options.seed)
    directory = Path("/run/mps-direct")
    directory.mkdir(mode=0o755, exist_ok=True)
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(directory), "CUDA_MPS_LOG_DIRECTORY": str(directory)}

    def begin() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [DAEMON, "-f"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (directory / "control").exists():
            time.sleep(0.01)
        return process

    daemon = begin()
    clients = Clients(str(directory), options.clients, dice)
    clients.start()
    try:
        for _ in range(options.daemon):
            time.sleep(dice.uniform(0.1, 0.3))
            daemon.kill()
            daemon.wait()
            time.sleep(dice.uniform(0.05, 0.2))
            daemon = begin()
    finally:
        clients.end()
        daemon.kill()
        daemon.wait()
    return {"killed": {"daemon": options.daemon}, "met": clients.counts}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instance", default="0")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--daemon", type=int, default=0, help="kills of the control daemon")
    parser.add_argument("--service", type=int, default=0, help="kills of the door's service")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--direct", action="store_true")
    options = parser.parse_args()
    print(json.dumps(direct(options) if options.direct else storm(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
